// The protobuf encoder for CompileOptionsProto (xla/pjrt/proto/compile_options.proto).
#include "csrc/pjrt/compile_options.h"

#include <cstring>
#include <stdexcept>
#include <string_view>

#include "csrc/pjrt/option_overrides.h"

namespace torch_tpu::pjrt {
namespace {

// The protobuf wire format, as much of it as CompileOptionsProto needs. Fields
// are written in ascending order and defaults are left out, as protobuf does.
class Message {
 public:
  void add_int(int field, int64_t value) {
    if (value != 0) add_int_always(field, value);
  }
  // For members of a oneof, where the default counts as set.
  void add_int_always(int field, int64_t value) {
    add_varint(tag(field, 0));
    add_varint(static_cast<uint64_t>(value));  // negative: ten bytes, as protobuf's int64
  }
  void add_double_always(int field, double value) {
    add_varint(tag(field, 1));
    uint64_t bits = 0;
    std::memcpy(&bits, &value, sizeof(bits));
    for (int i = 0; i < 8; ++i) bytes_.push_back(static_cast<char>(bits >> (8 * i)));
  }
  void add_bytes(int field, std::string_view value) {
    add_varint(tag(field, 2));
    add_varint(value.size());
    bytes_.append(value);
  }
  void add_packed(int field, const std::vector<int64_t>& values) {
    Message packed;
    for (const int64_t value : values) packed.add_varint(static_cast<uint64_t>(value));
    add_bytes(field, packed.bytes_);
  }
  const std::string& bytes() const { return bytes_; }

 private:
  static uint64_t tag(int field, int wire_type) {
    return static_cast<uint64_t>(field) << 3 | static_cast<uint64_t>(wire_type);
  }
  void add_varint(uint64_t value) {
    for (; value >= 0x80; value >>= 7) bytes_.push_back(static_cast<char>(value | 0x80));
    bytes_.push_back(static_cast<char>(value));
  }

  std::string bytes_;
};

// DeviceAssignmentProto: one ComputationDevice per partition, holding the
// replicas' device ids; so the transpose of [replica][partition].
std::string device_assignment(const CompileOptions& options) {
  Message message;
  message.add_int(1, options.num_replicas);    // replica_count
  message.add_int(2, options.num_partitions);  // computation_count
  for (int64_t partition = 0; partition < options.num_partitions; ++partition) {
    std::vector<int64_t> ids;
    for (const auto& replica : options.device_assignment) ids.push_back(replica[partition]);
    Message computation_device;
    computation_device.add_packed(1, ids);             // replica_device_ids
    message.add_bytes(3, computation_device.bytes());  // computation_devices
  }
  return message.bytes();
}

std::string executable_build_options(const CompileOptions& options) {
  Message message;
  message.add_int(1, options.device_ordinal.value_or(0));
  message.add_int(4, options.num_replicas);
  message.add_int(5, options.num_partitions);
  message.add_int(6, options.use_spmd_partitioning ? 1 : 0);
  if (!options.device_assignment.empty()) message.add_bytes(9, device_assignment(options));
  message.add_int(19, options.use_shardy_partitioner ? 1 : 0);
  return message.bytes();
}

std::string option_override(const OptionOverride& value) {
  Message message;
  if (const auto* text = std::get_if<std::string>(&value)) {
    message.add_bytes(1, *text);
  } else if (const auto* flag = std::get_if<bool>(&value)) {
    message.add_int_always(2, *flag ? 1 : 0);
  } else if (const auto* number = std::get_if<int64_t>(&value)) {
    message.add_int_always(3, *number);
  } else {
    message.add_double_always(4, std::get<double>(value));
  }
  return message.bytes();
}

[[noreturn]] void reject(const std::string& text) {
  throw std::invalid_argument("[CompileOptions] " + text);
}

void validate(const CompileOptions& options) {
  if (options.num_replicas < 1 || options.num_partitions < 1) {
    reject("expected num_replicas and num_partitions of at least 1, got " +
           std::to_string(options.num_replicas) + " and " + std::to_string(options.num_partitions) +
           ".");
  }
  if (options.num_partitions > 1 && !options.use_spmd_partitioning) {
    reject("num_partitions > 1 needs use_spmd_partitioning.");
  }
  if (options.device_assignment.empty()) return;
  if (options.compile_portable_executable) {
    reject("a portable executable takes no device_assignment.");
  }
  bool matches = static_cast<int64_t>(options.device_assignment.size()) == options.num_replicas;
  for (const auto& replica : options.device_assignment) {
    matches &= static_cast<int64_t>(replica.size()) == options.num_partitions;
  }
  if (!matches) reject("device_assignment must be num_replicas lists of num_partitions ids.");
}

}  // namespace

CompileOptions CompileOptions::portable() {
  CompileOptions options;
  options.compile_portable_executable = true;
  return options;
}

CompileOptions CompileOptions::spmd(const std::vector<int64_t>& device_ids) {
  CompileOptions options;
  options.num_partitions = static_cast<int64_t>(device_ids.size());
  options.use_spmd_partitioning = device_ids.size() > 1;
  options.device_assignment = {device_ids};
  return options;
}

CompileOptions CompileOptions::topology(int64_t num_partitions) {
  CompileOptions options;
  options.device_ordinal = -1;
  options.num_partitions = num_partitions;
  options.use_spmd_partitioning = num_partitions > 1;
  return options;
}

std::string CompileOptions::serialize() const {
  validate(*this);
  Message message;
  message.add_bytes(3, executable_build_options(*this));
  message.add_int(4, compile_portable_executable ? 1 : 0);
  return message.bytes() + serialize_overrides(env_option_overrides);
}

std::string serialize_overrides(const OptionOverrides& overrides) {
  Message message;
  for (const auto& [name, value] : overrides) {
    Message entry;
    entry.add_bytes(1, name);
    entry.add_bytes(2, option_override(value));
    message.add_bytes(7, entry.bytes());
  }
  return message.bytes();
}

}  // namespace torch_tpu::pjrt
