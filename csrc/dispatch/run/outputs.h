// The buffers that a run gives back: those nobody took are freed, also when something throws on the
// way to their tensors.
#pragma once

#include <utility>
#include <vector>

#include <c10/util/SmallVector.h>

#include "csrc/pjrt/buffer.h"
#include "csrc/pjrt/runtime.h"

namespace torch_tpu::dispatch {

class Outputs {
 public:
  Outputs() = default;
  Outputs(Outputs&& other) noexcept : raw_(std::move(other.raw_)) { other.raw_.clear(); }
  Outputs(const Outputs&) = delete;
  Outputs& operator=(const Outputs&) = delete;
  ~Outputs() {
    for (PJRT_Buffer* buffer : raw_) pjrt::Buffer(pjrt::Runtime::get().api(), buffer);
  }

  // Room for a run to write to.
  PJRT_Buffer** prepare(size_t count) {
    raw_.assign(count, nullptr);
    return raw_.data();
  }
  size_t size() const noexcept { return raw_.size(); }
  PJRT_Buffer* peek(size_t at) const noexcept { return raw_[at]; }
  // The caller owns it from here on.
  PJRT_Buffer* take(size_t at) noexcept { return std::exchange(raw_[at], nullptr); }
  // The rest, from here to the end.
  std::vector<pjrt::Buffer> take_from(size_t at) {
    std::vector<pjrt::Buffer> out;
    for (; at < raw_.size(); ++at) out.emplace_back(pjrt::Runtime::get().api(), take(at));
    return out;
  }

 private:
  c10::SmallVector<PJRT_Buffer*, 8> raw_;
};

}  // namespace torch_tpu::dispatch
