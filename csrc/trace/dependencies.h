// What the results of a piece depend on: which of its externals, and which of its checks. A result
// that replaces an external's elements keeps them where a check that the call's other operands
// depend on was violated: that call would not have been made.
#pragma once

#include <cstdint>
#include <vector>

#include "csrc/trace/trace.h"

namespace torch_tpu::trace {

// A set of small numbers.
class Bits {
 public:
  void add(size_t bit);
  void add(const Bits& other);
  void remove(const Bits& other);
  bool has(size_t bit) const noexcept;
  bool empty() const noexcept;
  template <typename Visit>
  void for_each(Visit&& visit) const {
    for (size_t bit = 0; bit < words_.size() * 64; ++bit) {
      if (has(bit)) visit(bit);
    }
  }

 private:
  std::vector<uint64_t> words_;
};

struct Dependencies {
  struct Result {
    Bits externals;
    Bits spoiled_by;  // checks: it means nothing where one was violated
    Bits tells_of;    // checks: it is sound, and has to tell
  };
  std::vector<Result> results;     // of all nodes, in order
  std::vector<Bits> held_back;     // beside them: checks under which the old elements stay
  bool replaces_external = false;  // some node writes elements that were there before the piece
};

// `words`: of the piece's signature.
Dependencies find_dependencies(const std::vector<uint32_t>& words,
                               const std::vector<ProgramPtr>& nodes);

}  // namespace torch_tpu::trace
