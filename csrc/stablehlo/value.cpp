// Value: type lookups and arithmetic operators, all forwarded to the Builder that owns it.
#include "csrc/stablehlo/value.h"

#include <stdexcept>

#include "csrc/stablehlo/builder.h"

namespace torch_tpu::stablehlo {
namespace {

Builder& owner(const Value& x) {
  if (!x.defined()) throw std::invalid_argument("[value] expected a value, got an undefined one");
  return x.builder();
}

}  // namespace

const Type& Value::type() const { return owner(*this).type_of(id_); }

int64_t Value::dim(int64_t i) const {
  const Type& t = type();
  int64_t at = i < 0 ? i + t.rank() : i;
  if (at < 0 || at >= t.rank()) {
    throw std::invalid_argument("[dim] expected a dimension of " + t.str() + ", got " +
                                std::to_string(i));
  }
  return t.dims[at];
}

Value operator-(const Value& a) { return owner(a).negate(a); }
Value operator+(const Value& a, const Value& b) { return owner(a).add(a, b); }
Value operator-(const Value& a, const Value& b) { return owner(a).subtract(a, b); }
Value operator*(const Value& a, const Value& b) { return owner(a).multiply(a, b); }
Value operator/(const Value& a, const Value& b) { return owner(a).divide(a, b); }
Value operator+(const Value& a, const Number& b) { return a + owner(a).like(a, b); }
Value operator-(const Value& a, const Number& b) { return a - owner(a).like(a, b); }
Value operator*(const Value& a, const Number& b) { return a * owner(a).like(a, b); }
Value operator/(const Value& a, const Number& b) { return a / owner(a).like(a, b); }
Value operator+(const Number& a, const Value& b) { return owner(b).like(b, a) + b; }
Value operator-(const Number& a, const Value& b) { return owner(b).like(b, a) - b; }
Value operator*(const Number& a, const Value& b) { return owner(b).like(b, a) * b; }
Value operator/(const Number& a, const Value& b) { return owner(b).like(b, a) / b; }

}  // namespace torch_tpu::stablehlo
