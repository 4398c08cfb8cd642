// The matrix exponential: a Taylor polynomial of the scaled-down matrix, squared back up.
#include <cmath>

#include "csrc/ops/linalg.h"

namespace torch_tpu::ops {
namespace {

using namespace linalg;

// The polynomial has kBlocks * kPowers terms: sum over blocks k of A^(kPowers k) times a polynomial
// of lower degree, which shares its few powers of A with the others.
constexpr int kPowers = 5, kBlocks = 4;

// Up to this 1-norm the polynomial of degree 18 or more is exact to rounding.
double taylor_radius(DType dtype) { return real_dtype(dtype) == DType::kF64 ? 1.09 : 3.01; }

Value taylor(const Value& a) {
  Builder& b = a.builder();
  Values powers = {identity(b, a.dtype(), {a.dim(0)}, a.dim(-1)), a};
  while (powers.size() <= kPowers) powers.push_back(matmul2(powers.back(), a));
  const auto block = [&](int k) {
    Value sum;
    for (int i = 0; i < kPowers; ++i) {
      const double factor = 1 / std::tgamma(k * kPowers + i + 1.0);
      const Value term = powers[static_cast<size_t>(i)] * factor;
      sum = sum.defined() ? sum + term : term;
    }
    return sum;
  };
  Value result = block(kBlocks - 1);
  for (int k = kBlocks - 2; k >= 0; --k) result = matmul2(result, powers[kPowers]) + block(k);
  return result;
}

Values lower_linalg_matrix_exp(Call& c) {
  Builder& b = c.b;
  const Value input = c.tensor("self");
  if (input.numel() == 0) return {input};
  const Value a = flat(cast(input, opmath(input.dtype())));
  const int64_t matrices = a.dim(0);
  const Value norm = reduce_max(reduce_sum(b.abs(a), {1}), {1});  // the 1-norm, [B]
  const Value doublings = b.ceil(b.log(norm / taylor_radius(a.dtype())) * (1 / std::log(2.0)));
  // No finite norm needs more; what is not finite gives NaN without any.
  const Value bounded = b.clamp(zeros_like(norm), doublings, b.like(norm, 1100));
  const Value wanted = b.select(b.is_finite(norm), bounded, zeros_like(norm));
  const Value times = cast(b.reshape(wanted, {matrices, 1, 1}), DType::kS32);
  // 2^-times exactly, in two factors, since one alone can leave the range of the dtype.
  const Value half = b.floor(wanted * 0.5);
  const auto power = [&](const Value& exponent) {
    const Value exact = b.power(b.like(exponent, 2), -exponent);
    return b.broadcast_to(cast(b.reshape(exact, {matrices, 1, 1}), a.dtype()), a.dims());
  };
  const Value scaled = a * power(half) * power(wanted - half);
  const Value most = reduce_max(times, {0, 1, 2});
  const Values out = b.while_loop(
      {index(b, 0), taylor(scaled)},
      [&](const Values& state) { return Values{b.lt(state[0], most)}; },
      [&](const Values& state) {
        const Value still =
            b.lt(b.broadcast_to(state[0], a.dims()), b.broadcast_to(times, a.dims()));
        return Values{state[0] + 1, b.select(still, matmul2(state[1], state[1]), state[1])};
      });
  return {b.reshape(out[1], input.dims())};
}

}  // namespace

void linalg::add_matrix_exp(Entries& t) {
  t.push_back({.name = "linalg_matrix_exp", .lower = lower_linalg_matrix_exp});
}

}  // namespace torch_tpu::ops
