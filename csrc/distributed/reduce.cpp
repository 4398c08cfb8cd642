#include "csrc/distributed/reduce.h"

#include <limits>

#include <ATen/ops/bitwise_and.h>
#include <ATen/ops/bitwise_or.h>
#include <ATen/ops/bitwise_xor.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/view_as_complex.h>
#include <ATen/ops/view_as_real.h>
#include <c10/core/ScalarType.h>

namespace torch_tpu::distributed {
namespace {

using c10::ScalarType;
using Kind = c10d::ReduceOp::RedOpType;

bool is_bitwise(Kind op) { return op == Kind::BAND || op == Kind::BOR || op == Kind::BXOR; }

bool ordered(Kind op) { return op == Kind::MIN || op == Kind::MAX; }

// What the transport can reduce without losing anything of `dtype`.
ScalarType wire_dtype(ScalarType dtype) {
  switch (dtype) {
    case ScalarType::Bool:
      return ScalarType::Byte;
    case ScalarType::Short:
    case ScalarType::UInt16:
      return ScalarType::Int;
    case ScalarType::UInt32:
    case ScalarType::UInt64:
      return ScalarType::Long;
    case ScalarType::Float8_e4m3fn:
    case ScalarType::Float8_e5m2:
    case ScalarType::Float8_e4m3fnuz:
    case ScalarType::Float8_e5m2fnuz:
      return ScalarType::Float;
    default:
      return dtype;
  }
}

// On 0 and 1, every operation is one of these.
Kind on_bool(Kind op) {
  switch (op) {
    case Kind::SUM:
    case Kind::MAX:
    case Kind::BOR:
      return Kind::MAX;
    case Kind::BXOR:
      return Kind::BXOR;
    default:
      return Kind::MIN;
  }
}

at::Tensor flipped(const at::Tensor& tensor) {
  return tensor.bitwise_xor(at::Scalar(std::numeric_limits<int64_t>::min()));
}

void multiply(at::Tensor& tensor, const c10d::ReduceOp& op) {
  const auto* factor = dynamic_cast<const c10d::NCCLPreMulSumSupplement*>(op.supplement_.get());
  TORCH_CHECK(factor != nullptr, "PREMUL_SUM needs a factor");
  if (factor->tensor_factor.defined()) {
    tensor.mul_(factor->tensor_factor.cpu().to(tensor.scalar_type()));
  } else {
    tensor.mul_(factor->double_factor);
  }
}

void average(at::Tensor& tensor, int ranks) {
  if (c10::isIntegralType(tensor.scalar_type(), /*includeBool=*/true)) {
    tensor.div_(ranks, "trunc");
  } else {
    tensor.div_(ranks);
  }
}

}  // namespace

const char* name_of(Kind op) {
  static const char* const kNames[] = {"SUM",  "AVG", "PRODUCT", "MIN",       "MAX",
                                       "BAND", "BOR", "BXOR",    "PREMUL_SUM"};
  return op < std::size(kNames) ? kNames[op] : "?";
}

void check_reduction(const c10d::ReduceOp& op, ScalarType dtype) {
  const Kind kind = op.op_;
  TORCH_CHECK(!is_bitwise(kind) || c10::isIntegralType(dtype, /*includeBool=*/true),
              "Cannot use ReduceOp.", name_of(kind), " with non-integral dtype");
  TORCH_CHECK(!c10::isComplexType(dtype) || !(ordered(kind) || is_bitwise(kind)), "ReduceOp.",
              name_of(kind), " is not defined for complex numbers");
  TORCH_CHECK(kind != Kind::AVG || dtype != ScalarType::Bool, "Cannot use ReduceOp.AVG with bool");
  TORCH_CHECK(kind <= Kind::PREMUL_SUM, "unknown reduction");
}

Reduction::Reduction(at::Tensor host, const c10d::ReduceOp& op, int ranks)
    : host_(std::move(host)), wire_(host_), wire_op_(op.op_), op_(op.op_), ranks_(ranks) {
  const ScalarType dtype = host_.scalar_type();
  if (c10::isComplexType(dtype)) {
    wire_ = at::view_as_real(host_);
  } else if (dtype == ScalarType::UInt64) {  // the same bits: sums and products wrap alike
    wire_ = host_.view(ScalarType::Long);
    flip_sign_ = ordered(op_);
    if (flip_sign_) wire_ = flipped(wire_);
  } else if (const ScalarType wide = wire_dtype(dtype); wide != dtype) {
    wire_ = dtype == ScalarType::Bool ? host_.view(ScalarType::Byte) : host_.to(wide);
  }
  if (op_ == Kind::PREMUL_SUM) multiply(wire_, op);
  if (op_ == Kind::AVG || op_ == Kind::PREMUL_SUM) wire_op_ = Kind::SUM;
  if (dtype == ScalarType::Bool) wire_op_ = on_bool(wire_op_);
}

void Reduction::finish() {
  if (op_ == Kind::AVG) average(wire_, ranks_);
  if (flip_sign_) wire_ = flipped(wire_);
  if (wire_.scalar_type() != host_.scalar_type() && wire_.data_ptr() != host_.data_ptr()) {
    if (host_.scalar_type() == ScalarType::UInt64) {
      host_.view(ScalarType::Long).copy_(wire_);
    } else {
      host_.copy_(wire_);
    }
  }
}

void reduce_pieces(const at::Tensor& bytes, const at::Tensor& target, const c10d::ReduceOp& op) {
  if (target.numel() == 0) return;
  const at::Tensor out = target.view({-1});
  const at::Tensor pieces = bytes.view(out.scalar_type()).view({-1, out.numel()});
  const auto ranks = static_cast<int>(pieces.size(0));
  // Half precision is added up in single, and rounded once.
  const ScalarType dtype = out.scalar_type();
  const bool half = dtype == ScalarType::Half || dtype == ScalarType::BFloat16;
  at::Tensor sum;
  for (int i = 0; i < ranks; ++i) {
    at::Tensor row = pieces.select(0, i);
    if (half) row = row.to(ScalarType::Float);
    Reduction part(row, op, ranks);  // may multiply the piece in place: it is ours
    at::Tensor& wire = part.wire();
    if (i == 0) {
      sum = wire;
      continue;
    }
    switch (part.wire_op()) {
      case Kind::SUM:
        sum.add_(wire);
        break;
      case Kind::PRODUCT:
        if (c10::isComplexType(dtype)) {
          at::view_as_complex(sum).mul_(at::view_as_complex(wire));
        } else {
          sum.mul_(wire);
        }
        break;
      case Kind::MIN:
        at::minimum_out(sum, sum, wire);
        break;
      case Kind::MAX:
        at::maximum_out(sum, sum, wire);
        break;
      case Kind::BAND:
        sum.bitwise_and_(wire);
        break;
      case Kind::BOR:
        sum.bitwise_or_(wire);
        break;
      default:
        sum.bitwise_xor_(wire);
        break;
    }
  }
  if (op.op_ == Kind::AVG) average(sum, ranks);
  if (dtype == ScalarType::UInt64) {
    out.view(ScalarType::Long).copy_(ordered(op.op_) ? flipped(sum) : sum);
  } else if (dtype == ScalarType::Bool) {
    out.view(ScalarType::Byte).copy_(sum);
  } else if (c10::isComplexType(dtype)) {
    at::view_as_real(out).copy_(sum);
  } else {
    out.copy_(sum);
  }
}

}  // namespace torch_tpu::distributed
