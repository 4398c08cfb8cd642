// The hits of a mask: how many, the how manieth each one is, and where they lie. Shared by the ops
// that read and write by mask.
#pragma once

#include "csrc/ops/call.h"

namespace torch_tpu::ops {

struct Hits {
  Value hit;     // bool [n], the flattened mask
  Value number;  // [n]: how many hits come before the next element, less one; s32 where n allows
  Value count;   // of the same type, 0-d
};

Hits find_hits(const Value& mask);
// number where it hits, else -1, which a write drops.
Value hit_targets(const Hits& hits);
// [n]: the flat positions of the hits in order, then zeros.
Value hit_positions(const Hits& hits);

}  // namespace torch_tpu::ops
