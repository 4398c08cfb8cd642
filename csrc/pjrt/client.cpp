// Client: creation, uploads, compilation.
#include "csrc/pjrt/client.h"

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <utility>

#include "csrc/base/env.h"
#include "csrc/base/happens.h"
#include "csrc/base/signals.h"
#include "csrc/base/variables.h"
#include "csrc/pjrt/call.h"
#include "csrc/pjrt/code_room.h"
#include "csrc/pjrt/plugin_prepare.h"

namespace torch_tpu::pjrt {
namespace {

// Runs a callback exactly once: at the latest when it goes out of scope.
class Once {
 public:
  explicit Once(std::function<void()> callback) : callback_(std::move(callback)) {}
  Once(const Once&) = delete;
  Once& operator=(const Once&) = delete;
  ~Once() { run(); }
  explicit operator bool() const noexcept { return static_cast<bool>(callback_); }
  void run() noexcept {
    if (!callback_) return;
    try {
      std::exchange(callback_, nullptr)();
    } catch (...) {
      // Nobody to tell: this may be a destructor or a thread of the plugin.
    }
  }

 private:
  std::function<void()> callback_;
};

PJRT_HostBufferSemantics to_pjrt(HostSemantics semantics) {
  switch (semantics) {
    case HostSemantics::kOnlyDuringCall:
      return PJRT_HostBufferSemantics_kImmutableOnlyDuringCall;
    case HostSemantics::kUntilTransferCompletes:
      return PJRT_HostBufferSemantics_kImmutableUntilTransferCompletes;
    case HostSemantics::kZeroCopy:
      return PJRT_HostBufferSemantics_kImmutableZeroCopy;
    case HostSemantics::kMutableZeroCopy:
      return PJRT_HostBufferSemantics_kMutableZeroCopy;
  }
  return PJRT_HostBufferSemantics_kImmutableOnlyDuringCall;
}

// A collective of XLA:CPU holds its thread until all devices have come to it. There are as many
// threads as processors by default: with more devices than that, all may be held by devices that
// wait for one that has none, and XLA aborts the process. So each device has one more. The variable
// is read when the client is made, and taken back.
class ThreadsForCollectives {
 public:
  explicit ThreadsForCollectives(const NamedValues& options) {
    const auto found = options.find("cpu_device_count");
    if (found == options.end()) return;
    const auto* devices = std::get_if<int64_t>(&found->second);
    if (devices == nullptr || *devices < 2) return;
    const int64_t threads = *devices + std::max(1U, std::thread::hardware_concurrency());
    set_ = base::set_variable(kVariable, std::to_string(threads));
  }
  ~ThreadsForCollectives() {
    if (set_) base::unset_variable(kVariable);
  }
  ThreadsForCollectives(const ThreadsForCollectives&) = delete;
  ThreadsForCollectives& operator=(const ThreadsForCollectives&) = delete;

 private:
  static constexpr const char* kVariable = "PJRT_NPROC";
  bool set_ = false;
};

}  // namespace

std::shared_ptr<Client> Client::create(std::shared_ptr<Plugin> plugin, const NamedValues& options,
                                       std::shared_ptr<KeyValueStore> store) {
  const std::vector<PJRT_NamedValue> values = pjrt::to_pjrt(options);
  auto args = make_args<PJRT_Client_Create_Args>();
  args.create_options = values.data();
  args.num_options = values.size();
  if (store) set_key_value_callbacks(args, *store);
  const ThreadsForCollectives threads(options);
  const base::WithoutSignals its_threads;
  try {
    TORCH_TPU_PJRT_CALL(plugin->api(), PJRT_Client_Create, args);
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    // XLA:CPU lets an option of the wrong type escape as a C++ exception.
    throw Error(PJRT_Error_Code_INVALID_ARGUMENT, "PJRT_Client_Create",
                std::string(error.what()) + ". Does an option have the wrong type?");
  }
  std::shared_ptr<Client> client(new Client(std::move(plugin), std::move(store), args.client));
  client->query();
  return client;
}

NamedValues Client::default_options(PlatformKind kind) {
  switch (kind) {
    case PlatformKind::kCpu:
      return {{"cpu_device_count", static_cast<int64_t>(base::env_cpu_devices())}};
    case PlatformKind::kCuda:
      // By default XLA takes three quarters of the GPU at once, which leaves
      // nothing for torch's own CUDA tensors in the same process.
      return {{"platform_name", std::string("cuda")},
              {"allocator", std::string("default")},
              {"preallocate", false}};
    case PlatformKind::kTpu:
    case PlatformKind::kOther:
      break;
  }
  return {};
}

Client::Client(std::shared_ptr<Plugin> plugin, std::shared_ptr<KeyValueStore> store,
               PJRT_Client* raw)
    : plugin_(std::move(plugin)), store_(std::move(store)), api_(plugin_->api()), raw_(raw) {}

Client::~Client() {
  auto args = make_args<PJRT_Client_Destroy_Args>();
  args.client = raw_;
  TORCH_TPU_PJRT_CALL_NOEXCEPT(api_, PJRT_Client_Destroy, args);
}

void Client::query() {
  auto name = make_args<PJRT_Client_PlatformName_Args>();
  name.client = raw_;
  TORCH_TPU_PJRT_CALL(api_, PJRT_Client_PlatformName, name);
  platform_name_.assign(name.platform_name, name.platform_name_size);

  auto version = make_args<PJRT_Client_PlatformVersion_Args>();
  version.client = raw_;
  TORCH_TPU_PJRT_CALL(api_, PJRT_Client_PlatformVersion, version);
  platform_version_.assign(version.platform_version, version.platform_version_size);

  auto process = make_args<PJRT_Client_ProcessIndex_Args>();
  process.client = raw_;
  TORCH_TPU_PJRT_CALL(api_, PJRT_Client_ProcessIndex, process);
  process_index_ = process.process_index;

  auto ours = make_args<PJRT_Client_AddressableDevices_Args>();
  ours.client = raw_;
  TORCH_TPU_PJRT_CALL(api_, PJRT_Client_AddressableDevices, ours);
  std::map<PJRT_Device*, int> ordinals;
  for (size_t i = 0; i < ours.num_addressable_devices; ++i) {
    const int ordinal = static_cast<int>(i);
    ordinals[ours.addressable_devices[i]] = ordinal;
    addressable_.emplace_back(api_, ours.addressable_devices[i], ordinal);
  }

  auto all = make_args<PJRT_Client_Devices_Args>();
  all.client = raw_;
  TORCH_TPU_PJRT_CALL(api_, PJRT_Client_Devices, all);
  for (size_t i = 0; i < all.num_devices; ++i) {
    const auto found = ordinals.find(all.devices[i]);
    devices_.emplace_back(api_, all.devices[i], found == ordinals.end() ? -1 : found->second);
  }
}

Buffer Client::from_host(const void* data, PJRT_Buffer_Type type, std::span<const int64_t> dims,
                         std::span<const int64_t> byte_strides, HostSemantics semantics,
                         PJRT_Device* device, std::function<void()> on_host_buffer_done) const {
  auto done = std::make_shared<Once>(std::move(on_host_buffer_done));
  if (!byte_strides.empty() && byte_strides.size() != dims.size()) {
    // Checked here, since XLA:CPU aborts the process.
    throw Error(PJRT_Error_Code_INVALID_ARGUMENT, "PJRT_Client_BufferFromHostBuffer",
                "expected " + std::to_string(dims.size()) + " byte strides, got " +
                    std::to_string(byte_strides.size()) + ".");
  }
  auto args = make_args<PJRT_Client_BufferFromHostBuffer_Args>();
  args.client = raw_;
  args.data = data;
  args.type = type;
  args.dims = dims.data();
  args.num_dims = dims.size();
  args.byte_strides = byte_strides.empty() ? nullptr : byte_strides.data();
  args.num_byte_strides = byte_strides.size();
  args.host_buffer_semantics = to_pjrt(semantics);
  args.device = device;
  TORCH_TPU_PJRT_CALL(api_, PJRT_Client_BufferFromHostBuffer, args);
  Buffer buffer(api_, args.buffer);
  const Event event(api_, args.done_with_host_buffer);
  if (*done) {
    try {
      event.on_ready([done](const Error*) { done->run(); });
    } catch (...) {
      // Registered nowhere: the memory must still not be released too early.
      buffer.reset();
      event.await();
      throw;
    }
  }
  return buffer;
}

Buffer Client::view_of_device_memory(void* data, PJRT_Buffer_Type type,
                                     std::span<const int64_t> dims, PJRT_Device* device,
                                     std::function<void()> on_delete) const {
  std::vector<int64_t> order(dims.size());
  std::iota(order.rbegin(), order.rend(), 0);
  auto layout = make_args<PJRT_Buffer_MemoryLayout>();
  layout.type = PJRT_Buffer_MemoryLayout_Type_Tiled;
  layout.tiled = make_args<PJRT_Buffer_MemoryLayout_Tiled>();
  layout.tiled.minor_to_major = order.data();
  layout.tiled.minor_to_major_size = order.size();

  auto done = std::make_unique<Once>(std::move(on_delete));
  auto args = make_args<PJRT_Client_CreateViewOfDeviceBuffer_Args>();
  args.client = raw_;
  args.device_buffer_ptr = data;
  args.dims = dims.data();
  args.num_dims = dims.size();
  args.element_type = type;
  args.layout = &layout;
  args.device = device;
  // Always given: XLA:CPU calls it even when it is null.
  args.on_delete_callback = [](void*, void* arg) {
    base::happens_after(arg);
    delete static_cast<Once*>(arg);
  };
  args.on_delete_callback_arg = done.get();
  base::happens_before(done.get());
  TORCH_TPU_PJRT_CALL(api_, PJRT_Client_CreateViewOfDeviceBuffer, args);
  static_cast<void>(done.release());  // the callback owns it now
  return Buffer(api_, args.buffer);
}

Buffer Client::uninitialized(PJRT_Buffer_Type type, std::span<const int64_t> dims,
                             PJRT_Device* device) const {
  auto args = make_args<PJRT_Client_CreateUninitializedBuffer_Args>();
  args.client = raw_;
  args.shape_dims = dims.data();
  args.shape_num_dims = dims.size();
  args.shape_element_type = type;
  args.device = device;
  TORCH_TPU_PJRT_CALL(api_, PJRT_Client_CreateUninitializedBuffer, args);
  return Buffer(api_, args.buffer);
}

LoadedExecutable Client::compile(std::string_view program, const CompileOptions& options,
                                 std::string_view format) const {
  return compile_with(program, options.serialize(), format);
}

LoadedExecutable Client::compile_with(std::string_view program, std::string_view serialized_options,
                                      std::string_view format) const {
  need_code_room();
  auto code = make_args<PJRT_Program>();
  code.code = const_cast<char*>(program.data());  // read only, but the struct is shared with "out"
  code.code_size = program.size();
  code.format = format.data();
  code.format_size = format.size();
  auto args = make_args<PJRT_Client_Compile_Args>();
  args.client = raw_;
  args.program = &code;
  args.compile_options = serialized_options.data();
  args.compile_options_size = serialized_options.size();
  TORCH_TPU_PJRT_CALL(api_, PJRT_Client_Compile, args);
  after_compilation();
  return LoadedExecutable(shared_from_this(), args.executable);
}

LoadedExecutable Client::deserialize(std::string_view bytes,
                                     std::string_view serialized_options) const {
  need_code_room();
  auto args = make_args<PJRT_Executable_DeserializeAndLoad_Args>();
  args.client = raw_;
  args.serialized_executable = bytes.data();
  args.serialized_executable_size = bytes.size();
  if (!serialized_options.empty()) {
    args.overridden_serialized_compile_options = serialized_options.data();
    args.overridden_serialized_compile_options_size = serialized_options.size();
  }
  TORCH_TPU_PJRT_CALL(api_, PJRT_Executable_DeserializeAndLoad, args);
  return LoadedExecutable(shared_from_this(), args.loaded_executable);
}

}  // namespace torch_tpu::pjrt
