// The known plugins, where their wheels put them, and how to see a TPU chip.
#include "csrc/pjrt/plugin_resolve.h"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <string_view>
#include <utility>

namespace torch_tpu::pjrt {
namespace {

namespace fs = std::filesystem;

struct KnownPlugin {
  PlatformKind kind;
  const char* name;
  const char* package;  // what to pip install
  std::vector<const char*> paths;
};

const std::vector<KnownPlugin>& known_plugins() {
  static const auto& plugins = *new std::vector<KnownPlugin>{
      {PlatformKind::kCpu, "cpu", "xla-cpu-pjrt", {"xla_plugins/xla_cpu_pjrt/xla_cpu_pjrt.so"}},
      {PlatformKind::kCuda,
       "cuda",
       "jax-cuda13-pjrt",
       {"jax_plugins/xla_cuda13/xla_cuda_plugin.so", "xla_plugins/xla_cuda13/xla_cuda_plugin.so",
        "jax_plugins/xla_cuda12/xla_cuda_plugin.so", "xla_plugins/xla_cuda12/xla_cuda_plugin.so"}},
      {PlatformKind::kTpu, "tpu", "libtpu", {"libtpu/libtpu.so"}},
  };
  return plugins;
}

std::mutex dirs_mutex;
std::vector<std::string>& dirs() {
  static auto& value = *new std::vector<std::string>();
  return value;
}

// The first file found, or empty.
std::string find(const KnownPlugin& plugin, const std::vector<std::string>& search_dirs) {
  std::error_code ignored;
  for (const char* path : plugin.paths) {
    for (const auto& dir : search_dirs) {
      const fs::path candidate = fs::path(dir) / path;
      if (fs::is_regular_file(candidate, ignored)) return candidate.string();
    }
  }
  return {};
}

std::string join(const std::vector<std::string>& parts) {
  std::string result;
  for (const auto& part : parts) result += (result.empty() ? "" : ", ") + part;
  return result.empty() ? "no folders" : result;
}

PlatformKind guess_kind(std::string_view path) {
  const std::string_view name = path.substr(path.rfind('/') + 1);
  if (name.find("libtpu") != name.npos) return PlatformKind::kTpu;
  if (name.find("cuda") != name.npos) return PlatformKind::kCuda;
  if (name.find("cpu") != name.npos) return PlatformKind::kCpu;
  return PlatformKind::kOther;
}

PluginSpec require(const KnownPlugin& plugin, const std::vector<std::string>& search_dirs) {
  const std::string path = find(plugin, search_dirs);
  if (path.empty()) {
    throw Error(PJRT_Error_Code_NOT_FOUND, "resolve_plugin",
                std::string("the '") + plugin.name + "' plugin is not installed (looked in " +
                    join(search_dirs) + "). Run: pip install " + plugin.package +
                    ", or set TORCH_TPU_PLUGIN to the path of a PJRT plugin library.");
  }
  return {plugin.kind, path};
}

const KnownPlugin& known(PlatformKind kind) {
  return *std::find_if(known_plugins().begin(), known_plugins().end(),
                       [kind](const KnownPlugin& p) { return p.kind == kind; });
}

// Any accel* is a TPU driver's; a vfio group can be any device that is passed
// through, and counts only together with a Google device on the PCI bus.
bool has_vfio_group(const std::string& dev_root) {
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(fs::path(dev_root) / "vfio", ignored)) {
    const std::string name = entry.path().filename().string();
    if (!name.empty() && std::all_of(name.begin(), name.end(),
                                     [](unsigned char c) { return std::isdigit(c) != 0; })) {
      return true;
    }
  }
  return false;
}

bool has_accel(const std::string& dev_root) {
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(dev_root, ignored)) {
    const std::string name = entry.path().filename().string();
    if (name.size() > 5 && name.starts_with("accel") &&
        std::isdigit(static_cast<unsigned char>(name[5])) != 0) {
      return true;
    }
  }
  return false;
}

bool has_google_pci_device(const std::string& pci_root) {
  static constexpr std::string_view kGoogleVendor = "0x1ae0";
  // Google's virtual network card and disk have the same vendor; TPUs are
  // processing accelerators (class 0x12) or "unassigned" (0xff and 0x00).
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(pci_root, ignored)) {
    std::string vendor;
    std::string device_class;
    std::ifstream(entry.path() / "vendor") >> vendor;
    std::ifstream(entry.path() / "class") >> device_class;
    if (vendor != kGoogleVendor) continue;
    const bool network = device_class.starts_with("0x02");
    const bool storage = device_class.starts_with("0x01");
    if (!network && !storage) return true;
  }
  return false;
}

}  // namespace

void set_search_dirs(std::vector<std::string> value) {
  const std::lock_guard lock(dirs_mutex);
  dirs() = std::move(value);
}

std::vector<std::string> search_dirs() {
  const std::lock_guard lock(dirs_mutex);
  return dirs();
}

bool tpu_chip_present(const std::string& dev_root, const std::string& pci_root) {
  return (has_accel(dev_root) || has_vfio_group(dev_root)) && has_google_pci_device(pci_root);
}

PluginSpec resolve_plugin(const std::string& spec, const std::vector<std::string>& search_dirs) {
  if (spec.find('/') != spec.npos || spec.ends_with(".so")) return {guess_kind(spec), spec};
  if (spec == "auto") {
    if (tpu_chip_present()) {
      const std::string path = find(known(PlatformKind::kTpu), search_dirs);
      if (!path.empty()) return {PlatformKind::kTpu, path};
    }
    return require(known(PlatformKind::kCpu), search_dirs);
  }
  for (const auto& plugin : known_plugins()) {
    if (spec == plugin.name) return require(plugin, search_dirs);
  }
  throw Error(
      PJRT_Error_Code_INVALID_ARGUMENT, "resolve_plugin",
      "expected auto, cpu, cuda, tpu, or the path of a plugin library, got '" + spec + "'.");
}

}  // namespace torch_tpu::pjrt
