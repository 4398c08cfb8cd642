// Waiting without Python's lock. Whoever makes the thing waited for may need that lock, to word an
// error or to free an object. Nothing below the bindings knows Python: they say how, once.
#pragma once

namespace torch_tpu::base {

// Lets go of Python's lock while it lives, if this thread holds it.
class WithoutGil {
 public:
  WithoutGil();
  ~WithoutGil();
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;

 private:
  void* state_ = nullptr;
};

// Set while the module is imported, before the first op.
struct GilHooks {
  void* (*release)() noexcept = nullptr;  // null when this thread does not hold it
  void (*take)(void*) = nullptr;
};
void set_gil_hooks(GilHooks hooks);

}  // namespace torch_tpu::base
