// Builder: the function around the instructions.
#include "csrc/stablehlo/builder.h"

#include "csrc/stablehlo/builder_impl.h"
#include "csrc/stablehlo/printer.h"

namespace torch_tpu::stablehlo {

Builder::Builder() : impl_(std::make_unique<Impl>(this)) {}
Builder::~Builder() = default;

Value Builder::parameter(const Type& type) {
  check_type("parameter", type);
  impl_->aliased_output.push_back(-1);
  impl_->parameter_attributes.emplace_back();
  return impl_->graph.add_argument(0, type);
}

Graph& Printer::graph_of(Builder& builder) { return builder.impl_->graph; }

int64_t Builder::num_parameters() const {
  return static_cast<int64_t>(impl_->aliased_output.size());
}

void Builder::alias(int64_t parameter, int64_t output) {
  check_index("alias", "parameter", parameter, num_parameters());
  if (output < 0) fail("alias", "an output number", std::to_string(output));
  impl_->aliased_output[parameter] = output;
}

void Builder::set_partitions(int64_t replicas, int64_t partitions) {
  if (replicas < 1 || partitions < 1) {
    fail("set_partitions", "positive counts", list_text({replicas, partitions}));
  }
  impl_->replicas = replicas;
  impl_->partitions = partitions;
}

void Builder::parameter_attribute(int64_t parameter, std::string text) {
  check_index("parameter_attribute", "parameter", parameter, num_parameters());
  std::string& all = impl_->parameter_attributes[parameter];
  if (!all.empty()) all += ", ";
  all += text;
}

void Builder::result_attribute(int64_t output, std::string text) {
  if (output < 0) fail("result_attribute", "an output number", std::to_string(output));
  impl_->result_attributes.emplace_back(output, std::move(text));
}

void Builder::module_prologue(std::string text) { impl_->prologue += text + "\n"; }

const Type& Builder::type_of(int32_t id) const { return impl_->graph.types.at(id); }

std::string Builder::finish(const Values& results, std::string_view module_name) {
  const Graph& graph = impl_->graph;
  if (graph.open.size() != 1) fail("finish", "the function's own scope", "a region");
  Function function;
  function.module_name = module_name;
  function.prologue = impl_->prologue;
  function.replicas = impl_->replicas;
  function.partitions = impl_->partitions;
  for (const Value& x : results) {
    graph.check("finish", x);
    if (graph.value_block[x.id()] != 0) fail("finish", "a value in scope", "one of a region");
    function.results.push_back(x.id());
  }
  function.parameter_attributes = impl_->parameter_attributes;
  std::vector<bool> taken(results.size(), false);
  for (int64_t i = 0; i < num_parameters(); ++i) {
    int64_t output = impl_->aliased_output[i];
    if (output < 0) continue;
    check_index("alias", "output", output, static_cast<int64_t>(results.size()));
    if (taken[output]) fail("alias", "one parameter per output", std::to_string(output) + " again");
    taken[output] = true;
    const Type& type = graph.types[graph.blocks[0].arguments[i]];
    if (results[output].dtype() != type.dtype || results[output].dims() != type.dims) {
      fail("alias", "an output of type " + type.str(), results[output].type());
    }
    std::string& text = function.parameter_attributes[i];
    if (!text.empty()) text += ", ";
    text += "tf.aliasing_output = " + std::to_string(output) + " : i32";
  }
  function.result_attributes.resize(results.size());
  for (const auto& [output, text] : impl_->result_attributes) {
    check_index("result_attribute", "output", output, static_cast<int64_t>(results.size()));
    std::string& all = function.result_attributes[output];
    if (!all.empty()) all += ", ";
    all += text;
  }
  return Printer(graph).print(function);
}

}  // namespace torch_tpu::stablehlo
