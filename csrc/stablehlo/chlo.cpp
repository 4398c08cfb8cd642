// Builder: elementwise functions that StableHLO itself lacks, from the chlo dialect.
#include "csrc/stablehlo/builder_impl.h"

namespace torch_tpu::stablehlo {
namespace {

void check_floating(std::string_view op, const Value& x, bool takes_complex) {
  if (is_float(x.dtype()) || (takes_complex && is_complex(x.dtype()))) return;
  fail(op, takes_complex ? "float or complex" : "float", x.type());
}

Value unary(Graph& graph, std::string_view name, const Value& x, bool takes_complex) {
  graph.check(short_name(name), x);
  check_floating(short_name(name), x, takes_complex);
  return graph.emit1(name, {x}, x.type());
}

Value binary(Graph& graph, std::string_view name, const Value& a, const Value& b) {
  graph.check(short_name(name), a);
  graph.check(short_name(name), b);
  if (a.dtype() != b.dtype()) {
    fail(short_name(name), "operands of one type", types_text(types_of({a, b})));
  }
  check_floating(short_name(name), a, false);
  Values xs = {a, b};
  return graph.emit1(name, xs, unify_shapes(short_name(name), xs));
}

}  // namespace

Value Builder::acos(const Value& x) { return unary(impl_->graph, "chlo.acos", x, true); }
Value Builder::acosh(const Value& x) { return unary(impl_->graph, "chlo.acosh", x, true); }
Value Builder::asin(const Value& x) { return unary(impl_->graph, "chlo.asin", x, true); }
Value Builder::asinh(const Value& x) { return unary(impl_->graph, "chlo.asinh", x, true); }
Value Builder::atan(const Value& x) { return unary(impl_->graph, "chlo.atan", x, true); }
Value Builder::atanh(const Value& x) { return unary(impl_->graph, "chlo.atanh", x, true); }
Value Builder::bessel_i1e(const Value& x) {
  return unary(impl_->graph, "chlo.bessel_i1e", x, false);
}
Value Builder::cosh(const Value& x) { return unary(impl_->graph, "chlo.cosh", x, true); }
Value Builder::digamma(const Value& x) { return unary(impl_->graph, "chlo.digamma", x, false); }
Value Builder::erf(const Value& x) { return unary(impl_->graph, "chlo.erf", x, false); }
Value Builder::erf_inv(const Value& x) { return unary(impl_->graph, "chlo.erf_inv", x, false); }
Value Builder::erfc(const Value& x) { return unary(impl_->graph, "chlo.erfc", x, false); }
Value Builder::lgamma(const Value& x) { return unary(impl_->graph, "chlo.lgamma", x, false); }
Value Builder::sinh(const Value& x) { return unary(impl_->graph, "chlo.sinh", x, true); }

Value Builder::conj(const Value& x) {
  impl_->graph.check("conj", x);
  if (!is_complex(x.dtype())) {
    check_floating("conj", x, true);
    return x;
  }
  return complex(real(x), negate(imag(x)));
}

Value Builder::next_after(const Value& a, const Value& b) {
  return binary(impl_->graph, "chlo.next_after", a, b);
}

Value Builder::polygamma(const Value& n, const Value& x) {
  return binary(impl_->graph, "chlo.polygamma", n, x);
}

Value Builder::zeta(const Value& x, const Value& q) {
  return binary(impl_->graph, "chlo.zeta", x, q);
}

}  // namespace torch_tpu::stablehlo
