// Plugin: a PJRT plugin library loaded into this process. Which library to load
// is decided in plugin_resolve.h.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "csrc/pjrt/api.h"
#include "csrc/pjrt/named_value.h"

namespace torch_tpu::pjrt {

enum class PlatformKind { kCpu, kCuda, kTpu, kOther };
const char* to_string(PlatformKind kind) noexcept;  // "cpu", "cuda", "tpu", "other"

// The oldest minor version of the PJRT API we drive (major must be equal): the
// oldest this code has been run with. Newer ones only append fields.
inline constexpr int kMinApiMinor = 81;

// Throws FAILED_PRECONDITION naming both versions unless we can drive the plugin.
void check_api_version(const PJRT_Api* api, const std::string& path);

// Once loaded, a plugin stays until the process ends: its threads outlive any
// handle, so it is never dlclosed.
class Plugin {
 public:
  // Loads and initializes the library, or returns the one already loaded from
  // the same file. Thread-safe. `kind` says how to prepare the process (the CUDA
  // libraries, the TPU variables); kOther guesses it from the file name. Throws
  // Error: NOT_FOUND (no such file), INVALID_ARGUMENT (not a plugin),
  // FAILED_PRECONDITION (version), or what the plugin itself reports.
  static std::shared_ptr<Plugin> load(const std::string& path,
                                      PlatformKind kind = PlatformKind::kOther);

  Plugin(const Plugin&) = delete;
  Plugin& operator=(const Plugin&) = delete;

  const PJRT_Api* api() const noexcept { return api_; }
  const std::string& path() const noexcept { return path_; }
  PlatformKind kind() const noexcept { return kind_; }
  int api_major() const noexcept { return api_->pjrt_api_version.major_version; }
  int api_minor() const noexcept { return api_->pjrt_api_version.minor_version; }

  // xla_version, stablehlo_current_version, stablehlo_minimum_version, ...
  const NamedValues& attributes() const noexcept { return attributes_; }
  // "1.13.3"; empty when the plugin does not tell.
  std::string attribute_string(const std::string& name) const;

  // The extension of that type, or null. Lives as long as the process.
  const PJRT_Extension_Base* extension(PJRT_Extension_Type type) const noexcept;

 private:
  Plugin(std::string path, PlatformKind kind, const PJRT_Api* api);

  std::string path_;
  PlatformKind kind_;
  const PJRT_Api* api_;
  NamedValues attributes_;
};

}  // namespace torch_tpu::pjrt
