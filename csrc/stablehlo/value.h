// An SSA value: a cheap handle into the Builder that made it. Copy freely; it is valid as long as
// the Builder is. The operators build elementwise ops; both sides must have the same type, except
// that a C++ number on one side becomes a constant of the other side's type.
#pragma once

#include "csrc/base/number.h"
#include "csrc/stablehlo/type.h"

namespace torch_tpu::stablehlo {

class Builder;
using base::Number;

class Value {
 public:
  Value() = default;
  Value(Builder* builder, int32_t id) : builder_(builder), id_(id) {}

  bool defined() const { return builder_ != nullptr; }
  explicit operator bool() const { return defined(); }
  Builder& builder() const { return *builder_; }
  int32_t id() const { return id_; }

  const Type& type() const;
  const Dims& dims() const { return type().dims; }
  DType dtype() const { return type().dtype; }
  int64_t rank() const { return type().rank(); }
  int64_t numel() const { return type().numel(); }
  int64_t dim(int64_t i) const;  // negative counts from the end

 private:
  Builder* builder_ = nullptr;
  int32_t id_ = -1;
};

using Values = std::vector<Value>;

Value operator-(const Value& a);
Value operator+(const Value& a, const Value& b);
Value operator-(const Value& a, const Value& b);
Value operator*(const Value& a, const Value& b);
Value operator/(const Value& a, const Value& b);
Value operator+(const Value& a, const Number& b);
Value operator-(const Value& a, const Number& b);
Value operator*(const Value& a, const Number& b);
Value operator/(const Value& a, const Number& b);
Value operator+(const Number& a, const Value& b);
Value operator-(const Number& a, const Value& b);
Value operator*(const Number& a, const Value& b);
Value operator/(const Number& a, const Value& b);

}  // namespace torch_tpu::stablehlo
