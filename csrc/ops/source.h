// What stands behind a Call: the arguments of one node, already turned into SSA values. Filled by
// csrc/trace, read only through Call.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/ivalue.h>

#include "csrc/ops/call.h"

namespace torch_tpu::ops {

struct TensorInfo {
  c10::ScalarType dtype = c10::ScalarType::Undefined;
  int64_t dim = 0;
  bool wrapped_number = false;
  bool contiguous = true;
  bool number = false;  // a 0-d tensor on the host
};

struct Argument {
  std::string_view name;
  c10::IValue value;     // structural arguments; None for tensors
  bool present = false;  // given and not None
  bool is_list = false;
  Values tensors;                 // one, or one per list element; undefined for None
  std::vector<TensorInfo> infos;  // beside `tensors`
  Values scalars;                 // runtime scalars as 0-d values (complex or real carrier)
  std::vector<c10::ScalarType> scalar_types;  // of each Scalar, see trace::ScalarArg
  std::optional<Number> known;
  bool varies = false;  // where sizes vary it does too: asking for it throws stablehlo::Unproven
};

// What a program reports when a value of its inputs is out of range.
struct ValueCheck {
  enum class Kind : uint8_t {
    kIndex,   // IndexError
    kValue,   // RuntimeError
    kMatrix,  // LinAlgError; the value is a LAPACK info, the message the API's name
    kBatch,   // the same for a batch; the value holds its element above 32 bits of info
  };
  std::string message;  // "{}" stands for the value
  Kind kind = Kind::kIndex;
};

struct PendingCheck {
  Value flag;  // s64[]: the offending value, or kNoViolation
  ValueCheck what;
};
inline constexpr int64_t kNoViolation = INT64_MIN;

// A result whose size the program itself computes.
struct CountedResult {
  size_t result;
  Value count;  // s64[]
  Dims sizes;   // -1 stands for the count
  Dims order;   // dims from the slowest to the fastest in storage
};

class Source {
 public:
  std::vector<Argument> arguments;
  Value rng_state;
  std::vector<PendingCheck> checks;
  std::vector<CountedResult> counted;
  void check(Builder& b, const Value& value, int64_t low, int64_t high, ValueCheck what);
  // The same with limits that are values: 0-d, or of the value's shape.
  void check(Builder& b, const Value& value, const Value& low, const Value& high, ValueCheck what);

  const Argument* find(std::string_view name) const;
  const Argument& at(std::string_view name) const;  // throws when the schema has no such argument
};

}  // namespace torch_tpu::ops
