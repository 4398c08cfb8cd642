// The numbers of a fused program in its module.
#pragma once

#include "csrc/stablehlo/builder.h"
#include "csrc/trace/fused.h"

namespace torch_tpu::trace {

// Takes numbers out of the two arrays they travel in, in the order they were packed.
class ScalarReader {
 public:
  ScalarReader(stablehlo::Builder& b, const ScalarLayout& layout)
      : b_(b),
        s64_(layout.f32),
        rng_(layout.f32 + 2 * layout.s64),
        sizes_(layout.words() - layout.sizes) {
    if (layout.words() > 0)
      words_ = b.parameter(stablehlo::Type(stablehlo::DType::kU32, {layout.words()}));
    if (layout.f64 > 0) f64s_ = b.parameter(stablehlo::Type(stablehlo::DType::kF64, {layout.f64}));
  }

  stablehlo::Values packs(const int (&sizes)[kNumCarriers]) {
    stablehlo::Values out(kNumCarriers);
    if (sizes[0] > 0) {
      out[0] = b_.bitcast_convert(take(words_, f32_, sizes[0]),
                                  stablehlo::Type(stablehlo::DType::kF32, {sizes[0]}));
    }
    if (sizes[1] > 0) out[1] = take(f64s_, f64_, sizes[1]);
    if (sizes[2] > 0) out[2] = b_.convert(take_u64(s64_, sizes[2]), stablehlo::DType::kS64);
    return out;
  }

  // s32[]: a size that the program runs with.
  stablehlo::Value size(int64_t which) {
    const int64_t at = sizes_ + which;
    return b_.convert(b_.reshape(b_.slice(words_, {at}, {at + 1}), {}), stablehlo::DType::kS32);
  }

  stablehlo::Value rng_state() { return take_u64(rng_, 2); }

 private:
  stablehlo::Value take(const stablehlo::Value& from, int64_t& at, int64_t count) {
    at += count;
    return b_.slice(from, {at - count}, {at});
  }

  // By arithmetic, since not every compiler converts the bits of 64-bit types.
  stablehlo::Value take_u64(int64_t& at, int64_t count) {
    const stablehlo::Value pairs =
        b_.convert(b_.reshape(take(words_, at, 2 * count), {count, 2}), stablehlo::DType::kU64);
    const stablehlo::Value low = b_.reshape(b_.slice(pairs, {0, 0}, {count, 1}), {count});
    const stablehlo::Value high = b_.reshape(b_.slice(pairs, {0, 1}, {count, 2}), {count});
    return b_.or_(low, b_.shift_left(high, b_.splat(32, high.type())));
  }

  stablehlo::Builder& b_;
  stablehlo::Value words_;
  stablehlo::Value f64s_;
  int64_t f32_ = 0;
  int64_t f64_ = 0;
  int64_t s64_;
  int64_t rng_;
  int64_t sizes_;
};

}  // namespace torch_tpu::trace
