// One ATen call in the trace: the op, how each tensor argument reads its base value, structural
// arguments by value, runtime scalars by slot, and what comes out. Built on a cache miss; holds no
// device memory, so it can be lowered at any time, alone or with others.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/ivalue.h>
#include <c10/core/Scalar.h>

#include "csrc/base/number.h"
#include "csrc/ops/table.h"
#include "csrc/ops/target.h"
#include "csrc/trace/shape.h"

namespace torch_tpu::trace {

// Runtime scalars of a program travel packed, one array per carrier type.
enum class Carrier : uint8_t { kF32, kF64, kS64 };
inline constexpr int kNumCarriers = 3;
stablehlo::DType carrier_dtype(Carrier carrier);

struct ScalarArg {
  // Long, UInt64, Bool, Double or ComplexDouble. A UInt64 travels as the bits of an s64.
  c10::ScalarType type = c10::ScalarType::Double;
  Carrier carrier = Carrier::kF32;
  int slot = 0;                         // complex scalars take two
  std::optional<base::Number> known;    // part of the key instead of a slot
  std::optional<c10::Scalar> constant;  // in a recording: its value, instead of a slot
};

// How a tensor argument gets its elements.
struct TensorArg {
  enum class Form : uint8_t {
    kNone,       // None or undefined
    kBase,       // a view (or all) of the base value that is input `input`
    kZeros,      // reads uninitialised memory
    kScalar,     // a 0-d CPU tensor, given as runtime scalar
    kWriteOnly,  // an out= argument whose old contents do not matter
  };
  Form form = Form::kNone;
  c10::ScalarType dtype = c10::ScalarType::Undefined;
  bool wrapped_number = false;
  bool donated = false;
  bool overwritten = false;  // its elements are not read; they are an input to be kept, perhaps
  bool conj = false;         // lazy bits: the stored elements are read conjugated, negated
  bool neg = false;
  Geometry geometry;
  // A view whose place in its base is a runtime number: per dimension of the base where it does not
  // begin at 0, which one and the slot among the s64 scalars. Empty: the geometry's offset says.
  struct Start {
    int dim = 0;
    int slot = 0;
  };
  std::vector<Start> starts;
  bool is_box = true;  // with starts: see view.h
  int input = -1;
  int same_cell = -1;    // an earlier written tensor of the same cell: this write goes on top of it
  stablehlo::Type base;  // of the value in the cell; for kZeros what the storage would hold
  Shape base_strides;
  ScalarArg scalar;
};

struct NodeArg {
  std::string_view name;  // points into the op's schema
  c10::IValue value;
  bool present = false;
  bool is_list = false;
  int first_tensor = 0;
  int num_tensors = 0;
  std::vector<ScalarArg> scalars;
  bool varies = false;  // in a bounded program: numbers in it do, so its lowering must not ask
};

// The geometry of a result that is known but for one number, which the program computes.
struct Extent {
  int count = 0;  // which of the program's counts
  Shape sizes;    // -1 stands for the count
  Shape order;    // dims from the slowest to the fastest in storage
};

// One value a lowering gives back.
struct Result {
  bool defined = true;
  c10::ScalarType dtype = c10::ScalarType::Undefined;
  Shape sizes;
  Shape strides;
  int write = -1;     // index into tensors when it is written there, else a new tensor
  bool whole = true;  // the write replaces all of the storage
  std::optional<Extent>
      extent;  // filled by lowering; sizes and strides are then those of the value
};

struct Node {
  const ops::Entry* entry = nullptr;
  std::string name;  // schema name as called, "aten::add_.Tensor"
  std::vector<NodeArg> args;
  std::vector<TensorArg> tensors;
  std::vector<Result> results;
  ops::Target target;  // whom it was called for
  int num_inputs = 0;
  int pack_sizes[kNumCarriers] = {0, 0, 0};
  bool shapes_from_lowering = false;  // Entry::no_meta: results' sizes are filled by lowering
};

}  // namespace torch_tpu::trace
