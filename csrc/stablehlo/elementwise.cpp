// Builder: elementwise ops of the stablehlo dialect, conversions included.
#include "csrc/stablehlo/builder_impl.h"

namespace torch_tpu::stablehlo {
namespace {

// Sets of dtypes an op takes, as bits.
enum Accept : unsigned { kBoolBit = 1, kSigned = 2, kUnsigned = 4, kReal = 8, kComplex = 16 };
constexpr unsigned kInts = kSigned | kUnsigned;
constexpr unsigned kFloats = kReal | kComplex;
constexpr unsigned kNumbers = kInts | kFloats;
constexpr unsigned kAny = kBoolBit | kNumbers;
constexpr unsigned kBits = kBoolBit | kInts;

void check_dtype(std::string_view name, const Value& x, unsigned accept) {
  DType d = x.dtype();
  unsigned bit = d == DType::kBool      ? kBoolBit
                 : is_signed_integer(d) ? kSigned
                 : is_integer(d)        ? kUnsigned
                 : is_complex(d)        ? kComplex
                                        : kReal;
  if (accept & bit) return;
  std::string expected;
  auto add = [&](unsigned flags, std::string_view text) {
    if ((accept & flags) != flags) return;
    if (!expected.empty()) expected += " or ";
    expected += text;
  };
  add(kBoolBit, "bool");
  add(kSigned, (accept & kUnsigned) ? "integer" : "signed integer");
  add(kReal, "float");
  add(kComplex, "complex");
  fail(short_name(name), expected, x.type());
}

Value unary(Graph& graph, std::string_view name, const Value& x, unsigned accept) {
  graph.check(short_name(name), x);
  check_dtype(name, x, accept);
  return graph.emit1(name, {x}, x.type(), {}, Form::kSameType);
}

Type check_same(Graph& graph, std::string_view op, const Values& xs) {
  for (const Value& x : xs) graph.check(op, x);
  for (const Value& x : xs) {
    if (x.dtype() != xs[0].dtype()) {
      fail(op, "operands of one type", types_text(types_of(xs)));
    }
  }
  return unify_shapes(op, xs);
}

Value binary(Graph& graph, std::string_view name, const Value& a, const Value& b, unsigned accept) {
  Values xs = {a, b};
  const Type type = check_same(graph, short_name(name), xs);
  check_dtype(name, a, accept);
  return graph.emit1(name, xs, type, {}, Form::kSameType);
}

}  // namespace

#define UNARY(method, name, accept)                           \
  Value Builder::method(const Value& x) {                     \
    return unary(impl_->graph, "stablehlo." name, x, accept); \
  }
UNARY(cbrt, "cbrt", kReal)
UNARY(ceil, "ceil", kReal)
UNARY(count_leading_zeros, "count_leading_zeros", kInts)
UNARY(cosine, "cosine", kFloats)
UNARY(exponential, "exponential", kFloats)
UNARY(exponential_minus_one, "exponential_minus_one", kFloats)
UNARY(floor, "floor", kReal)
UNARY(log, "log", kFloats)
UNARY(log_plus_one, "log_plus_one", kFloats)
UNARY(logistic, "logistic", kFloats)
UNARY(negate, "negate", kNumbers)
UNARY(not_, "not", kBits)
UNARY(popcnt, "popcnt", kInts)
UNARY(round_nearest_afz, "round_nearest_afz", kReal)
UNARY(round_nearest_even, "round_nearest_even", kReal)
UNARY(rsqrt, "rsqrt", kFloats)
UNARY(sine, "sine", kFloats)
UNARY(sqrt, "sqrt", kFloats)
UNARY(tan, "tan", kFloats)
UNARY(tanh, "tanh", kFloats)
#undef UNARY

#define BINARY(method, name, accept)                              \
  Value Builder::method(const Value& a, const Value& b) {         \
    return binary(impl_->graph, "stablehlo." name, a, b, accept); \
  }
BINARY(add, "add", kAny)
BINARY(subtract, "subtract", kNumbers)
BINARY(multiply, "multiply", kAny)
BINARY(divide, "divide", kNumbers)
BINARY(remainder, "remainder", kInts | kReal)
BINARY(maximum, "maximum", kBits | kReal)
BINARY(minimum, "minimum", kBits | kReal)
BINARY(power, "power", kNumbers)
BINARY(atan2, "atan2", kReal)
BINARY(and_, "and", kBits)
BINARY(or_, "or", kBits)
BINARY(xor_, "xor", kBits)
BINARY(shift_left, "shift_left", kInts)
BINARY(shift_right_arithmetic, "shift_right_arithmetic", kInts)
BINARY(shift_right_logical, "shift_right_logical", kInts)
#undef BINARY

Value Builder::abs(const Value& x) {
  impl_->graph.check("abs", x);
  if (is_integer(x.dtype()) && is_unsigned(x.dtype())) return x;
  check_dtype("abs", x, kSigned | kFloats);
  return impl_->graph.emit1("stablehlo.abs", {x}, with_dtype(x.type(), real_of(x.dtype())), {},
                            Form::kFunctional);
}

Value Builder::sign(const Value& x) {
  impl_->graph.check("sign", x);
  // StableHLO has no sign of unsigned integers.
  if (is_integer(x.dtype()) && is_unsigned(x.dtype())) return minimum(x, like(x, 1));
  return unary(impl_->graph, "stablehlo.sign", x, kSigned | kFloats);
}

Value Builder::real(const Value& x) {
  impl_->graph.check("real", x);
  check_dtype("real", x, kFloats);
  if (!is_complex(x.dtype())) return x;
  return impl_->graph.emit1("stablehlo.real", {x}, with_dtype(x.type(), real_of(x.dtype())), {},
                            Form::kFunctional);
}

Value Builder::imag(const Value& x) {
  impl_->graph.check("imag", x);
  check_dtype("imag", x, kFloats);
  if (!is_complex(x.dtype())) return like(x, 0);
  return impl_->graph.emit1("stablehlo.imag", {x}, with_dtype(x.type(), real_of(x.dtype())), {},
                            Form::kFunctional);
}

Value Builder::is_finite(const Value& x) {
  impl_->graph.check("is_finite", x);
  check_dtype("is_finite", x, kReal);
  return impl_->graph.emit1("stablehlo.is_finite", {x}, with_dtype(x.type(), DType::kBool), {},
                            Form::kFunctional);
}

Value Builder::complex(const Value& real, const Value& imag) {
  Values xs = {real, imag};
  const Type type = check_same(impl_->graph, "complex", xs);
  if (real.dtype() != DType::kF32 && real.dtype() != DType::kF64) {
    fail("complex", "f32 or f64", real.type());
  }
  return impl_->graph.emit1("stablehlo.complex", xs, with_dtype(type, complex_of(real.dtype())), {},
                            Form::kFunctional);
}

Value Builder::compare(Compare direction, const Value& a, const Value& b) {
  static constexpr std::string_view kNames[] = {"stablehlo.compare EQ,", "stablehlo.compare NE,",
                                                "stablehlo.compare LT,", "stablehlo.compare LE,",
                                                "stablehlo.compare GT,", "stablehlo.compare GE,"};
  Values xs = {a, b};
  const Type type = check_same(impl_->graph, "compare", xs);
  bool ordered = direction != Compare::kEq && direction != Compare::kNe;
  if (ordered) check_dtype("compare", a, kBits | kReal);
  DType dtype = a.dtype();
  std::string_view kind = is_float(dtype) || is_complex(dtype) ? ", FLOAT"
                          : is_unsigned(dtype)                 ? ", UNSIGNED"
                                                               : ", SIGNED";
  return impl_->graph.emit1(kNames[static_cast<int>(direction)], xs, with_dtype(type, DType::kBool),
                            std::string(kind), Form::kFunctional);
}

Value Builder::select(const Value& pred, const Value& on_true, const Value& on_false) {
  impl_->graph.check("select", pred);
  Values xs = {on_true, on_false};
  Type type = check_same(impl_->graph, "select", xs);
  if (pred.dtype() != DType::kBool) fail("select", "a bool predicate", pred.type());
  Values all = {xs[0], xs[1], pred};
  if (pred.rank() != 0) type = unify_shapes("select", all);
  return impl_->graph.emit1("stablehlo.select", {pred, xs[0], xs[1]}, type);
}

Value Builder::clamp(const Value& low, const Value& x, const Value& high) {
  Graph& graph = impl_->graph;
  for (const Value* v : {&low, &x, &high}) graph.check("clamp", *v);
  if (low.dtype() != x.dtype() || high.dtype() != x.dtype()) {
    fail("clamp", "operands of one type", types_text(types_of({low, x, high})));
  }
  check_dtype("clamp", x, kBits | kReal);
  // The bounds are both scalars or both shaped like x.
  Values xs = {low, x, high};
  Type type = x.type();
  if (low.rank() != 0 || high.rank() != 0) {
    if (low.rank() == 0) xs[0] = broadcast_to(low, x.dims());
    if (high.rank() == 0) xs[2] = broadcast_to(high, x.dims());
    type = unify_shapes("clamp", xs);
  }
  return graph.emit1("stablehlo.clamp", xs, type);
}

Value Builder::convert(const Value& x, DType dtype) {
  impl_->graph.check("convert", x);
  if (x.dtype() == dtype) return x;
  return impl_->graph.emit1("stablehlo.convert", {x}, with_dtype(x.type(), dtype), {},
                            Form::kFunctional);
}

Value Builder::bitcast_convert(const Value& x, const Type& type) {
  impl_->graph.check("bitcast_convert", x);
  const Type& from = x.type();
  int64_t from_bytes = dtype_bytes(from.dtype), to_bytes = dtype_bytes(type.dtype);
  bool ok = (from.dtype == DType::kBool) == (type.dtype == DType::kBool) &&
            is_complex(from.dtype) == is_complex(type.dtype);
  if (from_bytes == to_bytes) {
    ok = ok && from.dims == type.dims;
  } else {
    // The wider side lacks a last dimension that holds its pieces.
    const Type& wide = from_bytes > to_bytes ? from : type;
    const Type& narrow = from_bytes > to_bytes ? type : from;
    Dims expected = wide.dims;
    expected.push_back(dtype_bytes(wide.dtype) / dtype_bytes(narrow.dtype));
    ok = ok && narrow.dims == expected;
  }
  if (!ok) fail("bitcast_convert", "a type with the bits of " + from.str(), type);
  if (from.dtype == type.dtype && from.dims == type.dims) return x;
  // A dimension of pieces is last; where it goes, it was whole.
  Axes axes = axes_of(from);
  if (from_bytes < to_bytes && axes.back() != kWhole) {
    unproven("bitcast_convert", "of pieces", from);
  }
  axes.resize(type.dims.size(), kWhole);
  return impl_->graph.emit1("stablehlo.bitcast_convert", {x},
                            make_type(type.dtype, type.dims, std::move(axes)), {},
                            Form::kFunctional);
}

Value Builder::reduce_precision(const Value& x, int exponent_bits, int mantissa_bits) {
  impl_->graph.check("reduce_precision", x);
  check_dtype("reduce_precision", x, kReal);
  if (exponent_bits < 1 || mantissa_bits < 0) {
    fail("reduce_precision", "at least 1 exponent bit and 0 mantissa bits",
         std::to_string(exponent_bits) + " and " + std::to_string(mantissa_bits));
  }
  return impl_->graph.emit1("stablehlo.reduce_precision", {x}, x.type(),
                            "exponent_bits = " + std::to_string(exponent_bits) +
                                " : i32, mantissa_bits = " + std::to_string(mantissa_bits) +
                                " : i32");
}

}  // namespace torch_tpu::stablehlo
