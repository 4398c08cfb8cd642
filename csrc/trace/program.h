// A compiled program and what a caller needs to run it without looking at the op again.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <c10/core/ScalarType.h>
#include <c10/util/intrusive_ptr.h>

#include "csrc/ops/source.h"
#include "csrc/pjrt/executable.h"
#include "csrc/trace/key.h"
#include "csrc/trace/node.h"
#include "csrc/trace/value.h"

namespace torch_tpu::trace {

// Immutable once published, except for the counters and what ensure_compiled() and the node's own
// mutex guard.
struct Program final : public c10::intrusive_ptr_target {
  std::string name;
  pjrt::LoadedExecutable executable;

  struct Output {
    bool defined = true;
    stablehlo::DType value_dtype = stablehlo::DType::kF32;  // of the value in the cell
    c10::ScalarType dtype = c10::ScalarType::Undefined;     // of the tensor
    Shape sizes;                                            // of the new tensor
    Shape strides;
    Shape base_sizes;  // of the value (the written cell's base for a write through a view)
    Shape base_strides;
    int64_t bytes = 0;
    int write = -1;                // index among the call's tensors, or -1 for a new tensor
    int input = -1;                // the input that a write replaces, or -1
    std::optional<Extent> extent;  // the tensor is a prefix of the value: see Extent
  };
  std::vector<Output> outputs;
  std::vector<c10::IValue> numbers;  // per return of the op: what is not a tensor
  std::vector<ops::ValueCheck> checks;
  // Inputs after the arguments and the scalar packs: values the program keeps, and in place of an
  // undefined one the generator's state.
  std::vector<ValuePtr> extra_inputs;
  uint64_t draws = 0;     // random numbers a run may take from the generator
  int num_counts = 0;     // one more output, s64[num_counts], between the results and the checks
  int64_t new_bytes = 0;  // what running it allocates
  int pack_sizes[kNumCarriers] = {0, 0, 0};

  // An out= call whose tensors must first be resized: nothing is compiled; resize and call again.
  struct Resize {
    int tensor;
    Shape sizes;
    Shape strides;
  };
  std::vector<Resize> resizes;
  // Neither lowered nor decomposed, and why: kept so that the next call need not try again.
  std::string refusal;
  bool runnable() const { return resizes.empty() && refusal.empty(); }

  // What Fused Eager needs: the call again, for lowering it with others, and how to tell it from
  // others. A program from disk has no node until somebody wants it and the call comes again; a
  // decomposition never has. Set under `node_mutex`, read after `has_node`.
  std::shared_ptr<const Node> node;
  std::mutex node_mutex;
  std::atomic<bool> has_node{false};
  std::atomic<bool> wants_node{false};
  Key key;
  size_t donations_at = 0;  // where the key's words of donated tensors begin
  size_t num_tensors = 0;   // they have a bit each
  int num_inputs = 0;
  uint32_t uid = next_uid();  // unique in this process
  bool fusible = false;
  mutable std::atomic<bool> met{false};  // in a piece, by this process; see launch.cpp
  uint64_t flavor = 0;                   // of op, ranks and dtypes, not sizes: see planner.h
  int64_t output_bytes = 0;

  // Compiled, or loaded from its code, at the first run; both are dropped then. Thread-safe.
  std::string text;
  std::string code;  // of an executable on disk
  std::once_flag compile_once;
  std::atomic<bool> compiled{false};

  enum class Origin : uint8_t { kCompiled, kDisk, kPack };
  Origin origin = Origin::kCompiled;
  uint64_t fingerprint = 0;    // of its text
  int64_t temp_bytes = 0;      // what a run needs beside its results; known once compiled
  double compile_seconds = 0;  // also when it was not this process that compiled it
  mutable std::atomic<uint64_t> runs{0};

 private:
  static uint32_t next_uid();
};

inline uint32_t Program::next_uid() {
  static std::atomic<uint32_t> next{1};
  return next.fetch_add(1, std::memory_order_relaxed);
}

using ProgramPtr = c10::intrusive_ptr<Program>;

}  // namespace torch_tpu::trace
