// Which plugin library to load: from "auto", a name, or a path, to a file. Looks
// at files only; loads nothing.
#pragma once

#include <string>
#include <vector>

#include "csrc/pjrt/plugin.h"

namespace torch_tpu::pjrt {

struct PluginSpec {
  PlatformKind kind = PlatformKind::kOther;
  std::string path;
};

// The site-packages-like folders in which plugins are looked for. Process-wide,
// thread-safe; set by the Python layer before the first device is used.
void set_search_dirs(std::vector<std::string> dirs);
std::vector<std::string> search_dirs();

// `spec` is auto, cpu, cuda, tpu, or a path to a library (anything with a '/' or
// ending in ".so"). auto is TPU when a chip and libtpu are there, else XLA:CPU;
// it never picks CUDA. Throws Error: NOT_FOUND, with the pip package to install,
// or INVALID_ARGUMENT for an unknown name.
PluginSpec resolve_plugin(const std::string& spec, const std::vector<std::string>& search_dirs);

// Whether a TPU chip is attached. The roots are parameters for the tests.
bool tpu_chip_present(const std::string& dev_root = "/dev",
                      const std::string& pci_root = "/sys/bus/pci/devices");

}  // namespace torch_tpu::pjrt
