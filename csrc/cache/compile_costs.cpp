#include "csrc/cache/compile_costs.h"

#include <algorithm>

#include "csrc/pjrt/runtime.h"

namespace torch_tpu::cache {
namespace {

// How much one measurement moves the figure: a program may be very unlike the others.
constexpr double kWeight = 0.1;

struct Figures {
  double single;
  double node;
  double fixed;
};

// XLA:CPU: a GPT-2's step of 132 ops takes 0.45 s, one of its 65 single ops 25 ms (two cores).
// XLA:CUDA and TPU: orders of magnitude, of single ops on an H200 and of blocks compiled for v5e.
Figures figures_of(pjrt::PlatformKind kind) {
  switch (kind) {
    case pjrt::PlatformKind::kCpu:
      return {0.025, 0.0035, 0.02};
    case pjrt::PlatformKind::kCuda:
      return {0.1, 0.01, 0.1};
    default:
      return {0.7, 0.25, 0.5};
  }
}

}  // namespace

CompileCosts& CompileCosts::get() {
  static auto* costs = new CompileCosts(pjrt::Runtime::get().kind());
  return *costs;
}

CompileCosts::CompileCosts(pjrt::PlatformKind kind)
    : single_(figures_of(kind).single),
      node_(figures_of(kind).node),
      fixed_(figures_of(kind).fixed) {}

void CompileCosts::note_single(double seconds) {
  const std::lock_guard lock(mutex_);
  single_ += kWeight * (seconds - single_);
}

void CompileCosts::note_piece(size_t nodes, double seconds) {
  const std::lock_guard lock(mutex_);
  const double rest =
      std::max(0.0, seconds - fixed_) / static_cast<double>(std::max<size_t>(nodes, 1));
  // A long program says more than a short one.
  const double weight = std::min(0.5, kWeight * static_cast<double>(nodes) / 32);
  node_ += weight * (rest - node_);
}

double CompileCosts::singles(double programs, size_t threads) const {
  const std::lock_guard lock(mutex_);
  return programs * single_ / static_cast<double>(std::max<size_t>(threads, 1));
}

double CompileCosts::piece(size_t nodes) const {
  const std::lock_guard lock(mutex_);
  return fixed_ + node_ * static_cast<double>(nodes);
}

}  // namespace torch_tpu::cache
