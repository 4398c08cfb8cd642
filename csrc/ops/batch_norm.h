// The batch normalization part of the norm family; add_norm calls it.
#pragma once

#include "csrc/ops/table.h"

namespace torch_tpu::ops {

void add_batch_norm(Entries& t);

}  // namespace torch_tpu::ops
