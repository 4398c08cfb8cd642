// Records a function of tensors into one module and makes a CompiledGraph of it, or a module that
// leaves this process.
#pragma once

#include <memory>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "csrc/device/cell.h"
#include "csrc/dispatch/graph/compiled.h"
#include "csrc/dispatch/record/recorder.h"

namespace torch_tpu::dispatch {

// A recording as it leaves this process: the module, and what its arguments and results are.
struct RecordedModule {
  std::string text;
  trace::Runnable description;  // outputs, checks, extra inputs, draws; it has no executable
  std::vector<int> results;     // of the function: see CompiledGraph::results_
};

// While one is alive on a thread, ops of that thread are recorded.
class GraphRecording {
 public:
  explicit GraphRecording(int device);

  // What stands for the tensor in the recording. All come before the first op.
  at::Tensor add_argument(const at::Tensor& tensor);
  // The same for a dense tensor that need not exist.
  at::Tensor add_parameter(c10::IntArrayRef sizes, c10::IntArrayRef strides, c10::ScalarType dtype);
  // The same with more room; any such tensor of a size up to that will do.
  at::Tensor add_padded(const at::Tensor& tensor, trace::ShapeRef sizes);
  void add_result(const at::Tensor& tensor);
  void add_bounded_result(const at::Tensor& tensor, BoundedResult how);
  // Compiles, or loads from disk. Ends the recording. With `share`, results that overlap in memory
  // do so at every call; else each has its own. The first `visible` results lie as the caller
  // expects them; the others, saved for backward, in the order of their strides, so that a
  // transposed view of what the program made is not copied.
  CompiledPtr finish(const std::string& name, bool share, size_t visible);
  // The module alone.
  void module(const std::string& name, RecordedModule& out);

 private:
  // Which results may lie in memory that is not theirs alone.
  enum class Sharing : uint8_t { kNone, kArguments, kAll };
  void check_argument(const at::Tensor& tensor) const;
  at::Tensor add(const at::Tensor& tensor, const trace::DeviceValue& value);
  std::string end(trace::Runnable& program, Sharing sharing, size_t visible);
  std::unordered_set<const device::Cell*> overlapping() const;

  std::unique_ptr<Recorder> recorder_;
  CompiledPtr made_;
  std::unordered_map<const device::Cell*, size_t> known_;  // storages of the arguments
  std::vector<at::Tensor> given_;
  std::vector<at::Tensor> stand_ins_;
  std::vector<trace::ValuePtr> values_;  // per storage: what it held at first
  std::vector<at::Tensor> results_;
};

}  // namespace torch_tpu::dispatch
