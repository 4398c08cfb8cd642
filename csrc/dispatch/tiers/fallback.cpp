#include "csrc/dispatch/tiers/fallback.h"

#include <atomic>
#include <chrono>
#include <mutex>

#include <ATen/native/CPUFallback.h>
#include <torch/library.h>

#include "csrc/base/journal.h"
#include "csrc/dispatch/call/mode.h"
#include "csrc/dispatch/call/op.h"
#include "csrc/dispatch/tiers/decompose.h"

namespace torch_tpu::dispatch {
namespace {

std::mutex mutex;
std::map<std::string, FallbackCount>& counts() {
  static auto* all = new std::map<std::string, FallbackCount>();
  return *all;
}
std::atomic<int>& policy() {
  static std::atomic<int> cell{static_cast<int>(base::env_fallback())};
  return cell;
}

bool draws_random_numbers(const c10::OperatorHandle& op) {
  for (const c10::Argument& argument : op.schema().arguments()) {
    if (argument.name() == "generator") return true;
  }
  return false;
}

void fallback(const c10::OperatorHandle& op, c10::DispatchKeySet, c10::Stack* stack) {
  run_without_lowering(op, stack, "");
}

}  // namespace

void run_on_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack,
                const std::string& reason) {
  const std::string name = full_name(op);
  const base::Fallback what = get_fallback();
  TORCH_CHECK_NOT_IMPLEMENTED(
      what != base::Fallback::kError, "The operator '", name,
      "' has no lowering for device tpu, and TORCH_TPU_FALLBACK=error forbids running it on the "
      "CPU. Set TORCH_TPU_FALLBACK=warn to allow that.");
  TORCH_CHECK_NOT_IMPLEMENTED(!draws_random_numbers(op), "The operator '", name,
                              "' draws random numbers and has no lowering for device tpu; running "
                              "it on the CPU would use another generator. Draw on the CPU "
                              "yourself and move the result with .to('tpu').");
  bool first = false;
  {
    std::lock_guard lock(mutex);
    FallbackCount& count = counts()[name];
    first = count.calls++ == 0;
  }
  if (first && what == base::Fallback::kWarn) {
    const std::string where = python_location();
    TORCH_WARN("The operator '", name, "' has no lowering for device tpu and runs on the CPU",
               where.empty() ? "" : " (first at " + where + ")",
               reason.empty() ? "" : " [" + reason + "]",
               ". Results are right, but each call waits and moves its tensors. "
               "torch_tpu.coverage() lists all such ops.");
  }
  const base::journal::Span span(base::journal::Kind::kFallback, name);
  const auto start = std::chrono::steady_clock::now();
  at::native::cpu_fallback(op, stack, /*error_on_views=*/false);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  std::lock_guard lock(mutex);
  counts()[name].seconds += took.count();
}

std::map<std::string, FallbackCount> fallback_counts() {
  std::lock_guard lock(mutex);
  return counts();
}

void reset_fallback_counts() {
  std::lock_guard lock(mutex);
  counts().clear();
}

void set_fallback(base::Fallback what) { policy().store(static_cast<int>(what)); }
base::Fallback get_fallback() { return static_cast<base::Fallback>(policy().load()); }

void register_fallback() {
  static auto* library = new torch::Library(torch::Library::IMPL, "_",
                                            c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  library->fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
}

}  // namespace torch_tpu::dispatch
