// Where Fused Eager cuts the op stream into programs by itself. A pure function of the stream: no
// clock, no counter that outlives a cut, so the same code cuts alike in every process, and a loop
// of any length falls into step with itself (content-defined chunking, as backup tools do it): the
// place depends on the ops around it. Each node has a hash over the last few ops; the node with the
// smallest one among those pending is the anchor. When the anchor comes again, the stream repeats
// itself: the cut is at the anchor before, and so each turn of a loop becomes the same program.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace torch_tpu::trace {

// All parameters of the planner. See docs/fused.md.
struct PlannerLimits {
  // Anchors this far apart are taken as turns of a loop. Turns that are shorter are gathered until
  // they are that long; a cut by length leaves at least as many before it. 1 to max_nodes.
  size_t min_nodes = 64;
  size_t max_nodes = 1024;  // so many pending nodes are cut at the anchor in any case; 2 to 65536
  // Bytes of all pending results together, an upper bound of what is alive: 1 MiB and up.
  int64_t max_bytes = int64_t{4} << 30;
};

class Planner {
 public:
  explicit Planner(const PlannerLimits& limits) : limits_(limits) {}

  // A node was added to the pending ones. `flavor` stands for its op, ranks and dtypes; sizes are
  // left out, so that a growing sequence does not move the cuts.
  void add(uint64_t flavor, int64_t bytes);

  // True when a cut is due before the next node.
  bool full() const noexcept {
    return hashes_.size() >= limits_.max_nodes || repeats() || bytes_ > limits_.max_bytes;
  }
  bool over_budget() const noexcept { return bytes_ > limits_.max_bytes; }
  bool repeats() const noexcept { return newest_ - first_ >= limits_.min_nodes; }
  // How many of the pending nodes to cut off when full(): all of them when memory is the reason, up
  // to the last anchor but one when they repeat, else up to the node with the smallest hash that is
  // far enough from the start.
  size_t choose() const noexcept;

  // The first `count` nodes have left.
  void cut(size_t count);

  size_t pending() const noexcept { return hashes_.size(); }
  int64_t bytes() const noexcept { return bytes_; }  // of all pending results
  const PlannerLimits& limits() const noexcept { return limits_; }
  void set_limits(const PlannerLimits& limits) { limits_ = limits; }

 private:
  void find_anchor(size_t from);

  static constexpr size_t kWindow = 4;  // nodes a hash looks at, the last one included

  PlannerLimits limits_;
  std::vector<uint64_t> hashes_;  // per pending node, over the window that ends there
  std::vector<int64_t> sizes_;    // beside it
  uint64_t window_[kWindow] = {};
  size_t next_ = 0;
  int64_t bytes_ = 0;
  // Where the smallest hash stands: first, last but one, last.
  size_t first_ = 0;
  size_t before_ = 0;
  size_t newest_ = 0;
};

}  // namespace torch_tpu::trace
