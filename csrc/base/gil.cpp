#include "csrc/base/gil.h"

namespace torch_tpu::base {
namespace {

GilHooks gil_hooks;

}  // namespace

void set_gil_hooks(GilHooks hooks) { gil_hooks = hooks; }

WithoutGil::WithoutGil() {
  if (gil_hooks.release != nullptr) state_ = gil_hooks.release();
}

WithoutGil::~WithoutGil() {
  if (state_ != nullptr) gil_hooks.take(state_);
}

}  // namespace torch_tpu::base
