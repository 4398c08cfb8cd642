// Instruction storage: value numbering, open regions, capture rules.
#include "csrc/stablehlo/graph.h"

#include <stdexcept>
#include <utility>

#include "csrc/stablehlo/builder.h"

namespace torch_tpu::stablehlo {

Graph::Graph(Builder* owner) : owner_(owner) {
  blocks.emplace_back();
  open.push_back(0);
}

int32_t Graph::new_value(const Type& type, int32_t instruction, int32_t block) {
  types.push_back(type);
  definition.push_back(instruction);
  value_block.push_back(block);
  return static_cast<int32_t>(types.size()) - 1;
}

Value Graph::add_argument(int32_t block, const Type& type) {
  int32_t id = new_value(type, -1, block);
  blocks[block].arguments.push_back(id);
  return value(id);
}

void Graph::check(std::string_view op, const Value& x) const {
  if (!x.defined()) fail(op, "a value", "an undefined one");
  if (&x.builder() != owner_) fail(op, "a value of this builder", "one of another builder");
  if (x.id() < 0 || static_cast<size_t>(x.id()) >= types.size()) {
    fail(op, "a value of this builder", "an unknown id");
  }
}

int32_t Graph::use(std::string_view op, const Value& x) {
  check(op, x);
  int32_t home = value_block[x.id()];
  bool captured = false;
  size_t level = open.size();
  while (level > 0 && open[level - 1] != home) {
    captured |= blocks[open[level - 1]].isolated;
    --level;
  }
  if (level == 0) fail(op, "a value in scope", "one of a region that has ended");
  if (!captured) return x.id();

  int32_t source = definition[x.id()];
  if (source < 0 || instructions[source].form != Form::kConstant) {
    fail(op, "a region that only uses its arguments and constants",
         "a captured " + types[x.id()].str());
  }
  Value copy = emit1(instructions[source].name, {}, types[x.id()],
                     std::string(instructions[source].attributes), Form::kConstant);
  return copy.id();
}

Values Graph::emit(std::string_view name, const Values& operands, const std::vector<Type>& results,
                   std::string attributes, Form form, std::vector<int32_t> regions) {
  std::vector<int32_t> ids;
  ids.reserve(operands.size());
  for (const Value& x : operands) ids.push_back(use(short_name(name), x));

  int32_t index = static_cast<int32_t>(instructions.size());
  int32_t block = open.back();
  for (int32_t region : regions) blocks[region].parent = index;
  Values out;
  out.reserve(results.size());
  int32_t first = static_cast<int32_t>(types.size());
  for (const Type& type : results) out.push_back(value(new_value(type, index, block)));
  instructions.push_back({name,
                          form,
                          false,
                          block,
                          first,
                          static_cast<int32_t>(results.size()),
                          std::move(ids),
                          std::move(regions),
                          std::move(attributes),
                          {},
                          current_label()});
  blocks[block].instructions.push_back(index);
  return out;
}

Value Graph::emit1(std::string_view name, const Values& operands, const Type& result,
                   std::string attributes, Form form, std::vector<int32_t> regions) {
  return emit(name, operands, {result}, std::move(attributes), form, std::move(regions))[0];
}

int32_t Graph::region(std::string_view op, const std::vector<Type>& arguments, const Region& body,
                      bool isolated) {
  int32_t block = static_cast<int32_t>(blocks.size());
  blocks.emplace_back().isolated = isolated;
  Values values;
  values.reserve(arguments.size());
  for (const Type& type : arguments) values.push_back(add_argument(block, type));

  open.push_back(block);
  struct Close {  // also when the body throws
    Graph& graph;
    ~Close() { graph.open.pop_back(); }
  } close{*this};
  std::vector<int32_t> results;
  for (const Value& x : body(values)) results.push_back(use(op, x));
  blocks[block].results = std::move(results);
  return block;
}

std::vector<Type> Graph::result_types(int32_t block) const {
  std::vector<Type> out;
  for (int32_t id : blocks[block].results) out.push_back(types[id]);
  return out;
}

}  // namespace torch_tpu::stablehlo
