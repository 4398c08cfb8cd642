// Reductions on host memory: how each dtype and operation is brought to what the transport can
// reduce, and back; and reducing pieces that are already here.
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

namespace torch_tpu::distributed {

// PyTorch's error for an operation that has no meaning for the dtype.
void check_reduction(const c10d::ReduceOp& op, c10::ScalarType dtype);

// A tensor on its way through an all_reduce or reduce. `host` is overwritten with the result.
class Reduction {
 public:
  Reduction(at::Tensor host, const c10d::ReduceOp& op, int ranks);

  // What the transport reduces in place, and by what; `host` itself where that is possible.
  at::Tensor& wire() noexcept { return wire_; }
  c10d::ReduceOp::RedOpType wire_op() const noexcept { return wire_op_; }
  // After the transport: the result into `host`.
  void finish();

 private:
  at::Tensor host_;
  at::Tensor wire_;
  c10d::ReduceOp::RedOpType wire_op_;
  c10d::ReduceOp::RedOpType op_;
  int ranks_;
  bool flip_sign_ = false;  // uint64 ordered as int64
};

// Reduces pieces as large as `out`, one per rank, which lie one after another in `bytes`, into
// `out`, in the order of the ranks.
void reduce_pieces(const at::Tensor& bytes, const at::Tensor& out, const c10d::ReduceOp& op);

const char* name_of(c10d::ReduceOp::RedOpType op);

}  // namespace torch_tpu::distributed
