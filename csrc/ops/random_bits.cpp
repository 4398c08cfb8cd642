// The random words and the distributions that need no loop.
#include <cmath>

#include "csrc/ops/helpers.h"
#include "csrc/ops/random.h"
#include "csrc/stablehlo/axis.h"

namespace torch_tpu::ops {
namespace {

constexpr double kPi = 3.14159265358979323846;

DType word_of(DType t) { return t == DType::kF64 ? DType::kU64 : DType::kU32; }
int word_bits(DType word) { return word == DType::kU64 ? 64 : 32; }

struct Words {
  Value first, second;  // ui32 each
};

Words split_words(Builder& b, const Value& x) {
  const Value high = b.shift_right_logical(x, b.like(x, 32));
  return {b.convert(x, DType::kU32), b.convert(high, DType::kU32)};
}

Value element(const Value& x, int64_t i) {
  return x.builder().reshape(x.builder().slice(x, {i}, {i + 1}), {});
}

// What is drawn of a larger draw.
struct Part {
  Dims all;
  Values starts;
  Values sizes;  // how many elements of each dim count; undefined: all. Empty: they do of all dims
};

// counter + the position of each element in row-major order, in halves. Made of iotas of the final
// shape, so that a partitioned program draws each part where it is needed.
Words counters(Builder& b, const Value& counter, const Dims& dims, const Part& part) {
  const int64_t n = stablehlo::product(part.all);
  const DType t = n <= (int64_t{1} << 32) ? DType::kU32 : DType::kU64;
  const Type type(t, dims);
  Value position = full(b, 0, t, dims);
  int64_t stride = 1;
  Value strides;  // ui[]: and this many times as much, where sizes vary
  for (int64_t i = type.rank() - 1; i >= 0; --i) {
    Value along = b.iota(type, i);
    if (!part.starts.empty() && part.starts[i]) {
      along = b.add(along, b.broadcast_to(b.convert(part.starts[i], t), dims));
    }
    if (strides) along = b.multiply(along, b.broadcast_to(strides, dims));
    position = b.add(position, stride == 1 ? along : b.multiply(along, b.splat_int(stride, type)));
    if (!part.sizes.empty() && part.sizes[i]) {
      const Value size = b.convert(part.sizes[i], t);
      strides = strides ? b.multiply(strides, size) : size;
    } else {
      stride *= part.all[i];
    }
  }
  if (t == DType::kU64) return split_words(b, b.add(position, b.broadcast_to(counter, dims)));
  const Words start = split_words(b, counter);
  const Value low = b.add(position, b.broadcast_to(start.first, dims));
  const Value carry = b.convert(b.lt(low, position), DType::kU32);
  return {low, b.add(carry, b.broadcast_to(start.second, dims))};
}

// Threefry2x32 with 20 rounds (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3"). XLA
// has generators of its own, but they do not fuse, cannot be partitioned, and take 5 to 30 times as
// long on CPU; this one is additions, shifts and xors of 32-bit words, which every machine does
// fast.
Words random_words(Builder& b, const Value& state, const Dims& dims, const Part& part) {
  static constexpr int kRotations[] = {13, 15, 26, 6, 17, 29, 16, 24};
  const Words key = split_words(b, element(state, 0));
  const Value parity = b.xor_(b.xor_(key.first, key.second), b.like(key.first, 0x1BD11BDA));
  const Value keys[] = {key.first, key.second, parity};
  const auto spread = [&](const Value& x) { return b.broadcast_to(x, dims); };

  auto [x, y] = counters(b, element(state, 1), dims, part);
  x = b.add(x, spread(keys[0]));
  y = b.add(y, spread(keys[1]));
  for (int round = 0; round < 20; ++round) {
    const int rotation = kRotations[round % 8];
    x = b.add(x, y);
    y = b.or_(b.shift_left(y, b.like(y, rotation)),
              b.shift_right_logical(y, b.like(y, 32 - rotation)));
    y = b.xor_(y, x);
    if (round % 4 == 3) {
      const int injection = round / 4 + 1;
      x = b.add(x, spread(keys[injection % 3]));
      y = b.add(y, spread(keys[(injection + 1) % 3] + injection));
    }
  }
  return {x, y};
}

Words random_words(Builder& b, const Value& state, const Dims& dims) {
  return random_words(b, state, dims, {dims, {}, {}});
}

Value bits_of(const Words& words, DType dtype) {
  if (dtype == DType::kU32) return words.first;
  Builder& b = words.first.builder();
  const Value high = b.convert(words.second, DType::kU64);
  return b.or_(b.convert(words.first, DType::kU64), b.shift_left(high, b.like(high, 32)));
}

// The highest `digits` bits of each word as a fraction of 2^digits, plus `shift` steps.
Value fraction(const Value& bits, int digits, double shift, DType t) {
  Builder& b = bits.builder();
  const DType word = bits.dtype();
  const Value top = b.shift_right_logical(bits, b.like(bits, word_bits(word) - digits));
  // Through signed integers: conversion from unsigned is slow on most machines.
  const DType signed_word = word == DType::kU64 ? DType::kS64 : DType::kS32;
  Value x = b.convert(b.convert(top, signed_word), t);
  if (shift != 0) x = x + shift;
  return x * std::ldexp(1.0, -digits);
}

// On (0, 1]. In f32 with all 32 bits: rounding keeps the small values apart, which a logarithm
// needs.
Value open_fraction(const Value& bits, DType t) {
  if (t == DType::kF64) return fraction(bits, 53, 1, t);
  return (bits.builder().convert(bits, t) + 1.0) * std::ldexp(1.0, -32);
}

// sin(pi / 2 * t) for t in [-1, 1]. The polynomial's error is 5e-9; sine itself is not vectorized
// by XLA:CPU.
Value sine_of_quarter(const Value& t) {
  Builder& b = t.builder();
  if (t.dtype() == DType::kF64) return b.sine(t * (kPi / 2));
  const Value square = b.multiply(t, t);
  Value sum = b.like(t, 1.51485051e-04);
  for (double c : {-4.67376644e-03, 7.96896788e-02, -6.45963711e-01, 1.57079632}) {
    sum = b.multiply(sum, square) + c;
  }
  return b.multiply(sum, t);
}

}  // namespace

int mantissa_digits(DType t) {
  switch (t) {
    case DType::kF64:
      return 53;
    case DType::kF16:
      return 11;
    case DType::kBF16:
      return 8;
    default:
      return 24;
  }
}

Value random_bits(Builder& b, const Value& state, const Dims& dims, DType dtype) {
  return bits_of(random_words(b, state, dims), dtype);
}

// Another key gives unrelated words; two of them are the new key and counter.
constexpr int64_t kStreamKey = 0x1E3779B97F4A7C15;

Value random_stream(Builder& b, const Value& state, int64_t stream) {
  const Value key = b.xor_(state, b.ints({kStreamKey + stream, 0}, state.type()));
  return random_bits(b, key, {2}, DType::kU64);
}

Value random_stream(Builder& b, const Value& state, const Value& stream) {
  const Value change = b.add(stream, b.splat_int(kStreamKey, stream.type()));
  const Value both =
      b.concatenate({b.reshape(change, {1}), b.ints({0}, Type(DType::kU64, {1}))}, 0);
  return random_bits(b, b.xor_(state, both), {2}, DType::kU64);
}

Value random_uniform01(Builder& b, const Value& state, const Dims& dims, DType dtype) {
  const DType t = opmath(dtype);
  const Value bits = random_bits(b, state, dims, word_of(t));
  return b.convert(fraction(bits, mantissa_digits(dtype), 0, t), dtype);
}

Value random_uniform01_part(Builder& b, const Value& state, const Dims& all, const Values& starts,
                            const Dims& dims, DType dtype) {
  const DType t = opmath(dtype);
  const Value bits = bits_of(random_words(b, state, dims, {all, starts, {}}), word_of(t));
  return b.convert(fraction(bits, mantissa_digits(dtype), 0, t), dtype);
}

Value random_uniform01_like(Builder& b, const Value& state, const Value& like, DType dtype) {
  Part part{like.dims(), {}, Values(like.dims().size())};
  for (int64_t i = 0; i < like.rank(); ++i) {
    if (!like.type().varies(i)) continue;
    const stablehlo::Axis& axis = b.axis(like, i);
    if (axis.size() != 1) throw stablehlo::Unproven("a draw where dimensions were merged");
    part.sizes[i] = b.size_value(axis[0].size);
  }
  const DType t = opmath(dtype);
  const Value bits = bits_of(random_words(b, state, like.dims(), part), word_of(t));
  Value drawn = b.convert(fraction(bits, mantissa_digits(dtype), 0, t), dtype);
  for (int64_t i = 0; i < like.rank(); ++i) {
    if (like.type().varies(i)) drawn = b.vary(drawn, i, b.axis(like, i)[0].size);
  }
  return drawn;
}

Value random_uniform01_open(Builder& b, const Value& state, const Dims& dims, DType dtype) {
  const DType t = opmath(dtype);
  return b.convert(open_fraction(random_bits(b, state, dims, word_of(t)), t), dtype);
}

// Box and Muller's radius times the sine of a uniform angle. That sine is distributed the same on a
// quarter turn either way as on a whole one, so no octants are needed.
Value random_normal(Builder& b, const Value& state, const Dims& dims, DType dtype) {
  const DType t = opmath(dtype);
  Value length, angle;  // words
  if (t == DType::kF64) {
    length = random_bits(b, state, dims, DType::kU64);
    angle = random_bits(b, random_stream(b, state, 0), dims, DType::kU64);
  } else {
    const Words words = random_words(b, state, dims);
    length = words.first;
    angle = words.second;
  }
  const Value radius = b.sqrt(b.log(open_fraction(length, t)) * -2.0);
  const DType signed_word = t == DType::kF64 ? DType::kS64 : DType::kS32;
  const Value turn = b.convert(b.bitcast_convert(angle, Type(signed_word, dims)), t) *
                     std::ldexp(1.0, 1 - word_bits(angle.dtype()));
  return b.convert(b.multiply(radius, sine_of_quarter(turn)), dtype);
}

Value uniform_bits01(Call& c, const Dims& dims, DType dtype) {
  return random_uniform01(c.b, c.rng_state(), dims, dtype);
}

}  // namespace torch_tpu::ops
