// From random bits to distributions, for every op that draws (random.cpp, dropout inside attention
// and recurrent layers). The bits are Threefry2x32, counter based: the state is ui64[2], the
// generator's seed as key and its offset as counter, so draws at disjoint offset ranges are
// independent and the same (seed, offset) gives the same numbers whatever program asks. Element i
// of a draw uses the counter value offset + i.
#pragma once

#include "csrc/ops/call.h"

namespace torch_tpu::ops {

// 24 for f32, 53 for f64, 11 for f16, 8 for bf16.
int mantissa_digits(DType dtype);

// Uniform words: ui32 or ui64.
Value random_bits(Builder& b, const Value& state, const Dims& dims, DType dtype);
// The state of another stream, independent of `state` and as long as one likes: for the second and
// later draws of a call (`stream` 0, 1, ...) and for draws larger than the call's output.
Value random_stream(Builder& b, const Value& state, int64_t stream);
Value random_stream(Builder& b, const Value& state, const Value& stream);  // ui64[]

// Uniform on [0, 1) with as many random bits as `dtype` has mantissa digits, so never rounded up to
// 1. The result has `dtype`.
Value random_uniform01(Builder& b, const Value& state, const Dims& dims, DType dtype);
// The part of such a draw of dims `all` that begins at `starts` (0-d s32 or s64; undefined: 0) and
// has dims `dims`: the same numbers, whatever the parts it is drawn in.
Value random_uniform01_part(Builder& b, const Value& state, const Dims& all, const Values& starts,
                            const Dims& dims, DType dtype);
// A draw as large as `like`, whose dimensions may vary: what counts of it are the numbers that an
// array of its true sizes draws.
Value random_uniform01_like(Builder& b, const Value& state, const Value& like, DType dtype);
// Uniform on (0, 1]: safe under a logarithm. 2^-32 (2^-53 for f64) is the smallest value.
Value random_uniform01_open(Builder& b, const Value& state, const Dims& dims, DType dtype);
// Standard normal by Box-Muller. Half types are computed in f32 and rounded.
Value random_normal(Builder& b, const Value& state, const Dims& dims, DType dtype);

// random_uniform01 from the call's own state.
Value uniform_bits01(Call& c, const Dims& dims, DType dtype);

// Drawn by rejection, element by element in a loop that ends when all are accepted
// (random_rejection.cpp). The parameters are f32 or f64 and give shape and dtype.
Value random_poisson(Builder& b, const Value& state, const Value& rate);
Value random_binomial(Builder& b, const Value& state, const Value& count, const Value& prob);
Value random_gamma(Builder& b, const Value& state, const Value& alpha);  // scale 1

}  // namespace torch_tpu::ops
