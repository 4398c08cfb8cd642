// Executable and LoadedExecutable: analysis, serialization, and the execute calls.
#include "csrc/pjrt/executable.h"

#include <utility>

#include "csrc/pjrt/call.h"
#include "csrc/pjrt/client.h"

namespace torch_tpu::pjrt {
namespace {

PJRT_LoadedExecutable_Execute_Args execute_args(PJRT_LoadedExecutable* raw,
                                                PJRT_ExecuteOptions* options, size_t ndevices,
                                                size_t nargs) {
  auto args = make_args<PJRT_LoadedExecutable_Execute_Args>();
  args.executable = raw;
  args.options = options;
  args.num_devices = ndevices;
  args.num_args = nargs;
  return args;
}

}  // namespace

Executable::Executable(Executable&& other) noexcept
    : api_(other.api_), raw_(std::exchange(other.raw_, nullptr)) {}

Executable& Executable::operator=(Executable&& other) noexcept {
  if (this != &other) {
    reset();
    api_ = other.api_;
    raw_ = std::exchange(other.raw_, nullptr);
  }
  return *this;
}

void Executable::reset() noexcept {
  if (raw_ == nullptr) return;
  auto args = make_args<PJRT_Executable_Destroy_Args>();
  args.executable = std::exchange(raw_, nullptr);
  TORCH_TPU_PJRT_CALL_NOEXCEPT(api_, PJRT_Executable_Destroy, args);
}

std::string Executable::name() const {
  auto args = make_args<PJRT_Executable_Name_Args>();
  args.executable = raw_;
  TORCH_TPU_PJRT_CALL(api_, PJRT_Executable_Name, args);
  return std::string(args.executable_name, args.executable_name_size);
}

size_t Executable::num_outputs() const {
  auto args = make_args<PJRT_Executable_NumOutputs_Args>();
  args.executable = raw_;
  TORCH_TPU_PJRT_CALL(api_, PJRT_Executable_NumOutputs, args);
  return args.num_outputs;
}

size_t Executable::num_partitions() const {
  auto args = make_args<PJRT_Executable_NumPartitions_Args>();
  args.executable = raw_;
  TORCH_TPU_PJRT_CALL(api_, PJRT_Executable_NumPartitions, args);
  return args.num_partitions;
}

std::vector<PJRT_Buffer_Type> Executable::output_types() const {
  auto args = make_args<PJRT_Executable_OutputElementTypes_Args>();
  args.executable = raw_;
  TORCH_TPU_PJRT_CALL(api_, PJRT_Executable_OutputElementTypes, args);
  return std::vector<PJRT_Buffer_Type>(args.output_types,
                                       args.output_types + args.num_output_types);
}

std::vector<std::vector<int64_t>> Executable::output_dims() const {
  auto args = make_args<PJRT_Executable_OutputDimensions_Args>();
  args.executable = raw_;
  TORCH_TPU_PJRT_CALL(api_, PJRT_Executable_OutputDimensions, args);
  std::vector<std::vector<int64_t>> result;
  const int64_t* dims = args.dims;
  for (size_t i = 0; i < args.num_outputs; ++i) {
    result.emplace_back(dims, dims + args.dim_sizes[i]);
    dims += args.dim_sizes[i];
  }
  return result;
}

std::string Executable::serialize() const {
  auto args = make_args<PJRT_Executable_Serialize_Args>();
  args.executable = raw_;
  TORCH_TPU_PJRT_CALL(api_, PJRT_Executable_Serialize, args);
  struct Free {
    PJRT_Executable_Serialize_Args& args;
    ~Free() { args.serialized_executable_deleter(args.serialized_executable); }
  } const free{args};
  return std::string(args.serialized_bytes, args.serialized_bytes_size);
}

std::map<std::string, double> Executable::cost_analysis() const {
  auto args = make_args<PJRT_Executable_GetCostAnalysis_Args>();
  args.executable = raw_;
  TORCH_TPU_PJRT_CALL(api_, PJRT_Executable_GetCostAnalysis, args);
  std::map<std::string, double> result;
  for (const auto& [name, value] : from_pjrt(args.properties, args.num_properties)) {
    if (const auto* real = std::get_if<float>(&value)) result[name] = *real;
    if (const auto* number = std::get_if<int64_t>(&value)) {
      result[name] = static_cast<double>(*number);
    }
  }
  return result;
}

int64_t Executable::temp_bytes() const noexcept {
  try {
    return memory_stats().temp_bytes;
  } catch (...) {  // it does not tell
    return 0;
  }
}

CompiledMemoryStats Executable::memory_stats() const {
  auto args = make_args<PJRT_Executable_GetCompiledMemoryStats_Args>();
  args.executable = raw_;
  TORCH_TPU_PJRT_CALL(api_, PJRT_Executable_GetCompiledMemoryStats, args);
  CompiledMemoryStats stats;
  stats.generated_code_bytes = args.generated_code_size_in_bytes;
  stats.argument_bytes = args.argument_size_in_bytes;
  stats.output_bytes = args.output_size_in_bytes;
  stats.alias_bytes = args.alias_size_in_bytes;
  stats.temp_bytes = args.temp_size_in_bytes;
  stats.host_temp_bytes = args.host_temp_size_in_bytes;
  stats.peak_bytes = args.peak_memory_in_bytes;
  return stats;
}

std::optional<OptimizedProgram> Executable::optimized_program() const {
  auto program = make_args<PJRT_Program>();
  auto args = make_args<PJRT_Executable_OptimizedProgram_Args>();
  args.executable = raw_;
  args.program = &program;
  try {
    TORCH_TPU_PJRT_CALL(api_, PJRT_Executable_OptimizedProgram, args);  // asks for the size
    OptimizedProgram result;
    result.code.resize(program.code_size);
    program.code = result.code.data();
    TORCH_TPU_PJRT_CALL(api_, PJRT_Executable_OptimizedProgram, args);
    result.format.assign(program.format, program.format_size);
    return result;
  } catch (const Error& error) {
    if (error.is_unimplemented()) return std::nullopt;
    throw;
  }
}

std::optional<std::string> Executable::fingerprint() const {
  auto args = make_args<PJRT_Executable_Fingerprint_Args>();
  args.executable = raw_;
  try {
    TORCH_TPU_PJRT_CALL(api_, PJRT_Executable_Fingerprint, args);
  } catch (const Error& error) {
    if (error.is_unimplemented()) return std::nullopt;
    throw;
  }
  if (args.executable_fingerprint_size == 0) return std::nullopt;
  return std::string(args.executable_fingerprint, args.executable_fingerprint_size);
}

LoadedExecutable::LoadedExecutable(std::shared_ptr<const Client> client, PJRT_LoadedExecutable* raw)
    : api_(client->api()), raw_(raw), client_(std::move(client)) {
  try {
    auto args = make_args<PJRT_LoadedExecutable_GetExecutable_Args>();
    args.loaded_executable = raw_;
    TORCH_TPU_PJRT_CALL(api_, PJRT_LoadedExecutable_GetExecutable, args);
    executable_ = Executable(api_, args.executable);
    num_outputs_ = executable_.num_outputs();
  } catch (...) {
    reset();  // the destructor does not run
    throw;
  }
}

LoadedExecutable::LoadedExecutable(LoadedExecutable&& other) noexcept
    : api_(other.api_),
      raw_(std::exchange(other.raw_, nullptr)),
      num_outputs_(other.num_outputs_),
      executable_(std::move(other.executable_)),
      client_(std::move(other.client_)) {}

LoadedExecutable& LoadedExecutable::operator=(LoadedExecutable&& other) noexcept {
  if (this != &other) {
    reset();
    api_ = other.api_;
    raw_ = std::exchange(other.raw_, nullptr);
    num_outputs_ = other.num_outputs_;
    executable_ = std::move(other.executable_);
    client_ = std::move(other.client_);
  }
  return *this;
}

void LoadedExecutable::reset() noexcept {
  executable_.reset();
  if (raw_ != nullptr) {
    auto args = make_args<PJRT_LoadedExecutable_Destroy_Args>();
    args.executable = std::exchange(raw_, nullptr);
    TORCH_TPU_PJRT_CALL_NOEXCEPT(api_, PJRT_LoadedExecutable_Destroy, args);
  }
  client_.reset();  // last: the executable may refer to it until here
}

std::vector<PJRT_Device*> LoadedExecutable::addressable_devices() const {
  auto args = make_args<PJRT_LoadedExecutable_AddressableDevices_Args>();
  args.executable = raw_;
  TORCH_TPU_PJRT_CALL(api_, PJRT_LoadedExecutable_AddressableDevices, args);
  return std::vector<PJRT_Device*>(args.addressable_devices,
                                   args.addressable_devices + args.num_addressable_devices);
}

void LoadedExecutable::execute(PJRT_Buffer* const* args, size_t nargs, PJRT_Buffer** outs,
                               PJRT_Device* device, std::span<const int64_t> keep) const {
  // Both structs on the stack: nothing is shared between threads.
  auto options = make_args<PJRT_ExecuteOptions>();
  options.non_donatable_input_indices = keep.data();
  options.num_non_donatable_input_indices = keep.size();
  auto call = execute_args(raw_, &options, 1, nargs);
  call.argument_lists = &args;
  call.output_lists = &outs;
  call.execute_device = device;
  TORCH_TPU_PJRT_CALL(api_, PJRT_LoadedExecutable_Execute, call);
}

Event LoadedExecutable::execute_with_event(PJRT_Buffer* const* args, size_t nargs,
                                           PJRT_Buffer** outs, PJRT_Device* device) const {
  auto options = make_args<PJRT_ExecuteOptions>();
  auto call = execute_args(raw_, &options, 1, nargs);
  PJRT_Event* event = nullptr;
  call.argument_lists = &args;
  call.output_lists = &outs;
  call.execute_device = device;
  call.device_complete_events = &event;
  TORCH_TPU_PJRT_CALL(api_, PJRT_LoadedExecutable_Execute, call);
  return Event(api_, event);
}

void LoadedExecutable::execute_sharded(PJRT_Buffer* const* const* args, size_t ndevices,
                                       size_t nargs, PJRT_Buffer** const* outs) const {
  auto options = make_args<PJRT_ExecuteOptions>();
  auto call = execute_args(raw_, &options, ndevices, nargs);
  call.argument_lists = args;
  call.output_lists = outs;
  TORCH_TPU_PJRT_CALL(api_, PJRT_LoadedExecutable_Execute, call);
}

}  // namespace torch_tpu::pjrt
