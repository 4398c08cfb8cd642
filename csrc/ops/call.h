// What a lowering sees of one ATen call: arguments by schema name, the builder to emit into, and
// the outputs PyTorch expects. Lives only while a program is being built (a cache miss); knows
// nothing of PJRT, storage or caches. Tensor arguments arrive as SSA values with the logical shape
// of the tensor, whatever its strides were.
#pragma once

#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>

#include <c10/core/ScalarType.h>

#include "csrc/stablehlo/builder.h"

namespace c10 {
struct IValue;
class FunctionSchema;
}  // namespace c10

namespace torch_tpu::ops {

using stablehlo::Builder;
using stablehlo::Compare;
using stablehlo::Dims;
using stablehlo::DType;
using stablehlo::Number;
using stablehlo::Precision;
using stablehlo::Reduction;
using stablehlo::Type;
using stablehlo::Value;
using stablehlo::Values;

DType to_dtype(c10::ScalarType type);  // as it is stored
// What a lowering sees in its place: complex64 for complex32, else the same.
DType compute_dtype(c10::ScalarType type);
c10::ScalarType to_scalar_type(DType dtype);

// Where the argument values of a call come from; implemented by csrc/trace.
class Source;

class Call {
 public:
  Call(Builder& builder, Source& source, std::vector<Type> outputs)
      : b(builder), source_(source), outputs_(std::move(outputs)) {}

  Builder& b;

  // --- arguments, by their name in the schema ---
  bool has(std::string_view name) const;         // the schema has it and it is not None
  Value tensor(std::string_view name);           // must be there
  Value optional_tensor(std::string_view name);  // undefined Value when None
  Values tensors(std::string_view name);         // Tensor[] and Tensor?[] (None: undefined Value)
  DType dtype(std::string_view name) const;      // of a tensor argument, as PyTorch sees it
  bool contiguous(std::string_view name) const;  // of a tensor argument, is_contiguous()
  bool is_number(std::string_view name) const;   // of a tensor argument: 0-d and on the host
  int64_t integer(std::string_view name) const;  // int and SymInt
  bool flag(std::string_view name) const;
  bool flag_or(std::string_view name, bool otherwise) const;  // None or absent: otherwise
  Dims ints(std::string_view name) const;                     // int[], SymInt[]; None: empty
  std::vector<double> floats(std::string_view name) const;    // float[]; None: empty
  int64_t integer_or(std::string_view name, int64_t otherwise) const;
  std::vector<bool> flags(std::string_view name) const;  // bool[n], e.g. output_mask
  std::string string(std::string_view name) const;       // "" when None
  // A dtype argument (ScalarType?).
  std::optional<DType> dtype_arg(std::string_view name) const;
  // A Scalar, float or CPU 0-d tensor argument as a 0-d runtime value of `dtype`. Its value is NOT
  // known while lowering: a new learning rate must not recompile.
  Value scalar(std::string_view name, DType dtype);
  Values scalars(std::string_view name, DType dtype);  // Scalar[]
  // The value of a Scalar/float argument that the table entry lists under `keyed`, or that is left
  // at its schema default, or is one of the entry's special values: known, part of the key.
  // nullopt: a runtime value, use scalar().
  std::optional<Number> known(std::string_view name) const;
  bool is_float_scalar(std::string_view name) const;  // the Scalar holds a floating value
  DType kind_of_scalar(std::string_view name, size_t i = 0) const;  // its widest dtype

  // --- type promotion: torch.result_type over these tensor and Scalar arguments ---
  DType common_dtype(std::initializer_list<std::string_view> names) const;

  // --- what PyTorch expects (from the Meta kernel): dtype and sizes per output, in the order of
  //     the schema's returns; for an in-place or out= call the dtype of the written tensor ---
  size_t num_outputs() const { return outputs_.size(); }
  const Type& out(size_t i = 0) const { return outputs_.at(i); }

  // --- random: the generator's (seed, offset) for this call as ui64[2]; only for entries marked
  //     `random`. Every call of the op gets a fresh offset range. ---
  Value rng_state();

  // --- results whose size only the data tell (entries marked `counted`) ---
  // Result `i` has these sizes, with -1 for `count` (a 0-d integer). The value returned for it
  // holds the elements one after the other as they lie in storage, and anything behind them.
  // `order`: the dims from the slowest to the fastest in storage; empty means row-major.
  void counted(size_t i, const Value& count, Dims sizes, Dims order = {});

  // --- indices that CPU would check. A violation is raised as IndexError when the program has
  //     run: "{}" in the message stands for the first offending value. Valid: low <= index < high
  void check_index(const Value& index, int64_t low, int64_t high, std::string message);
  // The same with limits that may be known only at run time (0-d, of the index's dtype).
  void check_index(const Value& index, const Value& low, const Value& high, std::string message);
  // The same for what CPU raises as RuntimeError.
  void check_range(const Value& value, int64_t low, int64_t high, std::string message);
  void check_range(const Value& value, const Value& low, const Value& high, std::string message);
  // LAPACK's info per matrix, 0 when all is well: raises the LinAlgError that
  // _linalg_check_errors has for it.
  void check_info(const Value& info, std::string api_name);

 private:
  Source& source_;
  std::vector<Type> outputs_;
};

}  // namespace torch_tpu::ops
