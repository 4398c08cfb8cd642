// Sine, cosine and tangent of elementwise.h. Where the compiler has no fast ones for f32 (it calls
// the C library for each element), they are written out here so that its loops vectorize; right
// to 0.51 ulp for every f32, the largest ones included. The steps of one element wait for each
// other, so the formulas are shallow rather than short.
#include "csrc/ops/elementwise.h"
#include "csrc/ops/target.h"

namespace torch_tpu::ops::math {
namespace {

// 1 / pi in three pieces. An f32, which has 24 bits, times one of the first two, which have 29, is
// exact in f64. What stands above them in 1 / pi gives even numbers with any f32 of the range and
// is left out; so the products stay below 2^50.
struct InversePi {
  double from;  // the smallest magnitude
  double pieces[3];
};
constexpr InversePi kInversePi[] = {
    {0, {0x1.45f306dp-2, 0x1.9391054p-31, 0x1.4fe13abe8fa9ap-60}},
    {0x1p50, {0x1.b939105p-27, 0x1.29fc274p-57, 0x1.7d1f534ddc0dbp-85}},
    {0x1p76, {0x1.529fc27p-53, 0x1.5f47d4cp-83, 0x1.377036d8a5665p-111}},
    {0x1p102, {0x1.d5f47d4p-79, 0x1.a6ee06dp-108, 0x1.6295993c43904p-137}},
};

// Added to an integer far below it in f64, leaves that in the lowest bits of the sum.
constexpr double kIntegerBits = 0x1.8p52;

// Below it a sine or tangent is its argument, which keeps -0 and what is flushed to 0.
constexpr double kTiny = 0x1p-13;

Type s64_like(const Value& x) { return Type(DType::kS64, x.dims()); }

struct HalfTurns {
  Value rest;   // from -0.57 to 0.57
  Value count;  // an integer, right up to an even number
};

// x = pi * (count + shift + rest).
HalfTurns half_turns(const Value& x, double shift = 0) {
  Builder& b = x.builder();
  const Value wide = b.convert(x, DType::kF64);
  const Value magnitude = b.abs(x);
  Value products[3];
  for (int i = 0; i < 3; ++i) {
    Value piece = b.like(wide, kInversePi[0].pieces[i]);
    for (size_t range = 1; range < std::size(kInversePi); ++range) {
      const InversePi& r = kInversePi[range];
      piece = choose(is(Compare::kGe, magnitude, r.from), r.pieces[i], piece);
    }
    products[i] = wide * piece;
  }
  const auto& [high, middle, low] = products;
  Value sum = high + middle;
  if (shift != 0) sum = sum - shift;
  const Value count = b.round_nearest_even(sum);
  // Exact but for the last sum, where it matters: when nearly nothing is left.
  const Value whole = shift != 0 ? count + shift : count;
  return {((high - whole) + middle) + low, count};
}

// sin(pi * x) for x from -0.57 to 0.57 in f64, with a relative error of 1.1e-10.
Value sine_of_half_turns(const Value& x) {
  const Value square = x * x;
  const Value fourth = square * square;
  const Value first = square * -0x1.4abbce18250b2p+2 + 0x1.921fb54387e86p+1;
  const Value second = square * -0x1.32cef46353b72p-1 + 0x1.466bb2dfaed43p+1;
  const Value third = square * -0x1.c562ca3280736p-8 + 0x1.4fc75aa9f8477p-4;
  return (fourth * third + second) * (fourth * x) + first * x;
}

// -x where the count is odd; f64.
Value negate_if_odd(const Value& x, const Value& count) {
  Builder& b = x.builder();
  const Value bits = b.bitcast_convert(count + kIntegerBits, s64_like(x));
  const Value sign = b.shift_left(bits, b.like(bits, 63));
  return b.bitcast_convert(b.xor_(b.bitcast_convert(x, s64_like(x)), sign), x.type());
}

Value unless_tiny(const Value& result, const Value& x) {
  Builder& b = x.builder();
  return b.select(is(Compare::kLt, b.abs(x), kTiny), x, b.convert(result, DType::kF32));
}

// `enough`: elements from which on it is worth a change of threads (see Target::alone).
bool written_out(const Value& x, int64_t enough) {
  if (x.dtype() != DType::kF32 || target().has_vector_trigonometry) return false;
  return !target().alone || x.numel() >= enough;
}

}  // namespace

Value sin(const Value& x) {
  if (!written_out(x, 8192)) return x.builder().sine(x);
  const HalfTurns angle = half_turns(x);
  return unless_tiny(sine_of_half_turns(negate_if_odd(angle.rest, angle.count)), x);
}

Value cos(const Value& x) {
  Builder& b = x.builder();
  if (!written_out(x, 8192)) return b.cosine(x);
  // cos(pi * (n + 1/2 + r)) = sin(pi * -r), the other way round where n is odd.
  const HalfTurns angle = half_turns(x, 0.5);
  const Value rest = negate_if_odd(-angle.rest, angle.count);
  return b.convert(sine_of_half_turns(rest), DType::kF32);
}

Value tan(const Value& x) {
  Builder& b = x.builder();
  if (!written_out(x, 1024)) return b.tan(x);
  const Value rest = half_turns(x).rest;
  const Value cosine = sine_of_half_turns(0.5 - b.abs(rest));
  return unless_tiny(sine_of_half_turns(rest) / cosine, x);
}

}  // namespace torch_tpu::ops::math
