// The process-wide client: which plugin, when it starts (on first use, never at import), and that a
// forked child must not touch it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "csrc/pjrt/client.h"
#include "csrc/pjrt/plugin_resolve.h"

namespace torch_tpu::pjrt {

class Runtime {
 public:
  // Starts the client on first use; thread-safe. Throws pjrt::Error or std::runtime_error with what
  // to do when the plugin is missing or wrong, and again on the next call (nothing is half
  // started). In a child forked after the start it throws: XLA's threads do not survive a fork.
  static Runtime& get();
  static bool started() noexcept;
  static bool in_bad_fork() noexcept;

  // Without starting the client where that can be avoided (XLA:CPU). -1: unknown until started.
  static int device_count_hint() noexcept;
  // Can a plugin be found? Never throws, never starts the client.
  static bool available() noexcept;

  const Client& client() const noexcept { return *client_; }
  const PJRT_Api* api() const noexcept { return client_->api(); }
  PlatformKind kind() const noexcept { return kind_; }
  // Device memory is host memory: reads need no transfer.
  bool host_addressable() const noexcept { return kind_ == PlatformKind::kCpu; }
  int device_count() const noexcept { return static_cast<int>(devices_.size()); }
  PJRT_Device* device(int index) const { return devices_.at(static_cast<size_t>(index)); }
  // Bytes of memory the device has; 0 when unknown.
  int64_t device_memory(int index) const;
  // Options every single-device program is compiled with, encoded once.
  const std::string& compile_options() const noexcept { return compile_options_; }
  // Those of programs that should rather compile soon than run fastest; the same where the plugin
  // has none that help.
  const std::string& quick_compile_options() const noexcept { return quick_compile_options_; }
  bool compiles_quickly() const noexcept { return quick_compile_options_ != compile_options_; }

 private:
  Runtime();
  std::shared_ptr<Client> client_;
  PlatformKind kind_;
  std::vector<PJRT_Device*> devices_;
  std::string compile_options_;
  std::string quick_compile_options_;
};

}  // namespace torch_tpu::pjrt
