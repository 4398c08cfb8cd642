#include "csrc/cache/compile_costs.h"

#include <algorithm>

#include "csrc/pjrt/runtime.h"

namespace torch_tpu::cache {
namespace {

// Measurements that are enough to be believed, and how far off they have to be.
constexpr size_t kManySingles = 16;
constexpr size_t kManyNodes = 128;
constexpr double kQuiteDifferent = 2.5;

// XLA:CPU: a GPT-2's step of 132 ops takes 0.45 s, one of its 65 single ops 25 ms (two cores). On
// an H200 a single op takes 0.1 s and a GPT-2 of about 1000 ops 7.5 s. A TPU's compiler: 0.7 s for
// a product, 8 s and more for a block of a transformer.
double node_per_single_of(pjrt::PlatformKind kind) {
  switch (kind) {
    case pjrt::PlatformKind::kCpu:
      return 0.14;
    case pjrt::PlatformKind::kCuda:
      return 0.1;
    default:
      return 0.35;
  }
}

}  // namespace

CompileCosts& CompileCosts::get() {
  static auto* costs = new CompileCosts(pjrt::Runtime::get().kind());
  return *costs;
}

CompileCosts::CompileCosts(pjrt::PlatformKind kind) : known_(node_per_single_of(kind)) {}

void CompileCosts::note_single(double seconds) {
  const std::lock_guard lock(mutex_);
  seconds_of_singles_ += seconds;
  ++singles_;
}

void CompileCosts::note_piece(size_t nodes, double seconds) {
  const std::lock_guard lock(mutex_);
  seconds_of_pieces_ += seconds;
  nodes_ += nodes;
}

double CompileCosts::node_per_single() const {
  const std::lock_guard lock(mutex_);
  if (singles_ < kManySingles || nodes_ < kManyNodes) return known_;
  const double single = seconds_of_singles_ / static_cast<double>(singles_);
  const double measured = seconds_of_pieces_ / static_cast<double>(nodes_) / single;
  const double off = measured / known_;
  return off > kQuiteDifferent || off < 1 / kQuiteDifferent ? measured : known_;
}

bool CompileCosts::piece_is_cheaper(size_t nodes, double programs, size_t threads) const {
  const double piece = 1 + node_per_single() * static_cast<double>(nodes);
  return piece < programs / static_cast<double>(std::max<size_t>(threads, 1));
}

}  // namespace torch_tpu::cache
