// A client that spans processes: who takes part, and the store through which they find each other.
// For plugins that can do it (TPU, CUDA); said before the client starts.
#pragma once

#include <memory>

#include "csrc/pjrt/key_value.h"
#include "csrc/pjrt/named_value.h"

namespace torch_tpu::pjrt {

struct Membership {
  std::shared_ptr<KeyValueStore> store;
  int process = 0;
  int processes = 1;
};

// Throws when the client has started.
void set_membership(Membership membership);
// What was set; read once, when the client starts.
Membership current_membership();

}  // namespace torch_tpu::pjrt
