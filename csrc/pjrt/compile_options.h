// CompileOptions and its encoding as a CompileOptionsProto. The encoder is hand
// written: a second protobuf library in a process with torch crashes it.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

namespace torch_tpu::pjrt {

using OptionOverride = std::variant<std::string, bool, int64_t, double>;

struct CompileOptions {
  int64_t num_replicas = 1;
  int64_t num_partitions = 1;
  bool use_spmd_partitioning = false;
  // Partition with Shardy (sdy.sharding attributes) instead of GSPMD (mhlo.sharding).
  bool use_shardy_partitioner = false;

  // Global device ids, [replica][partition]; empty lets the client choose. Must
  // be empty when compile_portable_executable is set.
  std::vector<std::vector<int64_t>> device_assignment;

  // One executable for any device of the client; execute() names the device.
  bool compile_portable_executable = false;

  // -1 for a topology compile; else leave unset.
  std::optional<int64_t> device_ordinal;

  // XLA flags of this program alone, for example {"xla_backend_optimization_level", 1}.
  // Ordered, so that equal options encode to equal bytes (they are part of cache keys).
  std::map<std::string, OptionOverride> env_option_overrides;

  // One program on one device, any device of the client.
  static CompileOptions portable();
  // One SPMD program over the given global device ids, one partition each.
  static CompileOptions spmd(const std::vector<int64_t>& device_ids);
  // For Topology::compile.
  static CompileOptions topology(int64_t num_partitions = 1);

  // The bytes PJRT takes. Throws std::invalid_argument for options that
  // contradict each other.
  std::string serialize() const;
};

}  // namespace torch_tpu::pjrt
