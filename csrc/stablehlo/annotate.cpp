#include "csrc/stablehlo/annotate.h"

#include <utility>

#include "csrc/stablehlo/builder_impl.h"
#include "csrc/stablehlo/printer.h"

namespace torch_tpu::stablehlo {
namespace {

thread_local Label label;

}  // namespace

LabelScope::LabelScope(std::string text)
    : previous_(std::exchange(label, std::make_shared<const std::string>(std::move(text)))) {}

LabelScope::~LabelScope() { label = std::move(previous_); }

const Label& current_label() noexcept { return label; }

Value sharding_constraint(Builder& b, const Value& x, const std::string& sharding) {
  Graph& graph = Printer::graph_of(b);
  graph.check("sharding", x);
  Values out = graph.emit("stablehlo.custom_call", {x}, {x.type()},
                          "call_target_name = \"Sharding\", has_side_effect = false");
  graph.instructions.back().annotation = "mhlo.sharding = " + quoted(sharding);
  return out[0];
}

}  // namespace torch_tpu::stablehlo
