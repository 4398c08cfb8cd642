// Control flow inside a recording: the callbacks' ops are lowered into the regions of a
// stablehlo.if or stablehlo.while. Callbacks take and give tensors and may use tensors from outside
// (they must not write them). Index checks and random numbers inside work: flags are carried out of
// the region, and each iteration of a loop draws from a stream of its own.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace torch_tpu::dispatch {

using Tensors = std::vector<at::Tensor>;

// `pred` has one element. Both branches give the same number of tensors, of the same dtypes and
// sizes; undefined ones in the same places.
Tensors record_if(const at::Tensor& pred, const std::function<Tensors()>& on_true,
                  const std::function<Tensors()>& on_false);

// The condition gives a tensor of one element; the body as many tensors as there are inits, of the
// same dtypes and sizes.
Tensors record_while(const Tensors& inits,
                     const std::function<at::Tensor(const Tensors&)>& condition,
                     const std::function<Tensors(const Tensors&)>& body);

// Goes over dim 0 of `xs`: the body takes the carries and one slice of each, and gives the next
// carries, then what is to be stacked. The result: the last carries, then the stacks. `reverse`:
// from the last slice to the first; stacks are in the order of the slices all the same.
Tensors record_scan(const Tensors& inits, const Tensors& xs, int64_t length,
                    const std::function<Tensors(const Tensors&)>& body, bool reverse = false);

// x.select(dim, index) for an index that only the program knows: 0-d, of an integer dtype.
at::Tensor record_select(const at::Tensor& x, int64_t dim, const at::Tensor& index);

// A RuntimeError with this message when the program finds the one element of `condition` false.
void record_assert(const at::Tensor& condition, std::string message);
// A check that another program made: `flag` is an int64 scalar; see ops::ValueCheck.
void record_check(const at::Tensor& flag, const std::string& kind, std::string message);

// The same elements, spread over devices as `sharding` says; see csrc/stablehlo/annotate.h.
at::Tensor record_sharding(const at::Tensor& tensor, const std::string& sharding);

}  // namespace torch_tpu::dispatch
