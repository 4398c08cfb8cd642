// Copies: dtype conversion and broadcast of the source into the destination's shape.
#include <cmath>

#include "csrc/ops/helpers.h"
#include "csrc/ops/table.h"

namespace torch_tpu::ops {
namespace {

// What does not fit into an s32 or s64 becomes the smallest one, as of the CPU's conversion; XLA's
// gives the largest, and 0 for NaN. Narrower integers are the lower bits of an s32.
Value converted(const Value& x, DType dtype) {
  if (!is_float(x.dtype()) || !is_integer(dtype)) return cast(x, dtype);
  Builder& b = x.builder();
  if (dtype_bytes(dtype) < 4) return b.convert(converted(x, DType::kS32), dtype);
  if (dtype != DType::kS32 && dtype != DType::kS64) return cast(x, dtype);
  const Value wide = cast(x, x.dtype() == DType::kF64 ? DType::kF64 : DType::kF32);
  const Value fits = b.lt(wide, b.like(wide, std::ldexp(1.0, dtype == DType::kS32 ? 31 : 63)));
  const Value whole = cast(wide, dtype);
  return b.select(fits, whole, b.broadcast_to(b.lowest(dtype), whole.dims()));
}

Values lower_copy(Call& c) {
  return {c.b.broadcast_to(converted(c.tensor("src"), c.out().dtype), c.out().dims)};
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
