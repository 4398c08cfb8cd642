// Builder: collectives between the replicas or partitions of one program.
#include <algorithm>

#include "csrc/stablehlo/builder_impl.h"

namespace torch_tpu::stablehlo {
namespace {

std::string channel_text(const std::optional<int64_t>& id) {
  if (!id) return {};
  return "channel_handle = #stablehlo.channel_handle<handle = " + std::to_string(*id) +
         ", type = 1>, ";
}

// Groups of different sizes are filled up with -1.
std::string groups_text(std::string_view op, const CollectiveGroups& groups) {
  size_t width = 0;
  for (const auto& group : groups.replica_groups) width = std::max(width, group.size());
  if (width == 0) fail(op, "replica groups", "none");
  std::string out = channel_text(groups.channel_id) + "replica_groups = dense<[";
  for (size_t i = 0; i < groups.replica_groups.size(); ++i) {
    Dims row = groups.replica_groups[i];
    row.resize(width, -1);
    if (i > 0) out += ", ";
    out += list_text(row);
  }
  out += "]> : tensor<" + std::to_string(groups.replica_groups.size()) + "x" +
         std::to_string(width) + "xi64>";
  if (groups.use_global_device_ids) {
    if (!groups.channel_id) fail(op, "a channel id with global device ids", "none");
    out += ", use_global_device_ids";
  }
  return out;
}

void check_operand(Graph& graph, std::string_view op, const Value& x,
                   const CollectiveGroups& groups, int64_t group_size) {
  graph.check(op, x);
  check_static(op, x);
  for (const auto& group : groups.replica_groups) {
    if (group_size > 0 && static_cast<int64_t>(group.size()) != group_size) {
      fail(op, "groups of " + std::to_string(group_size), std::to_string(group.size()));
    }
  }
}

int32_t combiner(Graph& graph, std::string_view op, const Value& x, Reduction kind) {
  Type scalar(x.dtype(), {});
  return graph.region(op, {scalar, scalar}, reduction_body(op, x.builder(), kind), true);
}

void check_divisible(std::string_view op, const Value& x, int64_t dim, int64_t parts) {
  check_dim(op, dim, x.rank());
  if (parts < 1 || x.dims()[dim] % parts != 0) {
    fail(op, "dimension " + std::to_string(dim) + " to divide by " + std::to_string(parts),
         x.type());
  }
}

}  // namespace

Value Builder::all_reduce(const Value& x, const CollectiveGroups& groups, Reduction kind) {
  Graph& graph = impl_->graph;
  check_operand(graph, "all_reduce", x, groups, 0);
  std::string text = groups_text("all_reduce", groups);
  int32_t region = combiner(graph, "all_reduce", x, kind);
  return graph.emit1("stablehlo.all_reduce", {x}, x.type(), std::move(text), Form::kGeneric,
                     {region});
}

Value Builder::all_gather(const Value& x, int64_t dim, int64_t group_size,
                          const CollectiveGroups& groups) {
  constexpr std::string_view op = "all_gather";
  check_operand(impl_->graph, op, x, groups, group_size);
  check_dim(op, dim, x.rank());
  if (group_size < 1) fail(op, "a positive group size", std::to_string(group_size));
  Type out = x.type();
  out.dims[dim] *= group_size;
  return impl_->graph.emit1(
      "stablehlo.all_gather", {x}, out,
      "all_gather_dim = " + int_attribute(dim) + ", " + groups_text(op, groups));
}

Value Builder::reduce_scatter(const Value& x, int64_t dim, int64_t group_size,
                              const CollectiveGroups& groups, Reduction kind) {
  constexpr std::string_view op = "reduce_scatter";
  Graph& graph = impl_->graph;
  check_operand(graph, op, x, groups, group_size);
  check_divisible(op, x, dim, group_size);
  Type out = x.type();
  out.dims[dim] /= group_size;
  std::string text = groups_text(op, groups) + ", scatter_dimension = " + int_attribute(dim);
  int32_t region = combiner(graph, op, x, kind);
  return graph.emit1("stablehlo.reduce_scatter", {x}, out, std::move(text), Form::kGeneric,
                     {region});
}

Value Builder::all_to_all(const Value& x, int64_t split_dim, int64_t concat_dim,
                          int64_t split_count, const CollectiveGroups& groups) {
  constexpr std::string_view op = "all_to_all";
  check_operand(impl_->graph, op, x, groups, split_count);
  check_divisible(op, x, split_dim, split_count);
  check_dim(op, concat_dim, x.rank());
  // StableHLO's all_to_all takes no global device ids; with a channel they are implied.
  CollectiveGroups plain = groups;
  plain.use_global_device_ids = false;
  Type out = x.type();
  out.dims[split_dim] /= split_count;
  out.dims[concat_dim] *= split_count;
  return impl_->graph.emit1("stablehlo.all_to_all", {x}, out,
                            groups_text(op, plain) +
                                ", concat_dimension = " + int_attribute(concat_dim) +
                                ", split_count = " + int_attribute(split_count) +
                                ", split_dimension = " + int_attribute(split_dim));
}

Value Builder::collective_permute(const Value& x,
                                  const std::vector<std::pair<int64_t, int64_t>>& pairs,
                                  std::optional<int64_t> channel_id) {
  constexpr std::string_view op = "collective_permute";
  impl_->graph.check(op, x);
  check_static(op, x);
  Dims from, to;
  for (const auto& [source, target] : pairs) {
    if (source < 0 || target < 0 || std::find(from.begin(), from.end(), source) != from.end() ||
        std::find(to.begin(), to.end(), target) != to.end()) {
      fail(op, "distinct sources and distinct targets",
           "(" + std::to_string(source) + ", " + std::to_string(target) + ") again");
    }
    from.push_back(source);
    to.push_back(target);
  }
  return impl_->graph.emit1(
      "stablehlo.collective_permute", {x}, x.type(),
      channel_text(channel_id) + "source_target_pairs = " + pairs_attribute(from, to));
}

Value Builder::partition_id() {
  return impl_->graph.emit1("stablehlo.partition_id", {}, Type(DType::kU32, {}));
}

Value Builder::replica_id() {
  return impl_->graph.emit1("stablehlo.replica_id", {}, Type(DType::kU32, {}));
}

}  // namespace torch_tpu::stablehlo
