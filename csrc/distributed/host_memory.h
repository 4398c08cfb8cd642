// What a collective reads and writes, as host memory. On XLA:CPU that is the device memory itself:
// an operand is read in place, and a destination's memory becomes the tensor's new value. Elsewhere
// the elements are copied to the host and back.
#pragma once

#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "csrc/trace/promise.h"
#include "csrc/trace/value.h"

namespace torch_tpu::distributed {

// A tensor whose elements lie together in their value: itself, or a copy made on the device.
at::Tensor readable(const at::Tensor& tensor);
// One whose value has its sizes and dtype, so that a program can take it: itself, or a copy.
at::Tensor plain_on_device(const at::Tensor& tensor);

// The elements of a readable tensor as they are now; later writes to the tensor do not show. Made
// on the calling thread after launching what is pending, used on any.
class Operand {
 public:
  explicit Operand(const at::Tensor& readable);

  // Whether reading would not wait.
  bool ready() const;
  // Waits for work outside PJRT; false when `promise_timeout` passes first. Then for the device.
  bool await(std::chrono::milliseconds promise_timeout) const;
  // The same for who only hands the value to a program: it need not be computed yet.
  bool launched() const;
  bool await_launch(std::chrono::milliseconds promise_timeout) const;
  // The value itself, of a tensor from plain_on_device. The operand is empty afterwards.
  trace::ValuePtr into_value() { return std::move(value_); }
  // A contiguous CPU tensor that must not be written; valid as long as it lives.
  at::Tensor host() const;
  // Memory that may be written, with the elements in it: that of the value itself when nobody else
  // holds it and no program can be reading it, else a copy. The operand is empty afterwards.
  class Memory into_memory();
  int64_t nbytes() const noexcept { return numel_ * item_; }

 private:
  bool worth_taking() const;

  trace::ValuePtr value_;  // null: uninitialised memory, which reads as zeros
  trace::Shape sizes_;
  c10::ScalarType dtype_;
  int64_t offset_;  // in elements
  int64_t numel_;
  int64_t item_;
};

// Host memory that will be a value.
class Memory {
 public:
  Memory() = default;
  // New memory.
  Memory(c10::IntArrayRef sizes, c10::ScalarType dtype);
  // That of a value nobody else holds.
  Memory(trace::ValuePtr value, c10::IntArrayRef sizes, c10::ScalarType dtype);

  const at::Tensor& host() const noexcept { return host_; }
  // A PJRT buffer over it, without a copy where device memory is host memory.
  PJRT_Buffer* into_buffer(int device);

 private:
  at::Tensor host_;
  std::shared_ptr<pjrt::Buffer> taken_;
};

// A tensor that a collective writes. The tensor has its new value at once; memory comes later.
class Destination {
 public:
  // `keep`: the collective also reads the old contents (they come with use_memory).
  Destination(const at::Tensor& tensor, const trace::PromisePtr& promise, bool keep);

  // Called before the transport runs: the memory it shall write.
  void use_memory(Memory memory) { memory_ = std::move(memory); }
  void use_new_memory();
  // For who runs on the device: the memory itself, which is given away.
  void use_buffer(PJRT_Buffer* buffer);
  const at::Tensor& host() const noexcept { return memory_.host(); }
  // The memory becomes the value; drops the reference to it. Then the promise may be kept.
  void deliver();

  // What is left to do on the caller's side once the value is there: for tensors that are only a
  // part of their storage. Null when nothing is.
  struct Copy {
    at::Tensor to, from;
  };
  const std::optional<Copy>& copy() const noexcept { return copy_; }
  int64_t nbytes() const noexcept { return value_->bytes(); }  // until delivered

 private:
  trace::ValuePtr value_;
  trace::ValuePtr old_;  // its memory may serve again
  trace::Shape sizes_;
  c10::ScalarType dtype_;
  int device_;
  Memory memory_;
  pjrt::Buffer buffer_;
  std::optional<Copy> copy_;
};

// As a flat tensor of bytes, for transports that move data and know few dtypes.
at::Tensor as_bytes(const at::Tensor& host);

}  // namespace torch_tpu::distributed
