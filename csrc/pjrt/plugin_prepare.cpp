// Variables and libraries a plugin needs before dlopen.
#include "csrc/pjrt/plugin_prepare.h"

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <string_view>

#include <dlfcn.h>

#include "csrc/base/env.h"
#include "csrc/base/variables.h"
#include "csrc/pjrt/host_memory.h"
#include "csrc/pjrt/plugin_resolve.h"

namespace torch_tpu::pjrt {
namespace {

namespace fs = std::filesystem;

// The level below which XLA drops its log lines. XLA reads it while it is loaded,
// so it is taken back afterwards: a child process or another library that knows
// the variable is none of our business.
constexpr const char* kLogLevel = "TF_CPP_MIN_LOG_LEVEL";

// XLA:CPU's LLVM unrolls loops of a few dozen turns whole, the exponential in them included: an odd
// size then takes twice as long to compile and runs no faster. Only this variable can say so, and
// it is read by the first compilation.
constexpr const char* kXlaFlags = "XLA_FLAGS";

std::atomic<bool> flags_set{false};

void prepare_tpu() {
  const int level = base::env_plugin_log_level();
  base::set_variable("TPU_MIN_LOG_LEVEL", std::to_string(level));
  base::set_variable("TPU_STDERR_LOG_LEVEL", std::to_string(level));
  if (level == 3) base::set_variable("TPU_LOG_DIR", "disabled");
  if (tpu_chip_present()) return;
  // No chip, so no TPU virtual machine: libtpu would wait minutes for a metadata
  // server, and its lock file would keep a second process out.
  base::set_variable("TPU_SKIP_MDS_QUERY", "1");
  base::set_variable("ALLOW_MULTIPLE_LIBTPU_LOAD", "1");
  base::set_variable("TPU_ACCELERATOR_TYPE", "v5litepod-4");
  base::set_variable("TPU_WORKER_HOSTNAMES", "localhost");
}

// The CUDA plugin links against libraries that live in the nvidia wheels, which
// are not on the loader's path. Loaded globally, they satisfy its dependencies.
// In an order in which each finds those it needs itself.
void load_cuda_libraries(const std::vector<std::string>& search_dirs) {
  static constexpr std::string_view kLibraries[] = {
      "libcudart.so", "libnvJitLink.so", "libnvrtc.so", "libcublasLt.so",
      "libcublas.so", "libcusparse.so",  "libcufft.so", "libcusolver.so",
      "libcupti.so",  "libnccl.so",      "libcudnn.so", "libnvshmem_host.so"};
  std::vector<fs::path> files;
  std::error_code ignored;
  for (const auto& dir : search_dirs) {
    for (const auto& package : fs::directory_iterator(fs::path(dir) / "nvidia", ignored)) {
      for (const auto& file : fs::directory_iterator(package.path() / "lib", ignored)) {
        files.push_back(file.path());
      }
    }
  }
  std::sort(files.begin(), files.end());
  for (const auto library : kLibraries) {
    for (const auto& file : files) {
      const std::string name = file.filename().string();
      if (!name.starts_with(library)) continue;
      // Best effort: the library may be on the loader's path after all.
      if (dlopen(file.c_str(), RTLD_LAZY | RTLD_GLOBAL) != nullptr) break;
    }
  }
}

}  // namespace

ProcessPreparation::ProcessPreparation(PlatformKind kind,
                                       const std::vector<std::string>& search_dirs) {
  log_level_set_ = base::set_variable(kLogLevel, std::to_string(base::env_plugin_log_level()));
  if (kind == PlatformKind::kCpu) keep_freed_host_memory();
  if (kind == PlatformKind::kCpu && base::set_variable(kXlaFlags, base::kOwnXlaFlags)) {
    flags_set.store(true);
  }
  if (kind == PlatformKind::kTpu) prepare_tpu();
  if (kind == PlatformKind::kCuda) load_cuda_libraries(search_dirs);
}

ProcessPreparation::~ProcessPreparation() {
  if (log_level_set_) base::unset_variable(kLogLevel);
}

void after_compilation() {
  if (flags_set.load(std::memory_order_relaxed) && flags_set.exchange(false)) {
    base::unset_variable(kXlaFlags);
  }
}

}  // namespace torch_tpu::pjrt
