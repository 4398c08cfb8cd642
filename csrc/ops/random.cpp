// Ops that draw random numbers, all on the device. Fills overwrite self, so their lowerings use
// only the output's type.
#include "csrc/ops/random.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include <c10/core/ScalarTypeToTypeMeta.h>
#include <c10/util/Exception.h>

#include "csrc/ops/helpers.h"
#include "csrc/ops/index.h"
#include "csrc/ops/scan.h"
#include "csrc/ops/table.h"

namespace torch_tpu::ops {
namespace {

constexpr double kPi = 3.14159265358979323846;

// A runtime scalar argument, as large as the output, in the type the draw is computed in.
Value parameter(Call& c, std::string_view name, DType t) {
  return c.b.broadcast_to(c.scalar(name, t), c.out().dims);
}

// Reports `message` when some element of `ok` is false.
void check_all(Call& c, const Value& ok, std::string message) {
  c.check_range(c.b.convert(c.b.not_(ok), DType::kS32), 0, 1, std::move(message));
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

// The largest finite number.
double largest_float(DType t) {
  if (t == DType::kF16) return 65504;
  if (t == DType::kBF16) return std::ldexp(2 - std::ldexp(1.0, -7), 127);
  return t == DType::kF64 ? std::numeric_limits<double>::max() : std::numeric_limits<float>::max();
}

std::string type_name(DType t) {
  return std::string(c10::scalarTypeToTypeMeta(to_scalar_type(t)).name());
}

void check_uniform_bounds(Call& c) {
  Builder& b = c.b;
  const DType t = real_of(c.out().dtype);
  const Value from = c.scalar("from", DType::kF64), to = c.scalar("to", DType::kF64);
  const Value limit = b.scalar(largest_float(t), DType::kF64);
  for (const auto& [value, name] : {std::pair(from, "from"), std::pair(to, "to")}) {
    check_all(c, b.le(b.abs(value), limit), name + (" is out of bounds for " + type_name(t)));
  }
  check_all(c, b.le(from, to),
            "uniform_ expects to return a [from, to) range, but found from > to");
  check_all(c, b.le(to - from, limit),
            "uniform_ expects to-from <= std::numeric_limits<" + type_name(t) + ">::max()");
}

Values lower_uniform(Call& c) {
  Builder& b = c.b;
  const bool standard = c.known("from") == 0.0 && c.known("to") == 1.0;
  if (!standard) {
    check_uniform_bounds(c);
  }
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
  if (c.out().numel() == 0) return {full(c.b, 0, c.out().dtype, c.out().dims)};
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
  TORCH_CHECK(!tensor_std || !is_complex(c.dtype("std")),
              "normal expects standard deviation to be non-complex");
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

Values lower_bernoulli_of(Call& c, std::string_view name) {
  const Value p = c.tensor(name);
  check_all(c, c.b.and_(c.b.ge(p, zeros_like(p)), c.b.le(p, ones_like(p))),
            "Expected p_in >= 0 && p_in <= 1 to be true, but got false.");
  return {draw_bernoulli(c, p)};
}

Values lower_bernoulli(Call& c) { return lower_bernoulli_of(c, "self"); }
Values lower_bernoulli_tensor(Call& c) { return lower_bernoulli_of(c, "p"); }
Values lower_bernoulli_float(Call& c) {
  const Value p = c.scalar("p", DType::kF32);
  check_all(c, c.b.and_(c.b.ge(p, zeros_like(p)), c.b.le(p, ones_like(p))),
            "bernoulli_ expects p to be in [0, 1]");
  return {draw_bernoulli(c, p)};
}

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

void warn_of_precision(int64_t bound, const char* name, DType t) {
  const int digits = mantissa_digits(t);
  const int64_t limit = int64_t{1} << digits;
  if (bound >= -limit && bound <= limit) return;
  TORCH_WARN(name, " is out of bounds [-(2^", digits, "), 2^", digits,
             "]. Due to precision limitations ", type_name(t), " can support discrete uniform ",
             "distribution only within this range. This warning will become an error in later ",
             "versions of PyTorch.");
}

// What CPU checks in the kernel, so the Meta kernel does not.
Values draw_between(Call& c, int64_t from, int64_t to) {
  const DType t = c.out().dtype;
  TORCH_CHECK(!is_complex(t),
              "check_random_bounds handles only integral, floating-point and boolean types");
  TORCH_CHECK(from < to, "random_ expects 'from' to be less than 'to', but got from=", from,
              " >= to=", to);
  if (!is_float(t)) {
    const int64_t largest = largest_of(t);
    const int64_t smallest = is_unsigned(t) ? 0 : -largest - 1;
    TORCH_CHECK(from >= smallest && from <= largest, "from is out of bounds for ", type_name(t));
    TORCH_CHECK(to - 1 <= largest, "to - 1 is out of bounds for ", type_name(t));
  } else {
    const double limit = largest_float(t);
    TORCH_CHECK(std::abs(double(from)) <= limit, "from is out of bounds for ", type_name(t));
    TORCH_CHECK(std::abs(double(to - 1)) <= limit, "to - 1 is out of bounds for ", type_name(t));
    warn_of_precision(from, "from", t);
    warn_of_precision(to - 1, "to - 1", t);
  }
  return draw_integers(c, from, static_cast<uint64_t>(to) - static_cast<uint64_t>(from));
}

Values lower_random_to(Call& c) { return draw_between(c, 0, c.integer("to")); }

Values lower_random_from(Call& c) {
  const int64_t from = c.integer("from");
  if (c.has("to")) return draw_between(c, from, c.integer("to"));
  const uint64_t end = static_cast<uint64_t>(largest_of(c.out().dtype)) + 1;
  return draw_integers(c, from, end - static_cast<uint64_t>(from));
}

// Every position must have a number of its own in the output's type.
void check_permutation(int64_t n, DType t) {
  if (is_float(t)) {
    const int64_t limit = (int64_t{1} << mantissa_digits(t)) + 1;
    TORCH_CHECK(n <= limit, "n cannot be greater than ", limit, " for ",
                c10::toString(to_scalar_type(t)), " type.");
  } else {
    TORCH_CHECK(n - 1 <= largest_of(t), "value cannot be converted to type ",
                is_unsigned(t) ? "u" : "", "int", 8 * dtype_bytes(t), "_t without overflow");
  }
}

// Sorts words with random bits above and the position below. Equal random bits, which would keep
// the order, are rare: one pair in 30 permutations of a million elements.
Values lower_randperm(Call& c) {
  Builder& b = c.b;
  const int64_t n = c.integer("n");
  check_permutation(n, c.out().dtype);
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
  TORCH_CHECK(is_float(self.dtype()),
              "multinomial only supports floating-point dtypes for input, got: ",
              c10::toString(to_scalar_type(self.dtype())));
  TORCH_CHECK(samples > 0, "cannot sample n_sample <= 0 samples");
  TORCH_CHECK(c.flag("replacement") || samples <= self.dim(-1),
              "cannot sample n_sample > prob_dist.size(-1) samples without replacement");
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
  for (const char* name : {"count", "prob"}) {
    TORCH_CHECK_VALUE(is_float(c.dtype(name)), "binomial only supports floating-point dtypes for ",
                      name, ", got: ", c10::toString(to_scalar_type(c.dtype(name))));
  }
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
  const Value mask = b.lt(random_uniform01_like(b, c.rng_state(), input, real),
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
