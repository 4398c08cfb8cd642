// Copies: dtype conversion and broadcast of the source into the destination's shape.
#include "csrc/ops/helpers.h"
#include "csrc/ops/table.h"

namespace torch_tpu::ops {
namespace {

Values lower_copy(Call& c) {
  return {c.b.broadcast_to(cast(c.tensor("src"), c.out().dtype), c.out().dims)};
}

}  // namespace

void add_copy(Entries& t) {
  t.push_back({.name = "copy",
               .lower = lower_copy,
               .cpu_scalars = true,
               .overwrites = true,
               .internal = true});
}

}  // namespace torch_tpu::ops
