// Running a StableHLO module that was exported, by this process or another: what torch_tpu.load
// stands on. Writing such a module is GraphRecording::module.
#pragma once

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "csrc/dispatch/graph/compiled.h"
#include "csrc/dispatch/program/node.h"
#include "csrc/ops/source.h"

namespace torch_tpu::dispatch {

// Arguments of the module: `inputs`, then `kept`. Its results: `outputs`, then one s64 per check.
struct ModuleToLoad {
  struct Input {
    c10::ScalarType dtype;
    std::vector<int64_t> sizes;
  };
  struct Output {
    int write;  // the input whose new contents it is, or -1 for a result of the call
    c10::ScalarType dtype;
    std::vector<int64_t> sizes;
    std::vector<int64_t> strides;  // dense
  };

  std::string name;
  std::string text;
  int device = 0;
  std::vector<Input> inputs;
  std::vector<at::Tensor> kept;  // an undefined one is the generator's state
  std::vector<Output> outputs;
  std::vector<ops::ValueCheck> checks;
  uint64_t draws = 0;
};

// Compiles, or loads from disk. The graph takes tensors that lie as plain() makes them. Throws
// pjrt::Error when the compiler does not take the text, std::runtime_error when its results are not
// those of `module`. The arguments are the caller's: see stablehlo/signature.h.
CompiledPtr load_module(const ModuleToLoad& module);

// The tensor itself when it is contiguous and its value has just its shape; else a copy.
at::Tensor plain(const at::Tensor& tensor);

// A tensor that holds the value.
at::Tensor tensor_over(const trace::ValuePtr& value);

}  // namespace torch_tpu::dispatch
