#include "csrc/distributed/collective_module.h"

#include <stdexcept>

namespace torch_tpu::distributed {
namespace {

using stablehlo::Builder;
using stablehlo::Dims;
using stablehlo::Reduction;
using stablehlo::Value;

Value averaged(Builder& b, const Value& sum, int64_t size) {
  return b.divide(sum, b.splat_int(size, sum.type()));
}

// What no compiler, or not TPU's, reduces between devices: integers bit by bit, and numbers of 64
// bits other than by adding. Then everything is sent, and reduced where it arrives.
bool reduced_on_arrival(const Value& x, Reduction kind) {
  if (kind == Reduction::kAnd || kind == Reduction::kOr || kind == Reduction::kXor) return true;
  return kind != Reduction::kAdd && stablehlo::dtype_bytes(x.dtype()) == 8;
}

Value identity(Builder& b, stablehlo::DType dtype, Reduction kind) {
  const stablehlo::Type scalar(dtype, {});
  switch (kind) {
    case Reduction::kMul:
      return b.splat_int(1, scalar);
    case Reduction::kMax:
      return b.lowest(dtype);
    case Reduction::kMin:
      return b.highest(dtype);
    case Reduction::kAnd:
      return b.not_(b.splat_int(0, scalar));
    default:
      return b.splat_int(0, scalar);
  }
}

// `x` has one slice along dimension 0 per member of the group.
Value reduce_slices(Builder& b, const Value& x, Reduction kind) {
  return b.reduce(x, identity(b, x.dtype(), kind), {0}, kind);
}

}  // namespace

namespace steps {

Value all_reduce(Builder& b, const Value& x, int64_t size, Reduction kind,
                 const stablehlo::CollectiveGroups& groups) {
  if (!reduced_on_arrival(x, kind)) return b.all_reduce(x, groups, kind);
  Dims dims = x.dims();
  dims.insert(dims.begin(), 1);
  return reduce_slices(b, b.all_gather(b.reshape(x, dims), 0, size, groups), kind);
}

Value reduce_scatter(Builder& b, const Value& x, int64_t size, Reduction kind,
                     const stablehlo::CollectiveGroups& groups) {
  // Nor does TPU's scatter sums of float64.
  if (!reduced_on_arrival(x, kind) && x.dtype() != stablehlo::DType::kF64) {
    return b.reduce_scatter(x, 0, size, groups, kind);
  }
  const Value sent = b.all_to_all(x, 0, 0, size, groups);
  Dims dims = x.dims();
  dims[0] /= size;
  dims.insert(dims.begin(), size);
  return reduce_slices(b, b.reshape(sent, dims), kind);
}

Value is_one_of(Builder& b, const std::vector<int64_t>& partitions, const Dims& dims,
                int64_t channel) {
  std::vector<std::pair<int64_t, int64_t>> to_itself;
  for (const int64_t partition : partitions) to_itself.emplace_back(partition, partition);
  const stablehlo::Type number(stablehlo::DType::kS32, {});
  const Value sent = b.collective_permute(b.splat_int(1, number), to_itself, channel);
  return b.broadcast_in_dim(b.eq(sent, b.splat_int(1, number)), dims, {});
}

}  // namespace steps

namespace {

// Everyone but the first of a group adds zeros.
Value from_first(Builder& b, const Value& x, const CollectiveModule& what,
                 const stablehlo::CollectiveGroups& groups) {
  std::vector<int64_t> roots;
  for (const auto& group : what.groups) roots.push_back(group[0]);
  const Value mask = steps::is_one_of(b, roots, x.dims(), 2);
  return b.all_reduce(b.select(mask, x, b.splat_int(0, x.type())), groups, Reduction::kAdd);
}

}  // namespace

void set_reduction(CollectiveModule& what, const std::string& name) {
  what.average = name == "avg";
  if (name == "sum" || name == "avg") {
    what.reduction = Reduction::kAdd;
  } else if (name == "product") {
    what.reduction = Reduction::kMul;
  } else if (name == "min") {
    what.reduction = Reduction::kMin;
  } else if (name == "max") {
    what.reduction = Reduction::kMax;
  } else if (name == "band") {
    what.reduction = Reduction::kAnd;
  } else if (name == "bor") {
    what.reduction = Reduction::kOr;
  } else if (name == "bxor") {
    what.reduction = Reduction::kXor;
  } else {
    throw std::invalid_argument("no reduction is called '" + name + "'");
  }
}

std::string collective_module(const CollectiveModule& what) {
  if (what.groups.empty()) throw std::invalid_argument("a collective without groups");
  const auto size = static_cast<int64_t>(what.groups[0].size());
  for (const auto& group : what.groups) {
    const bool fits = static_cast<int64_t>(group.size()) == size || what.op == "permute";
    if (!fits || group.empty()) {
      throw std::invalid_argument("groups of different sizes");
    }
  }
  stablehlo::CollectiveGroups groups;
  groups.replica_groups = {what.groups.begin(), what.groups.end()};
  groups.channel_id = 1;
  groups.use_global_device_ids = true;
  Builder b;
  const Value x = b.parameter(stablehlo::Type(what.dtype, what.dims));
  Value out;
  if (what.op == "all_reduce") {
    out = steps::all_reduce(b, x, size, what.reduction, groups);
  } else if (what.op == "all_gather") {
    out = b.all_gather(x, 0, size, groups);
  } else if (what.op == "reduce_scatter") {
    out = steps::reduce_scatter(b, x, size, what.reduction, groups);
  } else if (what.op == "all_to_all") {
    out = b.all_to_all(x, 0, 0, size, groups);
  } else if (what.op == "broadcast") {
    out = from_first(b, x, what, groups);
  } else if (what.op == "permute") {
    std::vector<std::pair<int64_t, int64_t>> pairs;
    for (const auto& group : what.groups) {
      for (size_t i = 0; i < group.size(); ++i) {
        pairs.emplace_back(group[i], group[(i + 1) % group.size()]);
      }
    }
    out = b.collective_permute(x, pairs, 1);
  } else {
    throw std::invalid_argument("no collective is called '" + what.op + "'");
  }
  if (what.average) out = averaged(b, out, size);
  return b.finish({out}, "collective_" + what.op);
}

}  // namespace torch_tpu::distributed
