// Client: the devices a plugin offers, transfers to them, and compilation.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "csrc/pjrt/api.h"
#include "csrc/pjrt/buffer.h"
#include "csrc/pjrt/compile_options.h"
#include "csrc/pjrt/device.h"
#include "csrc/pjrt/executable.h"
#include "csrc/pjrt/key_value.h"
#include "csrc/pjrt/named_value.h"
#include "csrc/pjrt/plugin.h"

namespace torch_tpu::pjrt {

// Until when the host memory given to from_host must stay as it is.
enum class HostSemantics {
  kOnlyDuringCall,          // the plugin copies before it returns
  kUntilTransferCompletes,  // until on_host_buffer_done
  kZeroCopy,                // as long as the buffer lives; the device may read it in place
  kMutableZeroCopy,         // the same, and a program it is donated to may write it
};

// Thread-safe: all methods are const and may be called concurrently.
class Client : public std::enable_shared_from_this<Client> {
 public:
  // The client keeps the plugin (and the store) alive. Buffers must be destroyed
  // before the client; executables keep it alive themselves.
  static std::shared_ptr<Client> create(std::shared_ptr<Plugin> plugin,
                                        const NamedValues& options = {},
                                        std::shared_ptr<KeyValueStore> store = nullptr);
  // What we pass to a plugin of that kind unless told otherwise: the number of
  // devices for XLA:CPU, no memory grabbed up front for CUDA.
  static NamedValues default_options(PlatformKind kind);

  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;
  ~Client();

  const PJRT_Api* api() const noexcept { return api_; }
  PJRT_Client* raw() const noexcept { return raw_; }
  const Plugin& plugin() const noexcept { return *plugin_; }

  const std::string& platform_name() const noexcept { return platform_name_; }
  const std::string& platform_version() const noexcept { return platform_version_; }
  int process_index() const noexcept { return process_index_; }

  // All devices, those of other processes included; and ours, by local ordinal.
  const std::vector<Device>& devices() const noexcept { return devices_; }
  const std::vector<Device>& addressable_devices() const noexcept { return addressable_; }

  // Copies (or, for the zero-copy semantics, views) host memory. `byte_strides`
  // is empty for row-major. `on_host_buffer_done` is called exactly once, when
  // the plugin no longer needs `data`, also when this throws; possibly on a
  // thread of the plugin, and with kZeroCopy not before the buffer dies. XLA:CPU
  // reads in place only when `data` is 64-byte aligned and dense, else it copies.
  Buffer from_host(const void* data, PJRT_Buffer_Type type, std::span<const int64_t> dims,
                   std::span<const int64_t> byte_strides, HostSemantics semantics,
                   PJRT_Device* device, std::function<void()> on_host_buffer_done = {}) const;

  // A view of memory somebody else owns on `device`, dense and row-major; never
  // copies. `on_delete` is called exactly once when the view is done with it (or
  // when this throws). A program it is donated to may write it. On XLA:CPU the
  // address must be 64-byte aligned.
  Buffer view_of_device_memory(void* data, PJRT_Buffer_Type type, std::span<const int64_t> dims,
                               PJRT_Device* device, std::function<void()> on_delete = {}) const;

  // Device memory with undefined contents; UNIMPLEMENTED on some plugins.
  Buffer uninitialized(PJRT_Buffer_Type type, std::span<const int64_t> dims,
                       PJRT_Device* device) const;

  // `format` is "mlir" (StableHLO text or bytecode) or "hlo" (HloModuleProto).
  LoadedExecutable compile(std::string_view program, const CompileOptions& options,
                           std::string_view format = "mlir") const;
  // The same with options already encoded (they are constant for most programs).
  LoadedExecutable compile_with(std::string_view program, std::string_view serialized_options,
                                std::string_view format = "mlir") const;

  // Loads what Executable::serialize gave. The bytes are code: only from a
  // trusted place. Options as in the executable unless given (encoded).
  LoadedExecutable deserialize(std::string_view bytes,
                               std::string_view serialized_options = {}) const;

 private:
  Client(std::shared_ptr<Plugin> plugin, std::shared_ptr<KeyValueStore> store, PJRT_Client* raw);
  void query();

  std::shared_ptr<Plugin> plugin_;
  std::shared_ptr<KeyValueStore> store_;
  const PJRT_Api* api_;
  PJRT_Client* raw_;
  std::string platform_name_;
  std::string platform_version_;
  int process_index_ = 0;
  std::vector<Device> devices_;
  std::vector<Device> addressable_;
};

}  // namespace torch_tpu::pjrt
