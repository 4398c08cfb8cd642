// Whether collectives copy to the host and back even where device memory is host memory, as they do
// on all other plugins. For tests of that path.
#pragma once

namespace torch_tpu::distributed {

void set_always_copy(bool always) noexcept;

}  // namespace torch_tpu::distributed
