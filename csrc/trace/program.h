// Programs of one call and of recorded graphs, and what else there is to know of a call: that out=
// tensors must be resized first, or that there is no program. See Code for how they are compiled.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include <c10/core/ScalarType.h>
#include <c10/util/intrusive_ptr.h>

#include "csrc/ops/source.h"
#include "csrc/trace/code.h"
#include "csrc/trace/key.h"
#include "csrc/trace/node.h"
#include "csrc/trace/value.h"

namespace torch_tpu::trace {

// Code and all that a caller needs to run it. Immutable once others have it, except for the code
// and the counter.
struct Runnable : public c10::intrusive_ptr_target {
  std::string name;
  Key key;                   // under which it is kept on disk; empty: it is not
  uint64_t fingerprint = 0;  // of its text
  Code code;
  mutable std::atomic<uint64_t> runs{0};

  // What the code is made of, by who claims it: code from disk, or else text. Dropped then.
  std::string text;
  struct Stored {
    std::string code;
    Code::Origin origin = Code::Origin::kDisk;
    double compile_seconds = 0;
  };
  Stored stored;
  bool lasting = false;  // to be kept on disk once it is compiled
  bool found = false;    // there was code on disk

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
    bool overwrites = false;       // and whose elements the call does not read
    std::optional<Extent> extent;  // the tensor is a prefix of the value: see Extent
  };
  std::vector<Output> outputs;
  // The output that replaces that input; null: none does.
  const Output* replacing(int argument) const noexcept {
    for (const Output& output : outputs) {
      if (output.defined && output.input == argument) return &output;
    }
    return nullptr;
  }
  int num_counts = 0;  // one more output, s64[num_counts], between the results and the checks
  std::vector<ops::ValueCheck> checks;
  // Inputs after the arguments and the scalar packs: values the program keeps, and in place of an
  // undefined one the generator's state.
  std::vector<ValuePtr> extra_inputs;
  uint64_t draws = 0;        // random numbers a run may take from the generator
  int num_inputs = 0;        // arguments
  int64_t new_bytes = 0;     // what running it allocates
  int64_t output_bytes = 0;  // of its results
};
using RunnablePtr = c10::intrusive_ptr<Runnable>;

// The program of one call.
struct Program final : public Runnable {
  std::vector<c10::IValue> numbers;  // per return of the op: what is not a tensor
  int pack_sizes[kNumCarriers] = {0, 0, 0};

  // What Fused Eager needs: the call again, for lowering it with others, and how to tell it from
  // others. A program from disk has no node until somebody wants it and the call comes again; a
  // decomposition never has. Published once: read it after has_node().
  bool has_node() const noexcept { return published_.load(std::memory_order_acquire); }
  const Node& node() const noexcept { return *node_; }
  // The first one counts.
  void publish_node(Node node);
  std::atomic<bool> wants_node{false};
  size_t donations_at = 0;    // where the key's words of donated tensors begin
  size_t num_tensors = 0;     // they have a bit each
  uint32_t uid = next_uid();  // unique in this process
  bool fusible = false;
  // New pieces that had it and found no code; see dispatch/fuse/meet.cpp.
  mutable std::atomic<uint32_t> pieces{0};
  uint64_t flavor = 0;  // of op, ranks and dtypes, not sizes: see planner.h

 private:
  static uint32_t next_uid();

  std::unique_ptr<const Node> node_;
  std::mutex node_mutex_;
  std::atomic<bool> published_{false};
};

inline void Program::publish_node(Node node) {
  const std::lock_guard lock(node_mutex_);
  if (node_) return;
  node_ = std::make_unique<const Node>(std::move(node));
  published_.store(true, std::memory_order_release);
}

inline uint32_t Program::next_uid() {
  static std::atomic<uint32_t> next{1};
  return next.fetch_add(1, std::memory_order_relaxed);
}

using ProgramPtr = c10::intrusive_ptr<Program>;

// An out= call whose tensors must first be resized; then call again.
struct Resizes {
  struct Resize {
    int tensor = 0;
    Shape sizes;
    Shape strides;
  };
  std::vector<Resize> all;
};

// Neither lowered nor decomposed, and why: kept so that the next call need not try again.
struct Refusal {
  std::string op;
  std::string why;
};

// What is known of a call. The first: nothing yet.
using Answer = std::variant<std::monostate, ProgramPtr, std::shared_ptr<const Resizes>,
                            std::shared_ptr<const Refusal>>;
inline bool is_known(const Answer& answer) { return answer.index() != 0; }

}  // namespace torch_tpu::trace
