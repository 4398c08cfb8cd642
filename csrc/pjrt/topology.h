// Topology: devices that are not attached, to compile for ahead of time.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "csrc/pjrt/api.h"
#include "csrc/pjrt/compile_options.h"
#include "csrc/pjrt/device.h"
#include "csrc/pjrt/executable.h"
#include "csrc/pjrt/plugin.h"

namespace torch_tpu::pjrt {

// Move-only; const methods are thread-safe. A bad name can abort the process
// inside libtpu: validate names, or use a child process.
class Topology {
 public:
  // For example "v5e:2x2". Throws Error for names the plugin refuses and
  // UNIMPLEMENTED where it has no topologies (XLA:CPU).
  static Topology create(std::shared_ptr<Plugin> plugin, const std::string& name,
                         const NamedValues& options = {});

  Topology(Topology&& other) noexcept;
  Topology& operator=(Topology&& other) noexcept;
  Topology(const Topology&) = delete;
  Topology& operator=(const Topology&) = delete;
  ~Topology() { reset(); }

  PJRT_TopologyDescription* raw() const noexcept { return raw_; }
  const Plugin& plugin() const noexcept { return *plugin_; }
  std::string platform_name() const;
  std::string platform_version() const;
  NamedValues attributes() const;
  std::vector<DeviceDescription> devices() const;

  // Options should come from CompileOptions::topology(). The executable can be
  // asked and serialized, not run. It must not outlive the plugin, which never
  // unloads.
  Executable compile(std::string_view program, const CompileOptions& options,
                     std::string_view format = "mlir") const;

 private:
  Topology(std::shared_ptr<Plugin> plugin, PJRT_TopologyDescription* raw) noexcept;
  void reset() noexcept;

  std::shared_ptr<Plugin> plugin_;
  PJRT_TopologyDescription* raw_ = nullptr;
};

}  // namespace torch_tpu::pjrt
