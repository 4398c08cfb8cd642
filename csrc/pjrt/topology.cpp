// Topology: queries and ahead-of-time compilation.
#include "csrc/pjrt/topology.h"

#include <utility>

#include "csrc/pjrt/call.h"

namespace torch_tpu::pjrt {

Topology Topology::create(std::shared_ptr<Plugin> plugin, const std::string& name,
                          const NamedValues& options) {
  const std::vector<PJRT_NamedValue> values = to_pjrt(options);
  auto args = make_args<PJRT_TopologyDescription_Create_Args>();
  args.topology_name = name.data();
  args.topology_name_size = name.size();
  args.create_options = values.data();
  args.num_options = values.size();
  TORCH_TPU_PJRT_CALL(plugin->api(), PJRT_TopologyDescription_Create, args);
  return Topology(std::move(plugin), args.topology);
}

Topology::Topology(std::shared_ptr<Plugin> plugin, PJRT_TopologyDescription* raw) noexcept
    : plugin_(std::move(plugin)), raw_(raw) {}

Topology::Topology(Topology&& other) noexcept
    : plugin_(other.plugin_), raw_(std::exchange(other.raw_, nullptr)) {}

Topology& Topology::operator=(Topology&& other) noexcept {
  if (this != &other) {
    reset();
    plugin_ = other.plugin_;
    raw_ = std::exchange(other.raw_, nullptr);
  }
  return *this;
}

void Topology::reset() noexcept {
  if (raw_ == nullptr) return;
  auto args = make_args<PJRT_TopologyDescription_Destroy_Args>();
  args.topology = std::exchange(raw_, nullptr);
  TORCH_TPU_PJRT_CALL_NOEXCEPT(plugin_->api(), PJRT_TopologyDescription_Destroy, args);
}

std::string Topology::platform_name() const {
  auto args = make_args<PJRT_TopologyDescription_PlatformName_Args>();
  args.topology = raw_;
  TORCH_TPU_PJRT_CALL(plugin_->api(), PJRT_TopologyDescription_PlatformName, args);
  return std::string(args.platform_name, args.platform_name_size);
}

std::string Topology::platform_version() const {
  auto args = make_args<PJRT_TopologyDescription_PlatformVersion_Args>();
  args.topology = raw_;
  TORCH_TPU_PJRT_CALL(plugin_->api(), PJRT_TopologyDescription_PlatformVersion, args);
  return std::string(args.platform_version, args.platform_version_size);
}

NamedValues Topology::attributes() const {
  auto args = make_args<PJRT_TopologyDescription_Attributes_Args>();
  args.topology = raw_;
  TORCH_TPU_PJRT_CALL(plugin_->api(), PJRT_TopologyDescription_Attributes, args);
  return from_pjrt(args.attributes, args.num_attributes);
}

std::vector<DeviceDescription> Topology::devices() const {
  auto args = make_args<PJRT_TopologyDescription_GetDeviceDescriptions_Args>();
  args.topology = raw_;
  TORCH_TPU_PJRT_CALL(plugin_->api(), PJRT_TopologyDescription_GetDeviceDescriptions, args);
  std::vector<DeviceDescription> result;
  for (size_t i = 0; i < args.num_descriptions; ++i) {
    result.emplace_back(plugin_->api(), args.descriptions[i]);
  }
  return result;
}

Executable Topology::compile(std::string_view program, const CompileOptions& options,
                             std::string_view format) const {
  const std::string serialized = options.serialize();
  auto code = make_args<PJRT_Program>();
  code.code = const_cast<char*>(program.data());  // read only, but the struct is shared with "out"
  code.code_size = program.size();
  code.format = format.data();
  code.format_size = format.size();
  auto args = make_args<PJRT_Compile_Args>();
  args.topology = raw_;
  args.program = &code;
  args.compile_options = serialized.data();
  args.compile_options_size = serialized.size();
  TORCH_TPU_PJRT_CALL(plugin_->api(), PJRT_Compile, args);
  return Executable(plugin_->api(), args.executable);
}

}  // namespace torch_tpu::pjrt
