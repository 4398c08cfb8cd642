// Builder: custom_call.
#include "csrc/stablehlo/builder_impl.h"

namespace torch_tpu::stablehlo {
namespace {

std::string layouts_text(std::string_view name, const std::vector<Dims>& layouts,
                         const std::vector<Type>& types) {
  if (layouts.empty()) return {};
  check_count("custom_call", name, types.size(), layouts.size());
  std::string out = ", " + std::string(name) + " = [";
  for (size_t i = 0; i < layouts.size(); ++i) {
    check_count("custom_call", "layout entries for " + types[i].str(), types[i].dims.size(),
                layouts[i].size());
    check_dims("custom_call", layouts[i], types[i].rank());
    if (i > 0) out += ", ";
    out += "dense<" + (layouts[i].empty() ? std::string() : list_text(layouts[i])) + "> : tensor<" +
           std::to_string(layouts[i].size()) + "xindex>";
  }
  return out += ']';
}

}  // namespace

Values Builder::custom_call(const CustomCall& call, const Values& operands,
                            const std::vector<Type>& results) {
  constexpr std::string_view op = "custom_call";
  Graph& graph = impl_->graph;
  for (const Value& x : operands) {
    graph.check(op, x);
    check_static(op, x);
  }
  for (const Type& type : results) check_type(op, type);
  if (call.target.empty()) fail(op, "a target", "an empty name");
  bool has_operand_layouts = !call.operand_layouts.empty() || operands.empty();
  bool has_result_layouts = !call.result_layouts.empty() || results.empty();
  if (has_operand_layouts != has_result_layouts &&
      (!call.operand_layouts.empty() || !call.result_layouts.empty())) {
    fail(op, "layouts of both operands and results", "only one of them");
  }
  std::string text = "api_version = " + std::to_string(call.api_version) + " : i32";
  if (!call.backend_config_dict.empty()) {
    text += ", backend_config = " + call.backend_config_dict;
  } else if (call.api_version == 4) {
    text += ", backend_config = {}";  // the typed FFI takes no string
    if (!call.backend_config.empty()) fail(op, "a dictionary with api version 4", "a string");
  } else {
    text += ", backend_config = " + quoted(call.backend_config);
  }
  text += ", call_target_name = " + quoted(call.target);
  text += call.has_side_effect ? ", has_side_effect = true" : ", has_side_effect = false";
  text += layouts_text("operand_layouts", call.operand_layouts, types_of(operands));
  if (!call.output_operand_aliases.empty()) {
    text += ", output_operand_aliases = [";
    std::string_view separator;
    for (const auto& [output, operand] : call.output_operand_aliases) {
      check_index(op, "output", output, static_cast<int64_t>(results.size()));
      check_index(op, "operand", operand, static_cast<int64_t>(operands.size()));
      if (results[output] != operands[operand].type()) {
        fail(op, "an alias of " + results[output].str(), operands[operand].type());
      }
      text.append(separator).append("#stablehlo.output_operand_alias<output_tuple_indices = ");
      text += results.size() == 1 ? "[]" : list_text({output});
      text += ", operand_index = " + std::to_string(operand) + ", operand_tuple_indices = []>";
      separator = ", ";
    }
    text += ']';
  }
  text += layouts_text("result_layouts", call.result_layouts, results);
  Values out = graph.emit("stablehlo.custom_call", operands, results, std::move(text));
  if (call.has_side_effect) {
    int32_t index = static_cast<int32_t>(graph.instructions.size()) - 1;
    graph.instructions[index].side_effect = true;
    graph.side_effects.push_back(index);
  }
  return out;
}

}  // namespace torch_tpu::stablehlo
