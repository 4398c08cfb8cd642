#include "csrc/dispatch/run/results.h"

#include <utility>

namespace torch_tpu::dispatch {

void push_results(const Op& op, Results results, c10::Stack* stack) {
  const auto args = stack->end() - static_cast<std::ptrdiff_t>(op.args.size());
  // Moved: a second reference to a tensor of Python's costs torch a turn of the GIL.
  const auto argument = [&](int at) { return std::move(args[at]); };
  if (op.returns.size() == 1 && !op.return_is_list[0]) {  // nearly every op
    c10::IValue result =
        op.returns[0] >= 0 ? argument(op.returns[0]) : c10::IValue(std::move(results.fresh[0]));
    stack->erase(args, stack->end());
    stack->push_back(std::move(result));
    return;
  }
  c10::SmallVector<c10::IValue, 4> all;
  size_t singles = 0;  // new tensors that are not part of a list
  for (size_t i = 0; i < op.returns.size(); ++i) {
    if (op.returns[i] < 0 && !op.return_is_list[i]) ++singles;
  }
  const size_t in_list = results.fresh.size() - singles;
  size_t taken = 0;
  for (size_t i = 0; i < op.returns.size(); ++i) {
    if (op.returns[i] >= 0) {
      all.push_back(argument(op.returns[i]));
    } else if (op.return_is_list[i]) {
      c10::List<at::Tensor> list;
      for (size_t k = 0; k < in_list; ++k) list.push_back(std::move(results.fresh[taken++]));
      all.emplace_back(std::move(list));
    } else if (!op.return_is_tensor[i]) {
      ++taken;  // the lowering gave an undefined value for it
      all.push_back(std::move(results.numbers[i]));
    } else {
      all.emplace_back(std::move(results.fresh[taken++]));
    }
  }
  stack->erase(args, stack->end());
  for (c10::IValue& result : all) stack->push_back(std::move(result));
}

}  // namespace torch_tpu::dispatch
