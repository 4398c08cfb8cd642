// One call in flight: walks the arguments once, building the program key and collecting the input
// values and runtime scalars on the way. Lives on the stack of run_op(); the hot path allocates
// nothing here.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include "csrc/base/number.h"
#include "csrc/device/cell.h"
#include "csrc/dispatch/call/op.h"
#include "csrc/trace/key.h"
#include "csrc/trace/node.h"

namespace torch_tpu::dispatch {

// A runtime scalar before it is packed.
struct RawScalar {
  c10::ScalarType type;  // Long, UInt64, Bool, Double or ComplexDouble
  base::Number real;
  double imag = 0;
  uint32_t word = 0;       // its place in the key
  bool host = false;       // a 0-d CPU tensor
  bool is_start = false;   // of a view in its base; see TensorRef::starts
  bool is_large() const {  // a whole number with more digits than a float32 holds
    const double near = real.to_double();
    if (near >= -0x1p24 && near <= 0x1p24) return false;
    return real.is_whole() && real != real.to_float();
  }
};

// A tensor argument, list elements included, in schema order.
struct TensorRef {
  c10::TensorImpl* impl = nullptr;
  device::Cell* cell = nullptr;
  trace::ValuePtr value;  // keeps the input alive during the call
  trace::TensorArg::Form form = trace::TensorArg::Form::kNone;
  bool written = false;
  bool whole = true;  // a write replaces the whole storage
  bool is_input = false;
  bool donated = false;
  bool overwritten = false;  // see trace::TensorArg
  bool is_box = true;        // the same
  // A bit per dimension of the base along which a view does not begin at 0: where it does is a
  // runtime scalar.
  uint32_t starts = 0;
  int same_cell = -1;
};

class Frame {
 public:
  // What becomes of written tensors. In Fused Eager that is decided when the call is launched.
  enum class Writes : uint8_t {
    kDonate,  // their memory may go to the result
    kKeep,
    kHold,  // and a call that overwrites takes their old elements along: it may have to keep them
  };
  Frame(const Op& op, const c10::IValue* args, Writes writes = Writes::kDonate);

  const Op& op;
  const c10::IValue* args;
  trace::Key key;
  c10::SmallVector<TensorRef, 6> tensors;
  c10::SmallVector<RawScalar, 4> scalars;  // those that are not part of the key
  int device = -1;
  size_t donations_at = 0;  // position in the key
  // On the cells it writes, from before their values were loaded: so no other write comes between.
  // Their end makes the cells free for others; a nested call that writes them needs that first.
  device::Leases leases;

  // Where a scalar of this call travels; for runtime scalars a function of the key.
  trace::Carrier carrier(const RawScalar& scalar) const;
  // Appends them to arrays of the three carriers.
  template <typename F32, typename F64, typename S64>
  void pack(F32& f32, F64& f64, S64& s64) const;

 private:
  void lease_written();
  void add_tensor(const at::Tensor& tensor, const ArgPlan& plan);
  void add_written(TensorRef& ref, c10::TensorImpl* impl);
  void add_place(TensorRef& ref);
  void add_host_scalar(const at::Tensor& tensor);
  void add_scalar(const c10::IValue& value, const ArgPlan& plan);
  void add_runtime(RawScalar raw, uint64_t word);
  void add_structural(const c10::IValue& value);
  void choose_donations();
  void add_aliases();
  void find_device();
  [[noreturn]] void mixed_devices(const at::Tensor& tensor) const;

  void mark_large();

  const Writes writes_;
  bool has_float_ = false;
  bool has_double_ = false;
  bool has_large_ = false;  // a runtime scalar
};

template <typename F32, typename F64, typename S64>
void Frame::pack(F32& f32, F64& f64, S64& s64) const {
  for (const RawScalar& scalar : scalars) {
    const bool complex = scalar.type == c10::ScalarType::ComplexDouble;
    switch (carrier(scalar)) {
      case trace::Carrier::kF32:
        f32.push_back(scalar.real.to_float());
        if (complex) f32.push_back(static_cast<float>(scalar.imag));
        break;
      case trace::Carrier::kF64:
        f64.push_back(scalar.real.to_double());
        if (complex) f64.push_back(scalar.imag);
        break;
      case trace::Carrier::kS64:
        s64.push_back(scalar.real.integer());
        break;
    }
  }
}

RawScalar raw_scalar(const c10::IValue& value);
// Whether a Scalar's value is part of the key.
bool is_known(const Op& op, const ArgPlan& plan, const RawScalar& scalar);
// A list of one number again and again (a learning rate per parameter): it is part of the key that
// it is, and the number travels once.
bool is_repeated(c10::ArrayRef<c10::IValue> list);

// What the storage of a tensor holds when nothing has been written yet: a flat array.
trace::Shape flat_shape(const c10::TensorImpl& impl);

}  // namespace torch_tpu::dispatch
