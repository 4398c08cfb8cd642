// Sine, cosine and tangent of elementwise.h. Where the compiler has no fast ones for f32 (it calls
// the C library for each element), they are written out here so that its loops vectorize; right
// to 0.51 ulp for every f32, the largest ones included.
#include "csrc/ops/elementwise.h"
#include "csrc/ops/target.h"

namespace torch_tpu::ops::math {
namespace {

// 1 / pi in three pieces. A magnitude of f32, which has 24 bits, times one of the first two, which
// have 29, is exact in f64. What lies above them in 1 / pi gives multiples of two turns' halves for
// magnitudes from `from` on and is left out, so the pieces always hold the bits that matter.
struct InversePi {
  double from;
  double pieces[3];
};
constexpr InversePi kInversePi[] = {
    {0, {0x1.45f306dp-2, 0x1.9391054p-31, 0x1.4fe13abe8fa9ap-60}},
    {0x1p59, {0x1.c882a5p-38, 0x1.fc2757dp-65, 0x1.f534ddc0db629p-97}},
    {0x1p93, {0x1.84eafa3p-70, 0x1.d4d377p-99, 0x1.b6c52b3278872p-130}},
};

// Added to an f64 far below it, leaves the nearest integer in the lowest bits of the sum.
constexpr double kRounder = 0x1.8p52;

Type s64_like(const Value& x) { return Type(DType::kS64, x.dims()); }
Type s32_like(const Value& x) { return Type(DType::kS32, x.dims()); }

struct Reduced {
  Value rest;   // in half turns, from -1/2 to 1/2
  Value count;  // kRounder + the number of half turns, up to an even number
};

// x = pi * (count + shift + rest); x is a magnitude of f32.
Reduced reduce(const Value& x, double shift) {
  Builder& b = x.builder();
  const Value wide = b.convert(x, DType::kF64);
  Value products[3];
  for (int i = 0; i < 3; ++i) {
    Value piece = b.like(wide, kInversePi[0].pieces[i]);
    for (const InversePi& range : {kInversePi[1], kInversePi[2]}) {
      piece = choose(b.not_(is(Compare::kLt, x, range.from)), range.pieces[i], piece);
    }
    products[i] = wide * piece;
  }
  const auto& [high, middle, low] = products;
  // Two half turns are none. All sums are exact where they come out small.
  const Value even = (high * 0.5 + kRounder) - kRounder;
  const Value top = high - even * 2.0;
  Value sum = (top + middle) + low;
  if (shift != 0) sum = sum - shift;
  const Value count = sum + kRounder;
  Value whole = count - kRounder;
  if (shift != 0) whole = whole + shift;
  return {((top - whole) + middle) + low, count};
}

// sin(pi * x) for x from -1/2 to 1/2 in f64, with a relative error of 2e-11.
Value sine_of_half_turns(const Value& x) {
  Builder& b = x.builder();
  const Value square = x * x;
  Value sum = b.like(x, -0x1.cc320535ff4dbp-8);
  for (double c : {0x1.500fe26c84509p-4, -0x1.32d11177949b7p-1, 0x1.466bbfbf81189p+1,
                   -0x1.4abbce4f1007ep+2, 0x1.921fb5441e327p+1}) {
    sum = sum * square + c;
  }
  return sum * x;
}

// -x where the count is odd; f64.
Value negate_if_odd(const Value& x, const Value& count) {
  Builder& b = x.builder();
  const Value bits = b.bitcast_convert(count, s64_like(x));
  const Value sign = b.shift_left(bits, b.like(bits, 63));
  return b.bitcast_convert(b.xor_(b.bitcast_convert(x, s64_like(x)), sign), x.type());
}

// x with the sign of `other` on top of its own: the functions are odd, and -0 stays -0.
Value times_sign(const Value& x, const Value& other) {
  Builder& b = x.builder();
  const Value bits = b.bitcast_convert(other, s32_like(x));
  const Value sign = b.and_(bits, b.splat_int(INT32_MIN, bits.type()));
  return b.bitcast_convert(b.xor_(b.bitcast_convert(x, s32_like(x)), sign), x.type());
}

bool written_out(const Value& x) {
  return x.dtype() == DType::kF32 && !target().has_vector_trigonometry;
}

}  // namespace

Value sin(const Value& x) {
  Builder& b = x.builder();
  if (!written_out(x)) return b.sine(x);
  const Reduced angle = reduce(b.abs(x), 0);
  const Value sine = negate_if_odd(sine_of_half_turns(angle.rest), angle.count);
  return times_sign(b.convert(sine, DType::kF32), x);
}

Value cos(const Value& x) {
  Builder& b = x.builder();
  if (!written_out(x)) return b.cosine(x);
  // cos(pi * (n + 1/2 + r)) = sin(pi * -r), the other way round where n is odd.
  const Reduced angle = reduce(b.abs(x), 0.5);
  return b.convert(negate_if_odd(sine_of_half_turns(-angle.rest), angle.count), DType::kF32);
}

Value tan(const Value& x) {
  Builder& b = x.builder();
  if (!written_out(x)) return b.tan(x);
  const Value rest = reduce(b.abs(x), 0).rest;
  const Value cosine = sine_of_half_turns(0.5 - b.abs(rest));
  return times_sign(b.convert(sine_of_half_turns(rest) / cosine, DType::kF32), x);
}

}  // namespace torch_tpu::ops::math
