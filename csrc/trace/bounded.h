// A piece of the trace as a program for every size up to a bound. Buffers have the sizes of the
// bound, the true sizes come with the program's numbers, and the builder masks what does not
// count (stablehlo/axis.h). Each size in the piece is a known function of them (sizes.h); after
// each op what counts is compared with it. What is not proven is refused, and stays a program per
// size.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "csrc/trace/fused.h"
#include "csrc/trace/sizes.h"

namespace torch_tpu::trace {

struct Bounds {
  std::shared_ptr<const Key> structure;  // all of the piece that is no number
  std::shared_ptr<const Forms> forms;
  size_t symbols = 1;
  Point low;  // the sizes it serves, both included
  Point high;
  Point bound;  // of the largest size that is the symbol and something
  bool serves(const Point& sizes) const;
  // Per external and per result: the sizes of its buffer; empty where they do not vary.
  std::vector<Shape> externals;
  std::vector<Shape> results;
};

// Which sizes are bounds: powers of two, or four steps from each to the next.
enum class Grid : uint8_t { kPowers, kQuarters };
int64_t next_bound(int64_t size, Grid grid);

// The bounds of the program for these sizes, which it serves unless one is too small; throws
// stablehlo::Unproven when there can be none.
Bounds plan_bounds(const FusedProgram& piece, std::shared_ptr<const Forms> forms,
                   const Point& sizes, Grid grid = Grid::kPowers);

// The module, of a program whose `bounds` are set. Throws stablehlo::Unproven, or what lowerings
// throw that refuse their operands. Thread-safe.
std::string lower_bounded(const FusedProgram& program);

}  // namespace torch_tpu::trace
