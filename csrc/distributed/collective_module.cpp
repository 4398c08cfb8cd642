#include "csrc/distributed/collective_module.h"

#include <stdexcept>

namespace torch_tpu::distributed {
namespace {

using stablehlo::Builder;
using stablehlo::Reduction;
using stablehlo::Value;

Value averaged(Builder& b, const Value& sum, int64_t size) {
  return b.divide(sum, b.splat_int(size, sum.type()));
}

// Everyone but the first adds zeros: any device may be the source, and every topology has it.
Value from_first(Builder& b, const Value& x, const CollectiveModule& what,
                 const stablehlo::CollectiveGroups& groups) {
  const Value me = b.partition_id();
  Value first;
  for (const auto& group : what.groups) {
    const Value same = b.eq(me, b.splat_int(group[0], me.type()));
    first = first.defined() ? b.or_(first, same) : same;
  }
  const Value mask = b.broadcast_in_dim(first, x.dims(), {});
  return b.all_reduce(b.select(mask, x, b.splat(0, x.type())), groups, Reduction::kAdd);
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
    if (static_cast<int64_t>(group.size()) != size || size == 0) {
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
    out = b.all_reduce(x, groups, what.reduction);
  } else if (what.op == "all_gather") {
    out = b.all_gather(x, 0, size, groups);
  } else if (what.op == "reduce_scatter") {
    out = b.reduce_scatter(x, 0, size, groups, what.reduction);
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
