#include "csrc/pjrt/runtime.h"

#include <atomic>
#include <mutex>
#include <stdexcept>

#include <sys/sysinfo.h>
#include <unistd.h>

#include "csrc/base/env.h"
#include "csrc/base/fork.h"
#include "csrc/pjrt/membership.h"

namespace torch_tpu::pjrt {
namespace {

std::mutex start_mutex;
std::atomic<Runtime*> instance{nullptr};

// While it lives, and for good once the client has started, a forked child cannot use the device.
// Made before the mutex is taken: a child that inherits the mutex must not wait for it.
class Starting {
 public:
  Starting() noexcept { base::begin_bad_forks(); }
  Starting(const Starting&) = delete;
  Starting& operator=(const Starting&) = delete;
  ~Starting() {
    if (!started_) base::end_bad_forks();
  }
  void done() noexcept { started_ = true; }

 private:
  bool started_ = false;
};

}  // namespace

Runtime& Runtime::get() {
  // First of all: the mutex may be held by a thread that is not in this process.
  if (base::in_bad_fork()) [[unlikely]]
    base::throw_bad_fork();
  if (Runtime* runtime = instance.load(std::memory_order_acquire)) return *runtime;
  Starting starting;
  std::lock_guard lock(start_mutex);
  if (Runtime* runtime = instance.load(std::memory_order_acquire)) return *runtime;
  // Never deleted: buffers held by Python objects may outlive any static destructor.
  auto* runtime = new Runtime();
  starting.done();
  instance.store(runtime, std::memory_order_release);
  return *runtime;
}

bool Runtime::started() noexcept { return instance.load(std::memory_order_acquire) != nullptr; }

bool Runtime::in_bad_fork() noexcept { return base::in_bad_fork(); }

bool Runtime::available() noexcept {
  if (in_bad_fork()) return false;
  if (started()) return true;
  try {
    const PluginSpec spec = resolve_plugin(base::env_plugin(), search_dirs());
    // A bare file name is left to the dynamic loader's own search.
    return spec.path.find('/') == spec.path.npos || access(spec.path.c_str(), R_OK) == 0;
  } catch (...) {
    return false;
  }
}

int Runtime::device_count_hint() noexcept {
  if (Runtime* runtime = instance.load(std::memory_order_acquire)) return runtime->device_count();
  try {
    const PluginSpec spec = resolve_plugin(base::env_plugin(), search_dirs());
    return spec.kind == PlatformKind::kCpu ? base::env_cpu_devices() : -1;
  } catch (...) {
    return 0;
  }
}

Runtime::Runtime() {
  const PluginSpec spec = resolve_plugin(base::env_plugin(), search_dirs());
  auto plugin = Plugin::load(spec.path, spec.kind);
  kind_ = plugin->kind();
  const Membership membership = current_membership();
  if (membership.processes > 1 && kind_ == PlatformKind::kCpu) {
    // It would start as if nothing had been said: options and callbacks are ignored.
    throw std::runtime_error(
        "The XLA:CPU plugin's client cannot span processes: it knows no other nodes and has no "
        "collectives between processes. Leave span_processes out: torch.distributed's collectives "
        "then go by Gloo.");
  }
  NamedValues client_options = Client::default_options(kind_);
  if (membership.processes > 1 && kind_ == PlatformKind::kCuda) {
    client_options["node_id"] = int64_t{membership.process};
    client_options["num_nodes"] = int64_t{membership.processes};
  }
  client_ = Client::create(std::move(plugin), client_options, membership.store);
  for (const Device& device : client_->addressable_devices()) devices_.push_back(device.raw());
  if (devices_.empty()) {
    throw std::runtime_error("The PJRT plugin '" + spec.path + "' started but offers no device.");
  }
  CompileOptions options = CompileOptions::portable();
  if (kind_ == PlatformKind::kCpu) {
    // XLA:CPU's XNNPACK path keeps a matmul's packed weights by their address. Memory that is
    // written in place (donation) or used again by another array then gives the product with the
    // old contents: silently wrong gradients from the second step on.
    options.env_option_overrides["xla_cpu_use_xnnpack"] = false;
    // Large reductions by its library of kernels: 3 to 12 times faster, and quicker to compile.
    options.env_option_overrides["xla_cpu_experimental_ynn_fusion_type"] =
        std::string("LIBRARY_FUSION_TYPE_REDUCE");
  }
  if (kind_ == PlatformKind::kCuda) {
    // A bf16 result is rounded, as in PyTorch, when f32 ops follow. Without this XLA also writes it
    // as f32 for them: 3 % of a GPT-2 step.
    options.env_option_overrides["xla_allow_excess_precision"] = false;
  }
  compile_options_ = options.serialize();
  if (kind_ == PlatformKind::kCpu) {
    // Without LLVM's optimizations a training step compiles in 0.4 of the time and runs 2 to 3
    // times as long (products are library calls either way); its older emitter of kernels saves 7 %
    // more.
    options.env_option_overrides["xla_backend_optimization_level"] = int64_t{0};
    options.env_option_overrides["xla_cpu_use_fusion_emitters"] = false;
  }
  quick_compile_options_ = options.serialize();
}

int64_t Runtime::device_memory(int index) const {
  const Device& device = client_->addressable_devices().at(static_cast<size_t>(index));
  if (auto stats = device.memory_stats(); stats && stats->bytes_limit) return *stats->bytes_limit;
  if (!host_addressable()) return 0;
  struct sysinfo info{};
  if (sysinfo(&info) != 0) return 0;
  return static_cast<int64_t>(info.totalram) * info.mem_unit;
}

}  // namespace torch_tpu::pjrt
