// Builder: fft, matrix factorisations and random bits.
#include <algorithm>

#include "csrc/stablehlo/builder_impl.h"

namespace torch_tpu::stablehlo {
namespace {

// The dtypes XLA's decompositions are written for.
void check_wide(std::string_view op, const Value& x) {
  DType d = x.dtype();
  if (d != DType::kF32 && d != DType::kF64 && !is_complex(d)) {
    fail(op, "f32, f64 or complex", x.type());
  }
}

// Matrices do not vary; batches of them may.
void check_matrices(std::string_view op, const Value& x) {
  for (int64_t d = std::max<int64_t>(x.rank() - 2, 0); d < x.rank(); ++d) {
    if (x.type().varies(d)) unproven(op, "of a matrix", x.type());
  }
}

void check_square(std::string_view op, const Value& x) {
  check_matrices(op, x);
  if (x.rank() < 2 || x.dims()[x.rank() - 1] != x.dims()[x.rank() - 2]) {
    fail(op, "square matrices", x.type());
  }
}

}  // namespace

Value Builder::fft(const Value& x, FftType type, const Dims& lengths) {
  static constexpr std::string_view kNames[] = {"FFT", "IFFT", "RFFT", "IRFFT"};
  impl_->graph.check("fft", x);
  check_wide("fft", x);
  if (lengths.empty() || lengths.size() > 3 || static_cast<int64_t>(lengths.size()) > x.rank()) {
    fail("fft", "1 to 3 lengths for " + x.type().str(), list_text(lengths));
  }
  bool from_real = type == FftType::kRfft;
  if (is_complex(x.dtype()) == from_real) {
    fail("fft", from_real ? "a real operand" : "a complex operand", x.type());
  }
  Type out = x.type();
  int64_t first = x.rank() - static_cast<int64_t>(lengths.size()), last = x.rank() - 1;
  for (int64_t i = first; i <= last; ++i) {
    if (x.type().varies(i)) unproven("fft", "transformed", x.type());
    int64_t length = lengths[i - first];
    bool halved = type == FftType::kIrfft && i == last;
    int64_t expected = halved ? length / 2 + 1 : length;
    if (x.dims()[i] != expected || length < 1) {
      fail("fft", "dimension " + std::to_string(i) + " of size " + std::to_string(expected),
           x.type());
    }
    out.dims[i] = length;
  }
  if (type == FftType::kRfft) {
    out.dims[last] = lengths.back() / 2 + 1;
    out.dtype = complex_of(x.dtype());
  } else if (type == FftType::kIrfft) {
    out.dtype = real_of(x.dtype());
  }
  std::string text =
      "fft_length = " + array_attribute(lengths) + ", fft_type = #stablehlo<fft_type ";
  text.append(kNames[static_cast<int>(type)]).append(">");
  return impl_->graph.emit1("stablehlo.fft", {x}, out, std::move(text));
}

Value Builder::cholesky(const Value& x, bool lower) {
  impl_->graph.check("cholesky", x);
  check_wide("cholesky", x);
  check_square("cholesky", x);
  return impl_->graph.emit1("stablehlo.cholesky", {x}, x.type(),
                            lower ? "lower = true" : "lower = false");
}

Value Builder::triangular_solve(const Value& a, const Value& b, bool left_side, bool lower,
                                bool unit_diagonal, bool transpose_a, bool conjugate_a) {
  constexpr std::string_view op = "triangular_solve";
  impl_->graph.check(op, a);
  impl_->graph.check(op, b);
  check_wide(op, a);
  check_square(op, a);
  check_matrices(op, b);
  bool match = a.dtype() == b.dtype() && a.rank() == b.rank();
  for (int64_t i = 0; match && i < a.rank() - 2; ++i) match = a.dims()[i] == b.dims()[i];
  match = match && b.dims()[b.rank() - (left_side ? 2 : 1)] == a.dims()[a.rank() - 1];
  if (!match) fail(op, "matrices that fit", types_text(types_of({a, b})));
  // Conjugation without transposition has no spelling of its own.
  Value matrix = conjugate_a && !transpose_a ? conj(a) : a;
  std::string_view transpose = !transpose_a                           ? "NO_TRANSPOSE"
                               : conjugate_a && is_complex(a.dtype()) ? "ADJOINT"
                                                                      : "TRANSPOSE";
  auto flag = [](std::string_view name, bool value) {
    return std::string(name) + (value ? " = true, " : " = false, ");
  };
  Axes axes = axes_of(b.type());
  for (int64_t d = 0; d + 2 < b.rank(); ++d) axes[d] = unify_dim(op, a, d, b, d);
  return impl_->graph.emit1(
      "stablehlo.triangular_solve", {matrix, b}, make_type(b.dtype(), b.dims(), std::move(axes)),
      flag("left_side", left_side) + flag("lower", lower) + "transpose_a = #stablehlo<transpose " +
          std::string(transpose) + ">, unit_diagonal = " + (unit_diagonal ? "true" : "false"));
}

Values Builder::rng_bit_generator(const Value& state, const Type& bits, RngAlgorithm algorithm) {
  constexpr std::string_view op = "rng_bit_generator";
  static constexpr std::string_view kNames[] = {"DEFAULT", "THREE_FRY", "PHILOX"};
  impl_->graph.check(op, state);
  int64_t length = state.type().is_static() && state.rank() == 1 ? state.dims()[0] : 0;
  bool fits = length == 2 || (length == 3 && algorithm != RngAlgorithm::kThreeFry);
  if (state.dtype() != DType::kU64 || !fits) fail(op, "a tensor<2xui64> state", state.type());
  check_type(op, bits);
  if (!bits.is_static() || !is_integer(bits.dtype)) fail(op, "a static integer type", bits);
  return impl_->graph.emit("stablehlo.rng_bit_generator", {state}, {state.type(), bits},
                           "rng_algorithm = #stablehlo<rng_algorithm " +
                               std::string(kNames[static_cast<int>(algorithm)]) + ">");
}

}  // namespace torch_tpu::stablehlo
