#include "csrc/stablehlo/regions.h"

#include "csrc/stablehlo/builder_impl.h"
#include "csrc/stablehlo/printer.h"

namespace torch_tpu::stablehlo {
namespace {

struct Added {
  Type type;
  int64_t fill;
};

}  // namespace

Values growing_loop(Builder& b, const Values& inits, const Region& condition,
                    const LoopBody& body) {
  Graph& graph = Printer::graph_of(b);
  for (const Value& x : inits) graph.check("while", x);
  std::vector<Type> types = types_of(inits);
  std::vector<Added> added;
  const auto block = static_cast<int32_t>(graph.blocks.size());
  const AddCarry add = [&](const Type& type, int64_t fill) {
    added.push_back({type, fill});
    return graph.add_argument(block, type);
  };
  const int32_t step = graph.region(
      "while", types, [&](const Values& arguments) { return body(arguments, add); },
      /*isolated=*/false);

  Values starts = inits;
  for (const Added& carry : added) {
    types.push_back(carry.type);
    starts.push_back(b.splat_int(carry.fill, carry.type));
  }
  if (graph.result_types(step) != types) {
    fail("while", "a body that returns " + types_text(types), types_text(graph.result_types(step)));
  }
  const int32_t test = graph.region("while", types, condition, /*isolated=*/false);
  if (graph.result_types(test) != std::vector<Type>{Type(DType::kBool, {})}) {
    fail("while", "a condition that returns tensor<i1>", types_text(graph.result_types(test)));
  }
  return graph.emit("stablehlo.while", starts, types, {}, Form::kGeneric, {test, step});
}

Values if_else(Builder& b, const Value& pred, const ArmBody& on_true, const ArmBody& on_false,
               const Value& absent) {
  Graph& graph = Printer::graph_of(b);
  graph.check("if", pred);
  check_scalar("if", pred, DType::kBool);
  size_t own[2] = {0, 0};
  std::vector<int32_t> regions;
  for (int i = 0; i < 2; ++i) {
    regions.push_back(graph.region(
        "if", {},
        [&](const Values&) {
          Arm arm = i == 0 ? on_true() : on_false();
          own[i] = arm.own.size();
          for (const Value& x : arm.own) {
            if (x.type() != absent.type()) fail("if", absent.type().str(), x.type());
          }
          Values all = std::move(arm.results);
          if (i == 1) all.insert(all.end(), own[0], absent);
          all.insert(all.end(), arm.own.begin(), arm.own.end());
          return all;
        },
        /*isolated=*/false));
  }
  std::vector<int32_t>& first = graph.blocks[regions[0]].results;
  first.insert(first.end(), own[1], absent.id());
  const std::vector<Type> types = graph.result_types(regions[0]);
  if (graph.result_types(regions[1]) != types) {
    fail("if", "branches that all return " + types_text(types),
         types_text(graph.result_types(regions[1])));
  }
  return graph.emit("stablehlo.if", {pred}, types, {}, Form::kGeneric, regions);
}

}  // namespace torch_tpu::stablehlo
