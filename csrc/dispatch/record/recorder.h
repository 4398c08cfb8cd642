// While one is alive on a thread, ops of that thread are lowered into one module instead of being
// run: their results are values with a shape and no memory. This is how a decomposition or a graph
// of torch.compile becomes a program. A read of such a value throws trace::RecordedValue.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "csrc/dispatch/call/frame.h"
#include "csrc/dispatch/call/op.h"
#include "csrc/ops/source.h"
#include "csrc/stablehlo/builder.h"
#include "csrc/trace/program.h"

namespace torch_tpu::dispatch {

class Recorder {
 public:
  explicit Recorder(int device);
  ~Recorder();
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;

  // The thread's, or null.
  static Recorder* current() noexcept;

  // An argument of the program under construction. All come before the first op.
  trace::ValuePtr add_argument(const trace::DeviceValue& like);
  trace::ValuePtr add_argument(stablehlo::DType dtype, trace::ShapeRef dims,
                               trace::ShapeRef strides);
  // One call; its arguments on the stack become its results. A reason: its lowering refuses these
  // arguments, the stack is as it was, and another tier may know how to say it.
  std::optional<std::string> record(const Op& op, c10::Stack* stack);
  // Whether a dimension of the value that the tensor shows varies.
  bool varies(const at::Tensor& tensor);
  // The tensor's elements as a result of the program. One that `may_repeat` keeps what expand()
  // did: its value is no larger than what was computed.
  void add_result(const at::Tensor& tensor, bool may_repeat = false);
  // All of the memory behind the tensor as a result of the program.
  void add_base(const at::Tensor& tensor);
  // A new value for the base of an argument, whose memory it may take. It lies there as the old
  // one.
  void add_write(size_t argument, const trace::DeviceValue& old, const trace::ValuePtr& value);
  // From here on no op may use a tensor that was there before, other than by an argument: it holds
  // something else at the next call. Throws NotImplementedError then.
  void close();
  // The module of what was recorded, and what its program needs beside the executable.
  std::string finish(trace::Runnable& program);
  // From here on each op is printed with "scope/op at file.py:12" as its location.
  void set_scope(std::string scope) { scope_ = std::move(scope); }
  // How often each op was recorded, in the order first met.
  const std::vector<std::pair<std::string, int>>& ops() const { return ops_; }

  // --- for whoever builds regions (record_regions.h), or bounded programs (bounded.h) ---
  stablehlo::Builder& builder() { return b_; }
  // The tensor's elements as they are now.
  stablehlo::Value read(const at::Tensor& tensor);
  // A tensor that holds a value. `strides`: a dense permutation of its dims; empty: row-major.
  at::Tensor make(const stablehlo::Value& value, c10::ScalarType dtype,
                  c10::IntArrayRef strides = {});
  void add_check(ops::PendingCheck check);

  // --- for whoever draws the same numbers again ---
  // The generator's state as the next random op will find it: int64[2].
  at::Tensor rng_state();
  // Random ops continue from this state instead of the generator's; undefined: from the
  // generator's again, which has not moved meanwhile.
  void use_rng_state(const at::Tensor& state);

  // While one is alive, ops are recorded into a region that the builder has open. What they make
  // cannot be used once it has ended.
  class Scope {
   public:
    // `iteration`: for the body of a loop, which one is under way, as ui64[]. Asked for by random
    // ops only; each iteration has a stream of its own.
    explicit Scope(Recorder& recorder, std::function<stablehlo::Value()> iteration = {});
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

    // Flags of the ops in it. They too end with the region: the owner carries them out.
    std::vector<ops::PendingCheck> checks;
    bool random() const { return random_; }  // an op in it drew

   private:
    friend class Recorder;
    Recorder& recorder_;
    const std::function<stablehlo::Value()> iteration_;
    const int serial_;
    bool random_ = false;
    uint64_t stream_start_ = 0;  // of a loop: its place in the stream outside
    uint64_t draws_ = 0;         // of one iteration
  };

 private:
  void note_op(const std::string& name);
  std::string label_of(const std::string& op) const;
  stablehlo::Value value_of(const trace::ValuePtr& value);
  stablehlo::Value next_rng_state(uint64_t draws);
  void hold_back_writes();
  void check_inside(const Frame& frame) const;
  trace::ValuePtr remember(const stablehlo::Value& value, trace::ShapeRef strides);

  Recorder* const outer_;
  const int device_;
  stablehlo::Builder b_;
  stablehlo::Values values_;  // by DeviceValue::recorded_id, less first_id_
  std::vector<int> homes_;    // beside values_: the serial of the scope, 0 for the function
  std::vector<Scope*> scopes_;
  int next_serial_ = 1;
  const int64_t first_id_;
  const void* first_address_ = nullptr;  // of tensors made since close()
  std::vector<ops::PendingCheck> checks_;
  std::vector<trace::ValuePtr> extra_inputs_;
  std::vector<stablehlo::Value> extra_values_;  // beside extra_inputs_
  stablehlo::Value rng_state_;
  uint64_t draws_ = 0;
  stablehlo::Value given_state_;  // see use_rng_state
  uint64_t given_draws_ = 0;
  std::vector<trace::Program::Output> outputs_;
  stablehlo::Values results_;
  std::vector<std::pair<size_t, size_t>> writes_;  // of results: which, and the argument's place
  std::vector<std::pair<std::string, int>> ops_;
  std::optional<std::string> scope_;
};

// While one is alive, ops of the thread run as if nothing was recorded.
class RecordingPause {
 public:
  RecordingPause() noexcept;
  ~RecordingPause();
  RecordingPause(const RecordingPause&) = delete;
  RecordingPause& operator=(const RecordingPause&) = delete;

 private:
  Recorder* const paused_;
};

// A tensor of the recording with the tensor's geometry over a storage that holds its base value.
at::Tensor recorded_stand_in(const at::Tensor& tensor, c10::Storage storage);

}  // namespace torch_tpu::dispatch
