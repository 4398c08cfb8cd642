#include "csrc/stablehlo/foreign.h"

#include <algorithm>

#include "csrc/stablehlo/printer.h"

namespace torch_tpu::stablehlo {

Values call_foreign(Builder& b, const ForeignFunction& function, const Values& operands) {
  constexpr std::string_view op = "func.call";
  Graph& graph = Printer::graph_of(b);
  check_count(op, "operands of @" + function.symbol, function.operands.size(), operands.size());
  for (size_t i = 0; i < operands.size(); ++i) {
    graph.check(op, operands[i]);
    check_static(op, operands[i]);
    if (operands[i].type() != function.operands[i]) {
      fail(op, function.operands[i].str(), operands[i].type());
    }
  }
  const std::string callee = "callee = @" + function.symbol;
  const bool known = std::any_of(
      graph.instructions.begin(), graph.instructions.end(),
      [&](const Instruction& other) { return other.name == op && other.attributes == callee; });
  if (!known) b.module_prologue(function.text);
  return graph.emit(op, operands, function.results, callee);
}

}  // namespace torch_tpu::stablehlo
