// Where the results of a call go: new values into the cells it writes, new tensors to its caller.
// The same whether the call ran or was only recorded.
#pragma once

#include <vector>

#include "csrc/device/tensor.h"
#include "csrc/dispatch/call/frame.h"
#include "csrc/dispatch/run/counted.h"
#include "csrc/trace/program.h"

namespace torch_tpu::dispatch {

// What a call gives beside the arguments it wrote.
struct Results {
  c10::SmallVector<at::Tensor, 4> fresh;
  std::vector<c10::IValue> numbers;  // one per return of the schema, for ops that have some
};

// Fills the cells, and `results`. `make_value(output)` is called once per defined output, in order;
// `counts` are what the program counted, for results whose size that decides.
template <typename MakeValue>
void place_results(const std::vector<trace::Program::Output>& outputs,
                   const std::vector<c10::IValue>& numbers, const Counts& counts, Frame& frame,
                   Results& results, MakeValue&& make_value) {
  if (!numbers.empty()) results.numbers = numbers;
  for (const auto& output : outputs) {
    if (!output.defined) {
      if (output.write < 0) results.fresh.emplace_back();
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
      results.fresh.push_back(
          counted_tensor(*output.extent, count, output.dtype, std::move(value)));
    } else {
      results.fresh.push_back(device::make_tensor(output.sizes, output.strides, output.dtype,
                                                  frame.device, std::move(value)));
    }
  }
}

// Puts them in place of the arguments on the stack.
void push_results(const Op& op, Results results, c10::Stack* stack);

}  // namespace torch_tpu::dispatch
