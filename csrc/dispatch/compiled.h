// A function of tensors that was recorded once and runs as one program: what torch.compile calls.
// Arguments may be views; the program reads them from their base values, so nothing is copied on
// the way in. Writes to arguments become new values in their cells, in the old one's memory where
// nobody else holds it.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "csrc/cache/program_info.h"
#include "csrc/device/cell.h"
#include "csrc/dispatch/record.h"
#include "csrc/trace/program.h"

namespace torch_tpu::dispatch {

class CompiledGraph;
struct ModuleToLoad;
using CompiledPtr = c10::intrusive_ptr<CompiledGraph>;
CompiledPtr load_module(const ModuleToLoad& module);  // see exported.h
// The true sizes of a result: each a number of the program or, where that is -1, as recorded.
struct BoundedResult {
  std::vector<int> numbers;
  trace::Shape sizes;  // as recorded
  // Packed (BoundedScope::pack): dense, `order` has the dims from the slowest to the fastest.
  // Otherwise the tensor shows the first elements of each dimension.
  trace::Shape order;
  bool packed = false;
};

// Immutable; may be run by several threads.
class CompiledGraph final : public c10::intrusive_ptr_target {
 public:
  // Whether these tensors lie in their values as those it was recorded with.
  bool accepts(const std::vector<at::Tensor>& tensors) const;
  // One tensor per result. Takes the arguments, so that what they hold is freed when it is used up.
  // `numbers` are those of a bounded program (bounded.h).
  std::vector<at::Tensor> run(std::vector<at::Tensor> tensors,
                              const std::vector<int64_t>& numbers = {},
                              const std::vector<float>& floats = {});

  const trace::Program& program() const { return *program_; }

 private:
  friend class GraphRecording;
  friend CompiledPtr load_module(const ModuleToLoad& module);
  friend std::vector<cache::ProgramInfo> compiled_programs();

  // How an argument lies in its value.
  struct Input {
    c10::ScalarType dtype;
    stablehlo::DType value_dtype;
    trace::Shape base_sizes;
    trace::Shape base_strides;
    trace::Geometry geometry;
    bool conj;
    bool neg;
    size_t base;          // the program's argument: views of one storage share it
    bool padded = false;  // any size up to base_sizes
  };
  // How one of several results lies in memory they share.
  struct View {
    c10::ScalarType dtype;
    trace::Geometry geometry;
    bool conj;
    bool neg;
  };
  struct Result {
    int from;  // a new tensor of the program's outputs, or -1 - input
    std::optional<View> view;
  };
  static at::Tensor view_of(const at::Tensor& base, const View& view);
  static Input input_of(const at::Tensor& tensor, const trace::DeviceValue& value, size_t base);
  // Whether the same of them share storages as when it was recorded.
  bool shares_alike(const std::vector<at::Tensor>& tensors) const;

  trace::ProgramPtr program_;
  int device_ = 0;
  std::vector<Input> inputs_;
  std::vector<size_t> bases_;  // per argument of the program: the first of the inputs over it
  bool writes_ = false;
  std::vector<Result> results_;
  std::vector<std::optional<BoundedResult>> bounds_;  // beside results_, or empty
  std::vector<std::pair<std::string, int>> ops_;
};

// Compiles a module, or loads its executable from disk, where it is kept by its text.
void compile_by_text(trace::Program& program, std::string text);
// From here on the graph is part of reports.
void remember(const CompiledPtr& graph);

// A recording as it leaves this process: the module, and what its arguments and results are.
struct RecordedModule {
  std::string text;
  trace::Program description;  // outputs, checks, extra inputs, draws; it has no executable
  std::vector<int> results;    // of the function: see CompiledGraph::results_
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
  // do so at every call; else each has its own.
  CompiledPtr finish(const std::string& name, bool share);
  // The module alone.
  std::string text(const std::string& name);
  void module(const std::string& name, RecordedModule& out);

 private:
  // Which results may lie in memory that is not theirs alone.
  enum class Sharing : uint8_t { kNone, kArguments, kAll };
  at::Tensor add(const at::Tensor& tensor, const trace::DeviceValue& value);
  std::string end(trace::Program& program, Sharing sharing);
  std::unordered_set<const device::Cell*> overlapping() const;

  std::unique_ptr<Recorder> recorder_;
  CompiledPtr made_;
  std::unordered_map<const device::Cell*, size_t> known_;  // storages of the arguments
  std::vector<at::Tensor> given_;
  std::vector<at::Tensor> stand_ins_;
  std::vector<trace::ValuePtr> values_;  // per storage: what it held at first
  std::vector<at::Tensor> results_;
};

// For reports: those that are alive.
std::vector<cache::ProgramInfo> compiled_programs();

}  // namespace torch_tpu::dispatch
