// Loading a plugin library: checks with readable errors, the per-process cache.
#include "csrc/pjrt/plugin.h"

#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <utility>

#include <dlfcn.h>

#include "csrc/pjrt/call.h"
#include "csrc/pjrt/plugin_prepare.h"
#include "csrc/pjrt/plugin_resolve.h"

namespace torch_tpu::pjrt {
namespace {

namespace fs = std::filesystem;

constexpr const char* kFunction = "Plugin::load";
constexpr const char* kNextStep =
    " Set TORCH_TPU_PLUGIN to auto, cpu, cuda, tpu, or the path of a PJRT plugin library.";

[[noreturn]] void reject(PJRT_Error_Code code, const std::string& message) {
  throw Error(code, kFunction, message + kNextStep);
}

// Checks what dlopen would report in words nobody understands.
void check_file(const std::string& path) {
  std::error_code error;
  if (!fs::exists(path, error)) {
    reject(PJRT_Error_Code_NOT_FOUND, "the plugin library '" + path + "' does not exist.");
  }
  if (!fs::is_regular_file(path, error)) {
    reject(PJRT_Error_Code_INVALID_ARGUMENT, "'" + path + "' is not a file.");
  }
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    reject(PJRT_Error_Code_PERMISSION_DENIED, "the plugin library '" + path + "' is not readable.");
  }
  char magic[4] = {};
  file.read(magic, sizeof(magic));
  if (std::memcmp(magic, "\177ELF", sizeof(magic)) != 0) {
    reject(PJRT_Error_Code_INVALID_ARGUMENT,
           "'" + path + "' is not a shared library (no ELF header).");
  }
}

const PJRT_Api* open(const std::string& path) {
  void* library = dlopen(path.c_str(), RTLD_LAZY | RTLD_LOCAL);
  if (library == nullptr) {
    const char* reason = dlerror();
    reject(PJRT_Error_Code_INVALID_ARGUMENT,
           "the plugin library '" + path +
               "' does not load: " + (reason != nullptr ? reason : "unknown reason") + ".");
  }
  using GetPjrtApi = const PJRT_Api* (*)();
  const auto get_api = reinterpret_cast<GetPjrtApi>(dlsym(library, "GetPjrtApi"));
  if (get_api == nullptr) {
    dlclose(library);  // some other library: nothing of it is in use
    reject(PJRT_Error_Code_INVALID_ARGUMENT,
           "'" + path + "' is a library but not a PJRT plugin (no GetPjrtApi symbol).");
  }
  const PJRT_Api* api = get_api();
  if (api == nullptr) {
    reject(PJRT_Error_Code_INTERNAL, "GetPjrtApi of '" + path + "' returned nothing.");
  }
  return api;
}

NamedValues query_attributes(const PJRT_Api* api) {
  auto args = make_args<PJRT_Plugin_Attributes_Args>();
  TORCH_TPU_PJRT_CALL(api, PJRT_Plugin_Attributes, args);
  return from_pjrt(args.attributes, args.num_attributes);
}

}  // namespace

const char* to_string(PlatformKind kind) noexcept {
  switch (kind) {
    case PlatformKind::kCpu:
      return "cpu";
    case PlatformKind::kCuda:
      return "cuda";
    case PlatformKind::kTpu:
      return "tpu";
    case PlatformKind::kOther:
      return "other";
  }
  return "other";
}

void check_api_version(const PJRT_Api* api, const std::string& path) {
  const auto& version = api->pjrt_api_version;
  if (version.major_version == PJRT_API_MAJOR && version.minor_version >= kMinApiMinor) return;
  const std::string ours = std::to_string(PJRT_API_MAJOR) + ".";
  throw Error(PJRT_Error_Code_FAILED_PRECONDITION, kFunction,
              "the plugin '" + path + "' has PJRT API " + api_version_string(api) +
                  ", but this build (API " + ours + std::to_string(PJRT_API_MINOR) + ") drives " +
                  ours + std::to_string(kMinApiMinor) + " and newer " + ours +
                  "x. Install another version of the plugin.");
}

std::shared_ptr<Plugin> Plugin::load(const std::string& path, PlatformKind kind) {
  check_file(path);
  const std::string key = fs::canonical(path).string();

  // Held while loading: two threads asking for one plugin must get the same.
  static auto& mutex = *new std::mutex();
  static auto& loaded = *new std::map<std::string, std::shared_ptr<Plugin>>();
  const std::lock_guard lock(mutex);
  const auto found = loaded.find(key);
  if (found != loaded.end()) return found->second;

  if (kind == PlatformKind::kOther) kind = resolve_plugin(key, {}).kind;
  const ProcessPreparation preparation(kind, search_dirs());
  const PJRT_Api* api = open(key);
  check_api_version(api, key);
  auto args = make_args<PJRT_Plugin_Initialize_Args>();
  TORCH_TPU_PJRT_CALL(api, PJRT_Plugin_Initialize, args);
  std::shared_ptr<Plugin> plugin(new Plugin(key, kind, api));
  plugin->attributes_ = query_attributes(api);
  loaded.emplace(key, plugin);
  return plugin;
}

Plugin::Plugin(std::string path, PlatformKind kind, const PJRT_Api* api)
    : path_(std::move(path)), kind_(kind), api_(api) {}

std::string Plugin::attribute_string(const std::string& name) const {
  const auto found = attributes_.find(name);
  if (found == attributes_.end()) return {};
  // Versions come as lists of numbers.
  if (const auto* parts = std::get_if<std::vector<int64_t>>(&found->second)) {
    std::string result;
    for (const int64_t part : *parts) {
      result += (result.empty() ? "" : ".") + std::to_string(part);
    }
    return result;
  }
  return pjrt::to_string(found->second);
}

const PJRT_Extension_Base* Plugin::extension(PJRT_Extension_Type type) const noexcept {
  for (const auto* e = api_->extension_start; e != nullptr; e = e->next) {
    if (e->type == type) return e;
  }
  return nullptr;
}

}  // namespace torch_tpu::pjrt
