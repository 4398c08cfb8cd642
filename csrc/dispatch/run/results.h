// Puts the results of a call in place of its arguments on the stack: new tensors, and new values in
// the cells it writes. The same whether the call ran or was only recorded.
#pragma once

#include <vector>

#include "csrc/device/tensor.h"
#include "csrc/dispatch/call/frame.h"
#include "csrc/dispatch/run/counted.h"
#include "csrc/trace/program.h"

namespace torch_tpu::dispatch {

// `make_value(output)` is called once per defined output, in order; `counts` are what the program
// counted, for results whose size that decides.
template <typename MakeValue>
void place_results(const std::vector<trace::Program::Output>& outputs,
                   const std::vector<c10::IValue>& numbers, const Counts& counts, Frame& frame,
                   c10::Stack* stack, MakeValue&& make_value) {
  const Op& op = frame.op;
  c10::SmallVector<at::Tensor, 4> fresh;
  for (const auto& output : outputs) {
    if (!output.defined) {
      if (output.write < 0) fresh.emplace_back();
      continue;
    }
    TensorRef* target =
        output.write >= 0 ? &frame.tensors[static_cast<size_t>(output.write)] : nullptr;
    if (target != nullptr && target->donated) {  // its memory is the result's: count it once
      target->value.reset();
      frame.leases.of(target->cell).forget();
    }
    trace::ValuePtr value = make_value(output);
    if (target != nullptr) {
      target->value.reset();
      device::Lease& lease = frame.leases.of(target->cell);
      if (frame.leases.single() && outputs.size() == 1) {
        lease.finish(std::move(value));
      } else {
        lease.put(std::move(value));
      }
    } else if (output.extent) {
      const int64_t count = counts[static_cast<size_t>(output.extent->count)];
      fresh.push_back(counted_tensor(*output.extent, count, output.dtype, std::move(value)));
    } else {
      fresh.push_back(device::make_tensor(output.sizes, output.strides, output.dtype, frame.device,
                                          std::move(value)));
    }
  }

  const size_t num_args = op.args.size();
  if (op.returns.size() == 1 && !op.return_is_list[0]) {  // nearly every op
    c10::IValue result =
        op.returns[0] >= 0 ? frame.args[op.returns[0]] : c10::IValue(std::move(fresh[0]));
    stack->erase(stack->end() - static_cast<std::ptrdiff_t>(num_args), stack->end());
    stack->push_back(std::move(result));
    return;
  }
  c10::SmallVector<c10::IValue, 4> results;
  size_t singles = 0;  // new tensors that are not part of a list
  for (size_t i = 0; i < op.returns.size(); ++i) {
    if (op.returns[i] < 0 && !op.return_is_list[i]) ++singles;
  }
  const size_t in_list = fresh.size() - singles;
  size_t taken = 0;
  for (size_t i = 0; i < op.returns.size(); ++i) {
    if (op.returns[i] >= 0) {
      results.push_back(frame.args[op.returns[i]]);
    } else if (op.return_is_list[i]) {
      c10::List<at::Tensor> list;
      for (size_t k = 0; k < in_list; ++k) list.push_back(std::move(fresh[taken++]));
      results.emplace_back(std::move(list));
    } else if (!op.return_is_tensor[i]) {
      ++taken;  // the lowering gave an undefined value for it
      results.push_back(numbers[i]);
    } else {
      results.emplace_back(std::move(fresh[taken++]));
    }
  }
  stack->erase(stack->end() - static_cast<std::ptrdiff_t>(num_args), stack->end());
  for (c10::IValue& result : results) stack->push_back(std::move(result));
}

}  // namespace torch_tpu::dispatch
