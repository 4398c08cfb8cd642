// The trace: ops that were issued and not launched yet, as nodes over immutable values. And its
// signature, the words by which a piece of it is recognised when it comes again.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "csrc/trace/issue_line.h"
#include "csrc/trace/program.h"
#include "csrc/trace/value.h"

namespace torch_tpu::trace {

// One call. Its inputs, results, scalars and random state lie in the arrays of its segment, from
// these positions on.
struct TraceNode {
  ProgramPtr program;  // the op alone
  uint32_t input = 0;
  uint32_t output = 0;
  uint32_t packs[kNumCarriers] = {0, 0, 0};
  uint32_t rng = 0;
  IssueLine line;
  uint32_t thread = 0;   // that issued it
  uint64_t reports = 0;  // of violations, when it was issued
};

// A run of nodes in the order they were issued. Holds a reference to each value it names.
struct Segment {
  std::vector<TraceNode> nodes;
  std::vector<ValuePtr> inputs;
  std::vector<ValuePtr> outputs;  // defined results, pending
  std::vector<float> f32;
  std::vector<double> f64;
  std::vector<int64_t> s64;
  std::vector<uint64_t> rng;  // seed and offset per node that draws

  void clear();
  // Moves the first `count` nodes into a segment of their own.
  Segment split(size_t count);
  // Copies one node, with all that belongs to it, to the end of this segment.
  void append(const Segment& from, size_t node);
  uint32_t num_inputs(size_t node) const;
  uint32_t num_outputs(size_t node) const;
};

// What makes two segments the same program, and how the program's arguments and results map to the
// segment's values. Reused between calls, so that a cut allocates nothing.
struct Signature {
  std::vector<uint32_t> words;
  uint64_t hash = 0;
  std::vector<DeviceValue*> externals;  // values from before the segment, each once
  std::vector<uint32_t> alive;          // outputs that somebody outside still holds
  struct Donation {
    uint32_t external;
    uint32_t result;  // index into `alive`
  };
  std::vector<Donation> donated;

  // One pass over the segment. Nobody else may be in this function for the same device.
  void build(const Segment& segment);

 private:
  std::vector<int32_t> origin_;  // per output: the external whose memory it replaces, or -1
};

// A reference of a node to one of its inputs, as the signature writes it.
constexpr uint32_t external_ref(uint32_t index) { return index << 1; }
constexpr uint32_t internal_ref(uint32_t index) { return index << 1 | 1; }
constexpr bool is_internal(uint32_t ref) { return (ref & 1) != 0; }
constexpr uint32_t index_of(uint32_t ref) { return ref >> 1; }

}  // namespace torch_tpu::trace
