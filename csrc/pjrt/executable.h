// Executable: a compiled program (what can be asked of it, and its bytes).
// LoadedExecutable: one that is loaded into a client and can be run.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "csrc/pjrt/api.h"
#include "csrc/pjrt/event.h"
#include "csrc/pjrt/named_value.h"

namespace torch_tpu::pjrt {

class Client;
class Plugin;

struct CompiledMemoryStats {
  int64_t generated_code_bytes = 0;
  int64_t argument_bytes = 0;
  int64_t output_bytes = 0;
  int64_t alias_bytes = 0;  // arguments reused as outputs (donation)
  int64_t temp_bytes = 0;
  int64_t host_temp_bytes = 0;
  int64_t peak_bytes = 0;  // can be below argument + temp on TPU
};

struct OptimizedProgram {
  std::string format;  // usually "hlo_with_config"
  std::string code;    // its HloModuleProto is field 1
};

// Move-only; const methods are thread-safe.
class Executable {
 public:
  Executable() noexcept = default;
  // Takes ownership.
  Executable(const PJRT_Api* api, PJRT_Executable* raw) noexcept : api_(api), raw_(raw) {}
  Executable(Executable&& other) noexcept;
  Executable& operator=(Executable&& other) noexcept;
  Executable(const Executable&) = delete;
  Executable& operator=(const Executable&) = delete;
  ~Executable() { reset(); }

  PJRT_Executable* raw() const noexcept { return raw_; }
  void reset() noexcept;

  std::string name() const;
  size_t num_outputs() const;
  size_t num_partitions() const;
  std::vector<PJRT_Buffer_Type> output_types() const;
  std::vector<std::vector<int64_t>> output_dims() const;

  // Loads again only into the same platform and plugin version.
  std::string serialize() const;
  // "flops", "bytes accessed", ... numbers as double; what there is depends on
  // the plugin, and TPU's "optimal_seconds" may be negative.
  std::map<std::string, double> cost_analysis() const;
  CompiledMemoryStats memory_stats() const;
  // Of them the bytes a run needs for a while; 0 where the plugin does not tell.
  int64_t temp_bytes() const noexcept;
  // Empty where the plugin cannot tell.
  std::optional<OptimizedProgram> optimized_program() const;
  std::optional<std::string> fingerprint() const;

 private:
  const PJRT_Api* api_ = nullptr;
  PJRT_Executable* raw_ = nullptr;
};

// Move-only. Everything const is thread-safe, execute included, and takes no lock.
class LoadedExecutable {
 public:
  LoadedExecutable() noexcept = default;
  // Takes ownership of `raw` (also when it throws). Keeps the client alive.
  LoadedExecutable(std::shared_ptr<const Client> client, PJRT_LoadedExecutable* raw);
  LoadedExecutable(LoadedExecutable&& other) noexcept;
  LoadedExecutable& operator=(LoadedExecutable&& other) noexcept;
  LoadedExecutable(const LoadedExecutable&) = delete;
  LoadedExecutable& operator=(const LoadedExecutable&) = delete;
  ~LoadedExecutable() { reset(); }

  explicit operator bool() const noexcept { return raw_ != nullptr; }
  PJRT_LoadedExecutable* raw() const noexcept { return raw_; }
  const Executable& executable() const noexcept { return executable_; }
  // Frees the program; work in flight still completes.
  void reset() noexcept;

  size_t num_outputs() const noexcept { return num_outputs_; }
  // The devices it was compiled for; none for a portable one, which runs on any.
  std::vector<PJRT_Device*> addressable_devices() const;

  // HOT PATH. Runs on one device: no heap allocation of ours, no lock, no event.
  // `outs` takes num_outputs() new buffers, owned by the caller; on error it is
  // untouched. `device` selects the device of a portable executable (needed
  // there; the arguments must be on it); null means the device given at compile
  // time. Arguments marked for donation in the program are deleted by the call.
  // The program may still be running on return: an error of the computation
  // itself then shows in the outputs' ready events. XLA:CPU runs a program of
  // less than 1000 flops (transcendentals not counted) inside the call.
  // `keep` names arguments that are not given away this time though the program would take them.
  void execute(PJRT_Buffer* const* args, size_t nargs, PJRT_Buffer** outs, PJRT_Device* device,
               std::span<const int64_t> keep = {}) const;

  // The same, and the event of its completion (also for programs with no outputs).
  [[nodiscard]] Event execute_with_event(PJRT_Buffer* const* args, size_t nargs, PJRT_Buffer** outs,
                                         PJRT_Device* device) const;

  // Runs an executable compiled for several devices on all of them at once:
  // args[d][i], outs[d][j] for device d of addressable_devices().
  void execute_sharded(PJRT_Buffer* const* const* args, size_t ndevices, size_t nargs,
                       PJRT_Buffer** const* outs) const;

 private:
  const PJRT_Api* api_ = nullptr;
  PJRT_LoadedExecutable* raw_ = nullptr;
  size_t num_outputs_ = 0;
  Executable executable_;
  std::shared_ptr<const Client> client_;
};

}  // namespace torch_tpu::pjrt
