// A function of tensors that was recorded once and runs as one program: what torch.compile calls.
// Arguments may be views; the program reads them from their base values, so nothing is copied on
// the way in. Writes to arguments become new values in their cells, in the old one's memory where
// nobody else holds it.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include "csrc/cache/program_info.h"
#include "csrc/device/cell.h"
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
  // Packed (VaryingScope::pack): dense, `order` has the dims from the slowest to the fastest.
  // Otherwise the tensor shows the first elements of each dimension.
  trace::Shape order;
  bool packed = false;
};

// Immutable; may be run by several threads.
class CompiledGraph final : public c10::intrusive_ptr_target {
 public:
  // The values of arguments: each is read once a call, so that no write comes in between.
  using Values = c10::SmallVector<trace::ValuePtr, 16>;
  // Whether these tensors lie in their values as those it was recorded with; then also the values,
  // one per argument of the program.
  bool accepts(const std::vector<at::Tensor>& tensors, Values& values) const;
  // One tensor per result, for arguments that were accepted. Takes them, so that what they hold is
  // freed when it is used up. `numbers` are those of a bounded program (record/varying.h). Nothing,
  // and the arguments are as they were, when another thread has written one of them meanwhile so
  // that it would no longer be accepted.
  std::optional<std::vector<at::Tensor>> run(std::vector<at::Tensor>& tensors, Values& values,
                                             const std::vector<int64_t>& numbers = {},
                                             const std::vector<float>& floats = {});

  const trace::Runnable& program() const { return *program_; }
  // What it was recorded under: see settings_word().
  uint64_t settings() const { return settings_; }

 private:
  friend class GraphRecording;
  friend CompiledPtr load_module(const ModuleToLoad& module);
  friend std::vector<cache::ProgramInfo> compiled_programs();

  // How a tensor lies in its storage.
  struct View {
    c10::ScalarType dtype;
    trace::Geometry geometry;
    bool conj = false;
    bool neg = false;

    explicit View(const at::Tensor& tensor);
    View(c10::ScalarType dtype, trace::Geometry geometry)
        : dtype(dtype), geometry(std::move(geometry)) {}
    bool fits(const at::Tensor& tensor) const;
    at::Tensor over(const at::Tensor& base) const;
  };
  struct Input {
    View view;
    stablehlo::DType value_dtype;
    trace::Shape base_sizes;
    trace::Shape base_strides;
    size_t base;          // the program's argument: views of one storage share it
    bool padded = false;  // any size up to base_sizes
  };
  struct Result {
    int from;                  // a new tensor of the program's outputs, or -1 - input
    std::optional<View> view;  // where it shares the memory of `from`
    bool early = false;        // a single element for the caller, probably to be read: a loss
  };
  bool fits(const Input& input, const trace::ValuePtr& value) const;
  // The cells it writes, and their values as they are then; false when one does not fit any more.
  bool lease_written(const std::vector<at::Tensor>& tensors, Values& values,
                     device::Leases& leases) const;
  // Whether the same of them share storages as when it was recorded.
  bool shares_alike(const std::vector<at::Tensor>& tensors) const;

  trace::RunnablePtr program_;
  int device_ = 0;
  uint64_t settings_ = 0;
  std::vector<Input> inputs_;
  std::vector<size_t> bases_;  // per argument of the program: the first of the inputs over it
  bool writes_ = false;
  std::vector<Result> results_;
  std::vector<std::optional<BoundedResult>> bounds_;  // beside results_, or empty
  std::vector<std::pair<std::string, int>> ops_;
};

// What an argument holds. Memory that nobody wrote yet reads as zeros.
trace::ValuePtr value_of(const at::Tensor& tensor);
// Compiles a module, or loads its executable from disk, where it is kept by its text.
void compile_by_text(trace::Runnable& program, std::string text);
// Under which compile_by_text looks for a program.
trace::Key key_of_text(const std::string& text);
// From here on the graph is part of reports.
void remember(const CompiledPtr& graph);

// For reports: those that are alive.
std::vector<cache::ProgramInfo> compiled_programs();

}  // namespace torch_tpu::dispatch
