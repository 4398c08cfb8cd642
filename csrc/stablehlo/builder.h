// Builds one StableHLO module with a single @main function. Every method checks its operands and
// infers the result type; misuse throws std::invalid_argument("[op] expected X, got Y"). Operands
// are never broadcast or converted implicitly. Dimensions may vary (axis.h): the methods then mask
// as needed or throw Unproven. Not thread-safe: one Builder per program.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "csrc/stablehlo/attributes.h"
#include "csrc/stablehlo/axis.h"

namespace torch_tpu::stablehlo {

class Builder {
 public:
  Builder();
  ~Builder();
  Builder(const Builder&) = delete;
  Builder& operator=(const Builder&) = delete;

  // --- the function ---------------------------------------------------------------------------
  Value parameter(const Type& type);
  int64_t num_parameters() const;
  // Donates parameter `parameter` to output `output` (tf.aliasing_output).
  void alias(int64_t parameter, int64_t output);
  // Module-level attributes for partitioned programs; 1 and 1 by default.
  void set_partitions(int64_t replicas, int64_t partitions);
  // Extra attribute text on a parameter, e.g. `sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>`.
  void parameter_attribute(int64_t parameter, std::string text);
  // The same on a result.
  void result_attribute(int64_t output, std::string text);
  // Text placed before @main, e.g. an sdy.mesh or a private func to call.
  void module_prologue(std::string text);
  // Ends the function and prints the module. Values that no result needs are not printed.
  std::string finish(const Values& results, std::string_view module_name = "program");

  // --- constants ------------------------------------------------------------------------------
  Value splat(const Number& value, const Type& type);  // complex: imag 0
  // The bits of a 64-bit unsigned type; else as splat.
  Value splat_int(int64_t value, const Type& type);
  Value splat_complex(std::complex<double> value, const Type& type);
  Value scalar(const Number& value, DType dtype) { return splat(value, Type(dtype, {})); }
  Value like(const Value& x, const Number& value);  // of x's type
  Value ints(const std::vector<int64_t>& values, const Type& type);
  Value floats(const std::vector<double>& values, const Type& type);
  // Identity elements as scalars: -inf/+inf for floats, the extreme values for integers and bool.
  Value lowest(DType dtype);
  Value highest(DType dtype);
  Value iota(const Type& type, int64_t dim);

  // --- elementwise, one operand ---------------------------------------------------------------
  Value abs(const Value& x);  // complex -> real
  Value cbrt(const Value& x);
  Value ceil(const Value& x);
  Value count_leading_zeros(const Value& x);
  Value cosine(const Value& x);
  Value exponential(const Value& x);
  Value exponential_minus_one(const Value& x);
  Value floor(const Value& x);
  Value imag(const Value& x);
  Value is_finite(const Value& x);
  Value log(const Value& x);
  Value log_plus_one(const Value& x);
  Value logistic(const Value& x);
  Value negate(const Value& x);
  Value not_(const Value& x);
  Value popcnt(const Value& x);
  Value real(const Value& x);
  Value round_nearest_afz(const Value& x);
  Value round_nearest_even(const Value& x);
  Value rsqrt(const Value& x);
  Value sign(const Value& x);
  Value sine(const Value& x);
  Value sqrt(const Value& x);
  Value tan(const Value& x);
  Value tanh(const Value& x);
  // From the chlo dialect, which all three compilers take.
  Value acos(const Value& x);
  Value acosh(const Value& x);
  Value asin(const Value& x);
  Value asinh(const Value& x);
  Value atan(const Value& x);
  Value atanh(const Value& x);
  Value bessel_i1e(const Value& x);
  Value conj(const Value& x);
  Value cosh(const Value& x);
  Value digamma(const Value& x);
  Value erf(const Value& x);
  Value erf_inv(const Value& x);
  Value erfc(const Value& x);
  Value lgamma(const Value& x);
  Value sinh(const Value& x);

  // --- elementwise, two and three operands ----------------------------------------------------
  Value add(const Value& a, const Value& b);  // logical or on bool
  Value subtract(const Value& a, const Value& b);
  Value multiply(const Value& a, const Value& b);   // logical and on bool
  Value divide(const Value& a, const Value& b);     // integers truncate
  Value remainder(const Value& a, const Value& b);  // sign of the dividend
  Value maximum(const Value& a, const Value& b);
  Value minimum(const Value& a, const Value& b);
  Value power(const Value& a, const Value& b);
  Value atan2(const Value& a, const Value& b);
  Value and_(const Value& a, const Value& b);
  Value or_(const Value& a, const Value& b);
  Value xor_(const Value& a, const Value& b);
  Value shift_left(const Value& a, const Value& b);
  Value shift_right_arithmetic(const Value& a, const Value& b);
  Value shift_right_logical(const Value& a, const Value& b);
  Value complex(const Value& real, const Value& imag);
  Value next_after(const Value& a, const Value& b);  // chlo
  Value polygamma(const Value& n, const Value& x);   // chlo
  Value zeta(const Value& x, const Value& q);        // chlo
  Value compare(Compare direction, const Value& a, const Value& b);
  Value eq(const Value& a, const Value& b) { return compare(Compare::kEq, a, b); }
  Value ne(const Value& a, const Value& b) { return compare(Compare::kNe, a, b); }
  Value lt(const Value& a, const Value& b) { return compare(Compare::kLt, a, b); }
  Value le(const Value& a, const Value& b) { return compare(Compare::kLe, a, b); }
  Value gt(const Value& a, const Value& b) { return compare(Compare::kGt, a, b); }
  Value ge(const Value& a, const Value& b) { return compare(Compare::kGe, a, b); }
  Value select(const Value& pred, const Value& on_true, const Value& on_false);
  Value clamp(const Value& low, const Value& x, const Value& high);

  // --- types ----------------------------------------------------------------------------------
  Value convert(const Value& x, DType dtype);  // no-op when it already has it
  Value bitcast_convert(const Value& x, const Type& type);
  Value reduce_precision(const Value& x, int exponent_bits, int mantissa_bits);

  // --- shapes ---------------------------------------------------------------------------------
  Value reshape(const Value& x, const Dims& dims);  // no-op when it already has them
  Value broadcast_in_dim(const Value& x, const Dims& dims, const Dims& broadcast_dims);
  // Numpy rules: aligns the trailing dimensions. No-op when the shape is already right.
  Value broadcast_to(const Value& x, const Dims& dims);
  Value transpose(const Value& x, const Dims& permutation);  // no-op for the identity
  Value reverse(const Value& x, const Dims& dims);
  Value slice(const Value& x, const Dims& starts, const Dims& limits, const Dims& strides = {});
  // One dimension of x, the others whole.
  Value slice_dim(const Value& x, int64_t dim, int64_t start, int64_t limit, int64_t stride = 1);
  Value pad(const Value& x, const Value& padding_value, const Dims& low, const Dims& high,
            const Dims& interior = {});
  Value concatenate(const Values& xs, int64_t dim);
  Value dynamic_slice(const Value& x, const Values& starts, const Dims& sizes);
  Value dynamic_update_slice(const Value& x, const Value& update, const Values& starts);
  // Whether `update` is computed from `base`, or what may come to be the same array, other than
  // element by element from `own` (may be undefined), which is read where the update goes. If so it
  // must not be written over the base: see in_place.cpp.
  bool reads_elsewhere(const Value& update, const Value& base, const Value& own) const;

  // --- dimensions that vary (axis.h) ----------------------------------------------------------
  // What the size is when the numbers given to new_size are these, in that order.
  int64_t evaluate(const Size& size, const std::vector<int64_t>& numbers) const;
  // A number of the program as a size; n is s32[] and lies in the function's own scope.
  Size new_size(const Value& n);
  Size times(const Size& a, const Size& b);
  Size size_of(const Axis& axis);  // how many elements count
  // x again, where only the first `size` elements of the dimension count. Costs nothing.
  Value vary(const Value& x, int64_t dim, const Size& size);
  // x again, all elements of the dimension count: the caller knows.
  Value trust(const Value& x, int64_t dim);
  const Axis& axis(const Value& x, int64_t dim) const;  // of a dimension that varies
  // The elements of x that count, moved along the dimension to where `to` says; they keep their
  // order. `to` has as many, and the same extent.
  Value relayout(const Value& x, int64_t dim, const Axis& to);
  Value pack(const Value& x, int64_t dim);    // they come first
  Value size_value(const Size& size);         // s32[]
  Value count(const Value& x, int64_t dim);   // s32[]: how many elements count
  Value counts(const Value& x, int64_t dim);  // i1 of x's shape: which elements count
  // x with `value` (a scalar of its dtype) in the elements that do not count along these dims.
  Value fill_rest(const Value& x, const Value& value, const Dims& dims);

  // --- gather, scatter, sort ------------------------------------------------------------------
  Value gather(const Value& operand, const Value& start_indices, const GatherDims& dims,
               const Dims& slice_sizes, bool indices_are_sorted = false);
  // `body` combines (old, update); both scalars of the operand's dtype.
  Value scatter(const Value& operand, const Value& indices, const Value& updates,
                const ScatterDims& dims, const Region& body, bool indices_are_sorted = false,
                bool unique_indices = false);
  // Several operands sorted together; the comparator gets (a0, b0, a1, b1, ...) scalars.
  Values sort(const Values& xs, int64_t dim, bool stable, const Region& comparator);
  Values top_k(const Value& x, int64_t k);  // chlo: (values, i32 indices) over the last dimension

  // --- reductions and windows -----------------------------------------------------------------
  // `init` is a scalar and the identity of the body: XLA may use it more than once. The reduced
  // dimensions disappear; with no dims it returns x.
  Value reduce(const Value& x, const Value& init, const Dims& dims, Reduction kind);
  // The body gets (acc0.., x0..) scalars.
  Values reduce(const Values& xs, const Values& inits, const Dims& dims, const Region& body);
  Value reduce_window(const Value& x, const Value& init, const Window& window, Reduction kind);
  Values reduce_window(const Values& xs, const Values& inits, const Window& window,
                       const Region& body);
  Value select_and_scatter(const Value& operand, const Value& source, const Value& init,
                           const Window& window, Compare select, Reduction scatter);

  // --- linear algebra -------------------------------------------------------------------------
  // Result dims: batch, free dims of a, free dims of b. `result_dtype` may widen (bf16 -> f32).
  Value dot_general(const Value& a, const Value& b, const DotDims& dims, DType result_dtype,
                    Precision precision = Precision::kDefault);
  Value convolution(const Value& x, const Value& kernel, const Window& window, const ConvDims& dims,
                    int64_t feature_groups, int64_t batch_groups, DType result_dtype,
                    Precision precision = Precision::kDefault);
  Value fft(const Value& x, FftType type, const Dims& lengths);
  Value cholesky(const Value& x, bool lower);
  Value triangular_solve(const Value& a, const Value& b, bool left_side, bool lower,
                         bool unit_diagonal, bool transpose_a, bool conjugate_a = false);

  // --- random ---------------------------------------------------------------------------------
  // Returns (new state, bits). `state` is ui64[2] (or ui64[3] for Philox).
  Values rng_bit_generator(const Value& state, const Type& bits, RngAlgorithm algorithm);

  // --- control flow (bodies may use outer values) ---------------------------------------------
  Values while_loop(const Values& inits, const Region& condition, const Region& body);
  Values if_else(const Value& pred, const Region& on_true, const Region& on_false);
  Values switch_case(const Value& index, const std::vector<Region>& branches);
  Values optimization_barrier(const Values& xs);

  // --- calls and collectives ------------------------------------------------------------------
  Values custom_call(const CustomCall& call, const Values& operands,
                     const std::vector<Type>& results);
  Value all_reduce(const Value& x, const CollectiveGroups& groups, Reduction kind);
  Value all_gather(const Value& x, int64_t dim, int64_t group_size, const CollectiveGroups& groups);
  Value reduce_scatter(const Value& x, int64_t dim, int64_t group_size,
                       const CollectiveGroups& groups, Reduction kind);
  Value all_to_all(const Value& x, int64_t split_dim, int64_t concat_dim, int64_t split_count,
                   const CollectiveGroups& groups);
  Value collective_permute(const Value& x, const std::vector<std::pair<int64_t, int64_t>>& pairs,
                           std::optional<int64_t> channel_id = std::nullopt);
  Value partition_id();
  Value replica_id();

  const Type& type_of(int32_t id) const;

 private:
  friend class Printer;
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace torch_tpu::stablehlo
