// Ops that draw random numbers, all on the device. Fills overwrite self, so their lowerings use
// only the output's type.
#include "csrc/ops/random.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "csrc/ops/helpers.h"
#include "csrc/ops/index.h"
#include "csrc/ops/scan.h"
#include "csrc/ops/table.h"

namespace torch_tpu::ops {
namespace {

constexpr double kPi = 3.14159265358979323846;

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

// counter + the position of each element in row-major order, in halves. Made of iotas of the final
// shape, so that a partitioned program draws each part where it is needed.
Words counters(Builder& b, const Value& counter, const Dims& dims) {
  const int64_t n = stablehlo::product(dims);
  const DType t = n <= (int64_t{1} << 32) ? DType::kU32 : DType::kU64;
  const Type type(t, dims);
  Value position = full(b, 0, t, dims);
  int64_t stride = 1;
  for (int64_t i = type.rank() - 1; i >= 0; --i) {
    const Value along = b.iota(type, i);
    position = b.add(position, stride == 1 ? along : b.multiply(along, b.splat_int(stride, type)));
    stride *= dims[i];
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
Words random_words(Builder& b, const Value& state, const Dims& dims) {
  static constexpr int kRotations[] = {13, 15, 26, 6, 17, 29, 16, 24};
  const Words key = split_words(b, element(state, 0));
  const Value parity = b.xor_(b.xor_(key.first, key.second), b.like(key.first, 0x1BD11BDA));
  const Value keys[] = {key.first, key.second, parity};
  const auto spread = [&](const Value& x) { return b.broadcast_to(x, dims); };

  auto [x, y] = counters(b, element(state, 1), dims);
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
      y = b.add(y, spread(keys[(injection + 1) % 3] + static_cast<double>(injection)));
    }
  }
  return {x, y};
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

Value random_bits(Builder& b, const Value& state, const Dims& dims, DType dtype) {
  const Words words = random_words(b, state, dims);
  if (dtype == DType::kU32) return words.first;
  const Value high = b.convert(words.second, DType::kU64);
  return b.or_(b.convert(words.first, DType::kU64), b.shift_left(high, b.like(high, 32)));
}

Value random_stream(Builder& b, const Value& state, int64_t stream) {
  // Another key gives unrelated words; two of them are the new key and counter.
  const int64_t change = 0x1E3779B97F4A7C15 + stream;
  const Value key = b.xor_(state, b.ints({change, 0}, state.type()));
  return random_bits(b, key, {2}, DType::kU64);
}

Value random_uniform01(Builder& b, const Value& state, const Dims& dims, DType dtype) {
  const DType t = opmath(dtype);
  const Value bits = random_bits(b, state, dims, word_of(t));
  return b.convert(fraction(bits, mantissa_digits(dtype), 0, t), dtype);
}

Value random_uniform01_open(Builder& b, const Value& state, const Dims& dims, DType dtype) {
  const DType t = opmath(dtype);
  return open_fraction(random_bits(b, state, dims, word_of(t)), t);
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

namespace {

// A runtime scalar argument, as large as the output, in the type the draw is computed in.
Value parameter(Call& c, std::string_view name, DType t) {
  return c.b.broadcast_to(c.scalar(name, t), c.out().dims);
}

// Reports `message` when some element of `ok` is false.
void check_all(Call& c, const Value& ok, std::string message) {
  c.check_index(c.b.convert(c.b.not_(ok), DType::kS32), 0, 1, std::move(message));
}

// The type continuous distributions are computed in; integer outputs (geometric_) use f32.
DType draw_dtype(Call& c) { return float_math(c.out().dtype); }

Value draw01_open(Call& c) {
  return random_uniform01_open(c.b, c.rng_state(), c.out().dims, draw_dtype(c));
}

// Draws a complex tensor as two real ones, or a real one as it is.
template <typename Draw>
Value draw_parts(Call& c, const Draw& draw) {
  const DType t = c.out().dtype;
  if (!is_complex(t)) return draw(c.rng_state(), opmath(t));
  return c.b.complex(draw(random_stream(c.b, c.rng_state(), 0), real_of(t)),
                     draw(random_stream(c.b, c.rng_state(), 1), real_of(t)));
}

// --- continuous distributions --------------------------------------------------------------------

Values lower_uniform(Call& c) {
  Builder& b = c.b;
  const bool standard = c.known("from") == 0.0 && c.known("to") == 1.0;
  return {draw_parts(c, [&](const Value& state, DType t) {
    const DType rounded = is_complex(c.out().dtype) ? t : c.out().dtype;
    const Value u = random_uniform01(b, state, c.out().dims, t);
    const Value from = parameter(c, "from", t);
    const Value to = parameter(c, "to", t);
    const Value x = standard ? u : b.add(b.multiply(u, b.subtract(to, from)), from);
    // Rounding may reach the end of the range, which is not part of it.
    const Value result = b.convert(x, rounded);
    if (standard && rounded == t) return result;
    return b.select(b.lt(result, b.convert(to, rounded)), result, b.convert(from, rounded));
  })};
}

Values lower_normal(Call& c) {
  Builder& b = c.b;
  // A complex number of variance 1 has parts of variance 1/2.
  const double scale = is_complex(c.out().dtype) ? std::sqrt(0.5) : 1;
  const Value z = draw_parts(c, [&](const Value& state, DType t) {
    const Value x = random_normal(b, state, c.out().dims, t);
    const Value deviated = c.known("std") == 1.0 ? x : b.multiply(x, parameter(c, "std", t));
    return scale == 1 ? deviated : deviated * scale;
  });
  if (c.known("mean") == 0.0) return {z};
  return {b.add(z, parameter(c, "mean", z.dtype()))};
}

// normal.Tensor_Tensor and its relatives: mean or std may be numbers.
Values lower_normal_of(Call& c, bool tensor_mean, bool tensor_std) {
  Builder& b = c.b;
  const DType t = draw_dtype(c);
  const auto argument = [&](std::string_view name, bool is_tensor) {
    return is_tensor ? b.broadcast_to(cast(c.tensor(name), t), c.out().dims)
                     : parameter(c, name, t);
  };
  const Value std = argument("std", tensor_std);
  if (tensor_std) {
    check_all(c, b.ge(std, zeros_like(std)), "normal expects all elements of std >= 0.0");
  }
  const Value z = random_normal(b, c.rng_state(), c.out().dims, t);
  return {b.add(argument("mean", tensor_mean), b.multiply(std, z))};
}

Values lower_normal_tensor_float(Call& c) { return lower_normal_of(c, true, false); }
Values lower_normal_float_tensor(Call& c) { return lower_normal_of(c, false, true); }
Values lower_normal_tensor_tensor(Call& c) { return lower_normal_of(c, true, true); }

Values lower_log_normal(Call& c) {
  Builder& b = c.b;
  const DType t = draw_dtype(c);
  const Value z = random_normal(b, c.rng_state(), c.out().dims, t);
  return {b.exponential(b.add(b.multiply(z, parameter(c, "std", t)), parameter(c, "mean", t)))};
}

// Never 0: samplers divide by it.
Value standard_exponential(Builder& b, const Value& state, const Dims& dims, DType t) {
  const Value x = b.negate(b.log(random_uniform01_open(b, state, dims, t)));
  return b.maximum(x, b.like(x, std::ldexp(1.0, -mantissa_digits(t))));
}

Values lower_exponential(Call& c) {
  const DType t = draw_dtype(c);
  const Value x = standard_exponential(c.b, c.rng_state(), c.out().dims, t);
  return {c.known("lambd") == 1.0 ? x : c.b.divide(x, parameter(c, "lambd", t))};
}

Values lower_cauchy(Call& c) {
  Builder& b = c.b;
  const DType t = draw_dtype(c);
  const Value x = b.tan((draw01_open(c) - 0.5) * kPi);
  return {b.add(parameter(c, "median", t), b.multiply(parameter(c, "sigma", t), x))};
}

// The number of trials up to the first success, from 1.
Values lower_geometric(Call& c) {
  Builder& b = c.b;
  const DType t = draw_dtype(c);
  const Value failure = b.log_plus_one(b.negate(parameter(c, "p", t)));
  const Value trials = b.ceil(b.divide(b.log(draw01_open(c)), failure));
  return {b.maximum(trials, ones_like(trials))};
}

// --- discrete distributions ----------------------------------------------------------------------

// True with probability p, which is broadcast to the output.
Value draw_bernoulli(Call& c, const Value& p) {
  const DType t = p.dtype() == DType::kF64 ? DType::kF64 : DType::kF32;
  const Value u = uniform_bits01(c, c.out().dims, t);
  return c.b.lt(u, c.b.broadcast_to(cast(p, t), c.out().dims));
}

Values lower_bernoulli(Call& c) { return {draw_bernoulli(c, c.tensor("self"))}; }
Values lower_bernoulli_tensor(Call& c) { return {draw_bernoulli(c, c.tensor("p"))}; }
Values lower_bernoulli_float(Call& c) { return {draw_bernoulli(c, c.scalar("p", DType::kF32))}; }

// Integers in [from, from + range); range 0 stands for 2^64.
Values draw_integers(Call& c, int64_t from, uint64_t range) {
  Builder& b = c.b;
  const bool narrow = range != 0 && range <= (uint64_t{1} << 20);
  Value bits = random_bits(b, c.rng_state(), c.out().dims, narrow ? DType::kU32 : DType::kU64);
  if (narrow) {
    // The bits as a fraction, times the range: no division, and as even as the remainder.
    bits = b.convert(bits, DType::kU64);
    bits = b.multiply(bits, b.splat_int(static_cast<int64_t>(range), bits.type()));
    bits = b.shift_right_logical(bits, b.like(bits, 32));
  } else if (range > (uint64_t{1} << 63)) {
    // The remainder, by one subtraction; the builder's constants are signed, so in two parts.
    const Value half = b.splat(std::ldexp(1.0, 63), bits.type());
    const int64_t rest = static_cast<int64_t>(range - (uint64_t{1} << 63));
    const Value limit = b.add(half, b.splat_int(rest, bits.type()));
    bits = b.select(b.lt(bits, limit), bits, b.subtract(bits, limit));
  } else if (range == (uint64_t{1} << 63)) {
    bits = b.shift_right_logical(bits, b.like(bits, 1));
  } else if (range != 0) {
    bits = b.remainder(bits, b.splat_int(static_cast<int64_t>(range), bits.type()));
  }
  const Value offset = b.convert(bits, DType::kS64);
  return {from == 0 ? offset : b.add(offset, b.splat_int(from, offset.type()))};
}

// The largest value random_ gives when it has no upper bound: all that the type holds exactly.
int64_t largest_of(DType t) {
  if (is_float(t)) return int64_t{1} << mantissa_digits(t);
  if (t == DType::kBool) return 1;
  if (dtype_bytes(t) == 8) return std::numeric_limits<int64_t>::max();
  const int64_t bits = 8 * dtype_bytes(t) - (is_unsigned(t) ? 0 : 1);
  return (int64_t{1} << bits) - 1;
}

Values lower_random(Call& c) {
  return draw_integers(c, 0, static_cast<uint64_t>(largest_of(c.out().dtype)) + 1);
}

Values lower_random_to(Call& c) {
  return draw_integers(c, 0, static_cast<uint64_t>(c.integer("to")));
}

Values lower_random_from(Call& c) {
  const int64_t from = c.integer("from");
  const uint64_t end = c.has("to") ? static_cast<uint64_t>(c.integer("to"))
                                   : static_cast<uint64_t>(largest_of(c.out().dtype)) + 1;
  return draw_integers(c, from, end - static_cast<uint64_t>(from));
}

// Sorts words with random bits above and the position below. Equal random bits, which would keep
// the order, are rare: one pair in 30 permutations of a million elements.
Values lower_randperm(Call& c) {
  Builder& b = c.b;
  const int64_t n = c.integer("n");
  const Type type(DType::kU64, {n});
  const Value position = b.iota(type, 0);
  if (n < 2) return {position};
  int width = 0;
  while ((int64_t{1} << width) < n) ++width;
  const Value random = random_bits(b, c.rng_state(), {n}, DType::kU64);
  const Value keys = b.or_(b.shift_left(random, b.splat_int(width, type)), position);
  const Value sorted = b.sort({keys}, 0, /*stable=*/false, [&b](const Values& args) -> Values {
    return {b.lt(args[0], args[1])};
  })[0];
  return {b.and_(sorted, b.splat_int((int64_t{1} << width) - 1, type))};
}

// Without replacement: the smallest of exponential variables with the weights as rates come in
// the order of a draw without replacement. With replacement: by the inverse of the running sum.
Values lower_multinomial(Call& c) {
  Builder& b = c.b;
  const Value self = c.tensor("self");
  const int64_t samples = c.integer("num_samples");
  const Value weights = cast(self, opmath(self.dtype()));
  const DType t = weights.dtype();
  const int64_t last = weights.rank() - 1;
  if (c.out().numel() == 0) return {full(b, 0, DType::kS64, c.out().dims)};

  const Value total = reduce_sum(weights, {last});
  check_all(c, b.and_(b.is_finite(weights), b.ge(weights, zeros_like(weights))),
            "probability tensor contains either `inf`, `nan` or element < 0");
  check_all(c, b.gt(total, zeros_like(total)),
            "invalid multinomial distribution (sum of probabilities <= 0)");

  const Value state = random_stream(b, c.rng_state(), 0);
  if (!c.flag("replacement") || samples == 1) {
    const Value waits = standard_exponential(b, state, weights.dims(), t);
    return {b.top_k(b.divide(weights, waits), samples)[1]};
  }
  const Value running = scan(weights, last, Reduction::kAdd);
  const int64_t classes = running.dim(last);
  const Value end = b.slice_dim(running, last, classes - 1, classes);
  const Value u = random_uniform01(b, state, c.out().dims, t);
  const Value chosen =
      search_sorted(running, b.multiply(u, b.broadcast_to(end, u.dims())), /*right=*/true);
  // Rounding may reach the end: the last class with any weight is the last that can be drawn.
  const Value final_class = search_sorted(running, end, /*right=*/false);
  return {b.minimum(chosen, b.broadcast_to(final_class, chosen.dims()))};
}

Values lower_poisson(Call& c) {
  const Value rate = cast(c.tensor("self"), draw_dtype(c));
  check_all(c, c.b.ge(rate, zeros_like(rate)),
            "invalid Poisson rate, expected rate to be non-negative");
  return {random_poisson(c.b, c.rng_state(), rate)};
}

Values lower_binomial(Call& c) {
  const DType t = float_math(c.common_dtype({"count", "prob"}));
  const auto [count, prob] = broadcast2(cast(c.tensor("count"), t), cast(c.tensor("prob"), t));
  return {cast(random_binomial(c.b, c.rng_state(), count, prob), c.dtype("count"))};
}

Values lower_standard_gamma(Call& c) {
  const Value alpha = c.tensor("self");
  const Value x = cast(alpha, opmath(alpha.dtype()));
  return {cast(random_gamma(c.b, c.rng_state(), x), alpha.dtype())};
}

Values lower_sample_dirichlet(Call& c) {
  Builder& b = c.b;
  const Value alpha = c.tensor("self");
  const Value gammas = random_gamma(b, c.rng_state(), cast(alpha, opmath(alpha.dtype())));
  const int64_t last = gammas.rank() - 1;
  const Value sum = reduce_sum(gammas, {last}, /*keepdim=*/true);
  return {cast(b.divide(gammas, b.broadcast_to(sum, gammas.dims())), alpha.dtype())};
}

// --- dropout -----------------------------------------------------------------------------------

Values lower_native_dropout(Call& c) {
  Builder& b = c.b;
  const Value input = c.tensor("input");
  if (!c.flag_or("train", true)) return {input, full(b, 1, DType::kBool, input.dims())};
  const DType t = opmath(input.dtype());
  const DType real = real_of(t);
  const Value keep = 1.0 - c.scalar("p", real);
  const Value mask = b.lt(random_uniform01(b, c.rng_state(), input.dims(), real),
                          b.broadcast_to(keep, input.dims()));
  const Value dropped_all = b.eq(keep, zeros_like(keep));
  const Value scale = b.select(dropped_all, zeros_like(keep), b.divide(ones_like(keep), keep));
  const Value factor =
      b.select(mask, b.broadcast_to(scale, input.dims()), full(b, 0, real, input.dims()));
  return {b.multiply(b.convert(input, t), cast(factor, t)), mask};
}

Values lower_native_dropout_backward(Call& c) {
  Builder& b = c.b;
  const Value grad = c.tensor("grad_output");
  const DType t = opmath(grad.dtype());
  const Value scale = b.broadcast_to(c.scalar("scale", t), grad.dims());
  return {b.multiply(b.convert(grad, t), b.multiply(cast(c.tensor("mask"), t), scale))};
}

}  // namespace

void add_random(Entries& t) {
  const auto fills = [&t](std::string_view name, Lowering lower) {
    t.push_back({.name = name, .lower = lower, .random = true, .overwrites = true});
  };
  const auto draws = [&t](std::string_view name, Lowering lower) {
    t.push_back({.name = name, .lower = lower, .random = true});
  };
  fills("uniform", lower_uniform);
  fills("normal_", lower_normal);  // its functional form has another name
  fills("normal_functional", lower_normal);
  fills("log_normal", lower_log_normal);
  fills("exponential", lower_exponential);
  fills("cauchy", lower_cauchy);
  fills("geometric", lower_geometric);
  fills("random", lower_random);
  fills("random.to", lower_random_to);
  fills("random.from", lower_random_from);
  fills("bernoulli_.float", lower_bernoulli_float);
  fills("bernoulli.p", lower_bernoulli_float);
  fills("bernoulli.Tensor", lower_bernoulli_tensor);
  draws("bernoulli", lower_bernoulli);
  draws("normal.Tensor_float", lower_normal_tensor_float);
  draws("normal.float_Tensor", lower_normal_float_tensor);
  draws("normal.Tensor_Tensor", lower_normal_tensor_tensor);
  draws("randperm", lower_randperm);
  draws("randperm.generator", lower_randperm);
  draws("multinomial", lower_multinomial);
  draws("poisson", lower_poisson);
  t.push_back({.name = "binomial", .lower = lower_binomial, .random = true, .no_meta = true});
  draws("_standard_gamma", lower_standard_gamma);
  t.push_back({.name = "_sample_dirichlet",
               .lower = lower_sample_dirichlet,
               .random = true,
               .no_meta = true});
  draws("native_dropout", lower_native_dropout);
  t.push_back({.name = "native_dropout_backward", .lower = lower_native_dropout_backward});
}

}  // namespace torch_tpu::ops
