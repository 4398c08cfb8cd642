#include "csrc/dispatch/call/frame.h"

#include <bit>

#include <ATen/Context.h>
#include <ATen/MemoryOverlap.h>
#include <c10/core/DefaultDtype.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "csrc/dispatch/call/compiler_options.h"
#include "csrc/dispatch/call/key_words.h"
#include "csrc/dispatch/call/target.h"
#include "csrc/trace/view.h"

namespace torch_tpu::dispatch {

using Form = trace::TensorArg::Form;

namespace {

// Settings outside the arguments that programs depend on. Asking for the precision of products
// costs a lookup by name.
uint64_t context_word(const Op& op) {
  const bool elementwise = op.entry->elementwise;
  const auto precision =
      elementwise ? at::Float32MatmulPrecision{} : at::globalContext().float32MatmulPrecision();
  // Some Meta kernels raise for ops that are not deterministic on other devices.
  return static_cast<uint64_t>(precision) |
         static_cast<uint64_t>(c10::get_default_dtype_as_scalartype()) << 8 |
         static_cast<uint64_t>(at::globalContext().deterministicAlgorithms()) << 16 |
         (elementwise ? 0 : attention_word()) << 24 | options_tag() << kOptionsShift;
}

}  // namespace

trace::Shape flat_shape(const c10::TensorImpl& impl) {
  const auto bytes = static_cast<int64_t>(impl.unsafe_storage().nbytes());
  return {bytes / static_cast<int64_t>(impl.itemsize())};
}

// Of all written tensors at once, in an order that is the same for every call.
void Frame::lease_written() {
  const auto add = [&](const c10::IValue& value) {
    if (!value.isTensor()) return;
    const c10::TensorImpl* impl = value.unsafeToTensorImpl();
    if (!impl->is_privateuseone() || !impl->unsafe_storage()) return;
    leases.add(device::cell_of(*impl));
  };
  for (size_t i = 0; i < op.args.size(); ++i) {
    if (!op.args[i].written) continue;
    if (op.args[i].kind == ArgKind::kTensor) {
      add(args[i]);
    } else if (args[i].isList()) {
      for (const c10::IValue& item : args[i].toListRef()) add(item);
    }
  }
  leases.begin();
}

Frame::Frame(const Op& op_in, const c10::IValue* args_in, Writes writes)
    : op(op_in), args(args_in), writes_(writes) {
  if (op.writes) lease_written();
  key.add(op.id);
  const uint64_t context = context_word(op);
  key.add(context);
  if (const uint64_t tag = context >> kOptionsShift) [[unlikely]]
    add_options(key, tag);
  for (size_t i = 0; i < op.args.size(); ++i) {
    const ArgPlan& plan = op.args[i];
    const c10::IValue& value = args[i];
    switch (plan.kind) {
      case ArgKind::kTensor:
        if (value.isTensor()) {
          add_tensor(value.toTensor(), plan);
        } else {
          key.add(kNoneWord);
          tensors.emplace_back();
        }
        break;
      case ArgKind::kTensorList: {
        if (value.isNone()) {
          key.add(kNoneWord);
          break;
        }
        const auto list = value.toListRef();
        key.add(static_cast<uint64_t>(list.size()));
        for (const c10::IValue& item : list) {
          if (item.isTensor()) {
            add_tensor(item.toTensor(), plan);
          } else {
            key.add(kNoneWord);
            tensors.emplace_back();
          }
        }
        break;
      }
      case ArgKind::kScalar:
        add_scalar(value, plan);
        break;
      case ArgKind::kScalarList: {
        const auto list = value.toListRef();
        const bool repeated = is_repeated(list);
        key.add(static_cast<uint64_t>(list.size()) << 1 | static_cast<uint64_t>(repeated));
        for (const c10::IValue& item : repeated ? list.slice(0, 1) : list) add_scalar(item, plan);
        break;
      }
      case ArgKind::kStructural:
        add_structural(value);
        break;
      case ArgKind::kGenerator:
      case ArgKind::kIgnored:
        break;
    }
  }
  if (has_large_) mark_large();
  if (op.writes) {
    choose_donations();
    if (op.entry->overlap != ops::Overlap::kFine) add_aliases();
  }
  if (device < 0) find_device();
  // A decomposition may keep values of its own, which live on one device.
  if (op.entry->lower == nullptr) key.add(static_cast<int64_t>(device));
}

// A written value that only its cell and this frame hold gives its memory to the result. Decided
// last: a value that the call reads twice (x.mul_(x)) is held twice. Another thread may come to
// hold it after this: Lease::take has the last word.
void Frame::choose_donations() {
  donations_at = key.size();
  uint64_t mask = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    TensorRef& ref = tensors[i];
    ref.donated =
        writes_ == Writes::kDonate && ref.written && ref.is_input && ref.value->held_only_by(2);
    mask |= static_cast<uint64_t>(ref.donated) << (i % 64);
    if (i % 64 == 63) {
      key.add(mask);
      mask = 0;
    }
  }
  key.add(mask);
}

// Where a tensor that is read lies in the storage of one that is written decides whether the call
// is an error (see check_writable), so it is part of the key.
void Frame::add_aliases() {
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (!tensors[i].written || tensors[i].cell == nullptr) continue;
    for (size_t j = 0; j < tensors.size(); ++j) {
      if (i == j || tensors[j].cell != tensors[i].cell) continue;
      key.add(static_cast<uint64_t>(i) << 32 | j);
      key.add(static_cast<uint64_t>(at::get_overlap_status(tensors[i].impl, tensors[j].impl)));
    }
  }
}

void Frame::mixed_devices(const at::Tensor& tensor) const {
  const int index = device < 0 ? 0 : device;
  TORCH_CHECK(false,
              "Expected all tensors to be on the same device, but found at least two devices, ",
              "tpu:", index, " and ", tensor.device(), "!");
}

void Frame::add_tensor(const at::Tensor& tensor, const ArgPlan& plan) {
  c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  TensorRef& ref = tensors.emplace_back();
  if (!tensor.defined()) {
    key.add(kNoneWord);
    return;
  }
  const c10::Device where = impl->device();
  if (where.type() != c10::DeviceType::PrivateUse1) {
    if (where.type() == c10::DeviceType::CPU && impl->dim() == 0 && op.entry->cpu_scalars &&
        !plan.written) {
      add_host_scalar(tensor);
      return;
    }
    mixed_devices(tensor);
  }
  if (device < 0) {
    device = where.index();
  } else if (device != where.index()) {
    mixed_devices(tensor);
  }
  const c10::ScalarType dtype = c10::typeMetaToScalarType(impl->dtype());
  has_float_ |= c10::isFloatingType(dtype) || c10::isComplexType(dtype);
  has_double_ |= dtype == c10::ScalarType::Double || dtype == c10::ScalarType::ComplexDouble;

  // A wrapper of torch.func's that no transform took off (they are off while torch prints).
  if (!impl->unsafe_storage()) [[unlikely]] {
    impl->storage();  // says whose it is
    TORCH_CHECK_NOT_IMPLEMENTED(false, "[", op.name, "] a tensor has no storage");
  }
  ref.impl = impl;
  ref.cell = device::cell_of(*impl);
  ref.value = plan.written ? leases.of(ref.cell).value() : ref.cell->load();
  ref.written = plan.written;
  const auto sizes = impl->sizes();
  const bool contiguous = impl->is_contiguous();
  uint64_t flags = impl->is_wrapped_number() ? uint64_t{kWrapped} : 0;
  if (!contiguous) flags |= kStrided;
  if (impl->is_conj()) flags |= kConj;
  if (impl->is_neg()) flags |= kNeg;

  if (!ref.value) {
    ref.form = plan.read ? Form::kZeros : Form::kWriteOnly;
    if (plan.written) {
      ref.whole =
          impl->storage_offset() == 0 && impl->is_non_overlapping_and_dense() &&
          impl->unsafe_storage().nbytes() == static_cast<size_t>(impl->numel()) * impl->itemsize();
      if (!ref.whole) flags |= kPartialWrite;
    }
    key.add(tensor_word(ref.form, dtype, sizes.size(), flags));
    key.add(sizes);
    if (!contiguous) key.add(impl->strides());
    if (!ref.whole) {
      add_place(ref);
      key.add(static_cast<uint64_t>(impl->unsafe_storage().nbytes()));
    }
    if (plan.written) add_written(ref, impl);
    return;
  }

  const trace::DeviceValue& value = *ref.value;
  const bool identity = impl->storage_offset() == 0 && value.dtype() == ops::to_dtype(dtype) &&
                        sizes == value.dims() &&
                        (contiguous ? value.contiguous() : impl->strides() == value.strides());
  const bool holds = writes_ == Writes::kHold && op.reads_tensors;
  if (plan.written && !plan.read && !holds &&
      (identity || (impl->storage_offset() == 0 && impl->is_non_overlapping_and_dense() &&
                    impl->unsafe_storage().nbytes() ==
                        static_cast<size_t>(impl->numel()) * impl->itemsize()))) {
    ref.form = Form::kWriteOnly;
    key.add(tensor_word(ref.form, dtype, sizes.size(), flags));
    key.add(sizes);
    if (!contiguous) key.add(impl->strides());
    return;
  }
  ref.form = Form::kBase;
  ref.is_input = true;
  if (plan.written) ref.whole = identity;
  ref.overwritten = plan.written && !plan.read && identity;
  if (!identity) flags |= kViewOfBase;
  key.add(tensor_word(ref.form, dtype, sizes.size(), flags));
  key.add(sizes);
  if (!contiguous) key.add(impl->strides());
  if (!identity) {
    add_place(ref);
    key.add(static_cast<uint64_t>(value.dtype()) << 8 | value.dims().size());
    key.add(value.dims());
    key.add(value.strides());
  }
  if (plan.written) add_written(ref, impl);
}

namespace {

// Whether a view goes on in the next row of its base (x.view(-1)[5:11] of rows of 8). A program
// that takes the place of a view as a start along each dimension cannot know that.
bool crosses(const c10::TensorImpl& view, trace::ShapeRef dims, trace::ShapeRef base_strides) {
  const auto sizes = view.sizes();
  const auto strides = view.strides();
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] <= 1 || strides[i] == 0) continue;
    for (size_t d = 0; d < dims.size(); ++d) {
      if (dims[d] == 1 || base_strides[d] != strides[i]) continue;
      if (view.storage_offset() / strides[i] % dims[d] + sizes[i] > dims[d]) return true;
    }
  }
  return false;
}

}  // namespace

// Where a view begins: not part of the key but for whether it is somewhere else than at 0. Recorded
// decompositions take no scalars.
void Frame::add_place(TensorRef& ref) {
  const c10::TensorImpl& impl = *ref.impl;
  const int64_t offset = impl.storage_offset();
  if (offset == 0 || impl.numel() == 0) {
    key.add(uint64_t{0});
    return;
  }
  // What was never written is a flat array of the view's dtype.
  const trace::Shape flat = ref.value ? trace::Shape() : flat_shape(impl);
  const trace::ShapeRef dims = ref.value ? ref.value->dims() : trace::ShapeRef(flat);
  const trace::Shape one = {1};
  const trace::ShapeRef strides = ref.value ? ref.value->strides() : trace::ShapeRef(one);
  const int64_t numel = trace::numel(dims);
  const bool other =
      ref.value && ref.value->dtype() != ops::to_dtype(c10::typeMetaToScalarType(impl.dtype()));
  if (other || offset >= numel || dims.size() > kMaxStarts || op.entry->lower == nullptr ||
      crosses(impl, dims, strides)) {
    key.add(kFixedPlace);
    key.add(offset);
    return;
  }
  for (size_t d = 0; d < dims.size(); ++d) {
    if (dims[d] == 1) continue;
    const int64_t start = offset / strides[d] % dims[d];
    if (start == 0) continue;
    ref.starts |= uint32_t{1} << d;
    RawScalar raw{c10::ScalarType::Long, start};
    raw.is_start = true;
    scalars.push_back(raw);
  }
  ref.is_box = trace::is_box(numel, impl.sizes(), impl.strides(), offset);
  key.add(ref.starts | (ref.is_box ? 0 : kGathered));
}

// Several views of one cell written by one call (foreach over slices of a flat buffer).
void Frame::add_written(TensorRef& ref, c10::TensorImpl*) {
  if (ref.whole) return;
  for (size_t i = tensors.size() - 1; i-- > 0;) {
    if (tensors[i].written && tensors[i].cell == ref.cell) {
      ref.same_cell = static_cast<int>(i);
      key.add(static_cast<uint64_t>(i));
      return;
    }
  }
  key.add(kNoneWord);
}

namespace {

RawScalar read_host_scalar(const at::Tensor& tensor) {
  const void* data = tensor.const_data_ptr();
  const auto whole = [&]<typename T>(T) {
    return RawScalar{c10::ScalarType::Long, *static_cast<const T*>(data)};
  };
  const auto real = [&]<typename T>(T) {
    return RawScalar{c10::ScalarType::Double, static_cast<double>(*static_cast<const T*>(data))};
  };
  const auto complex = [&]<typename T>(T) {
    const auto v = *static_cast<const c10::complex<T>*>(data);
    return RawScalar{c10::ScalarType::ComplexDouble, v.real(), v.imag()};
  };
  switch (tensor.scalar_type()) {
    case c10::ScalarType::Double:
      return real(double{});
    case c10::ScalarType::Long:
      return whole(int64_t{});
    case c10::ScalarType::Float:
      return real(float{});
    case c10::ScalarType::Int:
      return whole(int32_t{});
    case c10::ScalarType::Short:
      return whole(int16_t{});
    case c10::ScalarType::Char:
      return whole(int8_t{});
    case c10::ScalarType::Byte:
      return whole(uint8_t{});
    case c10::ScalarType::UInt16:
      return whole(uint16_t{});
    case c10::ScalarType::UInt32:
      return whole(uint32_t{});
    case c10::ScalarType::UInt64:
      return {c10::ScalarType::UInt64, *static_cast<const uint64_t*>(data)};
    case c10::ScalarType::Bool:
      return {c10::ScalarType::Bool, *static_cast<const bool*>(data)};
    case c10::ScalarType::Half:
      return real(c10::Half{});
    case c10::ScalarType::BFloat16:
      return real(c10::BFloat16{});
    case c10::ScalarType::ComplexFloat:
      return complex(float{});
    case c10::ScalarType::ComplexDouble:
      return complex(double{});
    default:
      TORCH_CHECK_TYPE(false, "a CPU scalar of dtype ", tensor.scalar_type(),
                       " cannot be used with tpu tensors");
  }
}

}  // namespace

namespace {

// Of an integer by the number 0, which is the second operand. What has no elements is not divided.
void check_divisor(const Frame& frame) {
  if (!frame.op.entry->divides || frame.tensors.size() != 2) return;
  const bool exact = frame.op.args.size() > 2 && frame.args[2].isNone();
  TORCH_CHECK(exact || frame.tensors[0].impl->numel() == 0, "ZeroDivisionError");
}

}  // namespace

void Frame::add_host_scalar(const at::Tensor& tensor) {
  TensorRef& ref = tensors.back();
  ref.impl = tensor.unsafeGetTensorImpl();
  ref.form = Form::kScalar;
  const c10::ScalarType dtype = tensor.scalar_type();
  const bool wrapped = ref.impl->is_wrapped_number();
  // A 0-d double tensor (not a Python number) may promote the result to double.
  if (!wrapped) has_double_ |= dtype == c10::ScalarType::Double;
  RawScalar raw = read_host_scalar(tensor);
  raw.host = true;
  if (raw.real == 0 && !has_float_ && !c10::isFloatingType(dtype)) [[unlikely]] {
    check_divisor(*this);
  }
  add_runtime(raw, tensor_word(ref.form, dtype, 0, wrapped ? uint64_t{kWrapped} : 0));
}

void Frame::add_runtime(RawScalar raw, uint64_t word) {
  raw.word = static_cast<uint32_t>(key.size());
  has_large_ |= raw.is_large();
  key.add(word);
  scalars.push_back(raw);
}

RawScalar raw_scalar(const c10::IValue& value) {
  if (value.isDouble()) return {c10::ScalarType::Double, value.toDouble()};
  if (value.isInt()) return {c10::ScalarType::Long, value.toInt()};
  if (value.isBool()) return {c10::ScalarType::Bool, value.toBool()};
  if (value.isComplexDouble()) {
    const auto v = value.toComplexDouble();
    return {c10::ScalarType::ComplexDouble, v.real(), v.imag()};
  }
  // Symbolic numbers, and integers above the largest int64_t.
  const c10::Scalar scalar = value.toScalar();
  if (scalar.isFloatingPoint()) return {c10::ScalarType::Double, scalar.toDouble()};
  if (scalar.isBoolean()) return {c10::ScalarType::Bool, scalar.toBool()};
  if (scalar.isUnsigned()) return {c10::ScalarType::UInt64, scalar.toUInt64()};
  return {c10::ScalarType::Long, scalar.toLong()};
}

bool is_repeated(c10::ArrayRef<c10::IValue> list) {
  if (list.size() < 2) return false;
  const RawScalar first = raw_scalar(list[0]);
  // By bits: -0 is not 0, and a NaN is itself.
  const auto bits = [](double x) { return std::bit_cast<uint64_t>(x); };
  for (const c10::IValue& item : list.slice(1)) {
    const RawScalar other = raw_scalar(item);
    if (other.type != first.type || other.real.bits() != first.real.bits() ||
        bits(other.imag) != bits(first.imag)) {
      return false;
    }
  }
  return true;
}

bool is_known(const Op& op, const ArgPlan& plan, const RawScalar& scalar) {
  if (scalar.type == c10::ScalarType::ComplexDouble) return false;
  if (plan.keyed || plan.default_value == scalar.real) return true;
  for (const base::Number& special : op.entry->special) {
    if (special == scalar.real) return true;
  }
  return false;
}

namespace {

// PyTorch refuses a negative deviation or a probability above 1 before it runs the op, so a program
// for good numbers must not be found with bad ones.
uint64_t range_of(const RawScalar& raw) {
  const double real = raw.real.to_double();
  if (real != real) return 1;
  if (real < 0) return 2;
  if (real == 0) return 3;
  if (real < 1) return 4;
  return real == 1 ? 5 : 6;
}

// Raises what CPU does for a number that the dtype cannot hold.
void check_stored(const Op& op, const c10::Scalar& number, c10::ScalarType dtype) {
  TORCH_CHECK(
      op.entry->name != "index_fill.int_Scalar" || !number.isComplex() || c10::isComplexType(dtype),
      "index_fill_(): Converting complex Scalar to non-complex type is not supported");
  switch (dtype) {
#define TORCH_TPU_CASE(T, name)        \
  case c10::ScalarType::name:          \
    static_cast<void>(number.to<T>()); \
    return;
    AT_FORALL_SCALAR_TYPES_WITH_COMPLEX(TORCH_TPU_CASE)
#undef TORCH_TPU_CASE
    default:
      return;
  }
}

}  // namespace

void Frame::add_scalar(const c10::IValue& value, const ArgPlan& plan) {
  if (value.isNone()) {
    key.add(kNoneWord);
    return;
  }
  if (op.entry->stores_numbers) {
    check_stored(op, value.toScalar(), args[0].toTensor().scalar_type());
  }
  const RawScalar raw = raw_scalar(value);
  const auto type = static_cast<uint64_t>(raw.type);
  if (is_known(op, plan, raw)) {
    key.add(type << 8 | 1);
    key.add_bits(raw.real);
    return;
  }
  const bool checked = op.entry->random || op.entry->checks_numbers;
  add_runtime(raw, type << 8 | (checked ? range_of(raw) << 32 : 0));
}

void Frame::add_structural(const c10::IValue& value) {
  if (value.isNone()) {
    key.add(kNoneWord);
  } else if (value.isInt()) {
    key.add(uint64_t{1});
    key.add(value.toInt());
  } else if (value.isBool()) {
    key.add(static_cast<uint64_t>(2 + (value.toBool() ? 1 : 0)));
  } else if (value.isIntList()) {
    const c10::List<int64_t> list = value.toIntList();
    key.add(uint64_t{4} | static_cast<uint64_t>(list.size()) << 8);
    for (int64_t item : list) key.add(item);
  } else if (value.isDouble()) {
    key.add(uint64_t{5});
    key.add(value.toDouble());
  } else if (value.isString()) {
    key.add(uint64_t{6});
    key.add_text(value.toStringRef());
  } else if (value.isSymInt()) {
    key.add(uint64_t{1});
    key.add(value.toSymInt().guard_int(__FILE__, __LINE__));
  } else if (value.isDevice()) {
    key.add(uint64_t{7});
  } else if (value.isList()) {
    const auto list = value.toListRef();
    key.add(uint64_t{8} | static_cast<uint64_t>(list.size()) << 8);
    for (const c10::IValue& item : list) add_structural(item);
  } else {
    TORCH_CHECK_NOT_IMPLEMENTED(false, "[", op.name, "] argument of type ", value.tagKind(),
                                " is not supported on device tpu");
  }
}

void Frame::find_device() {
  if (op.device_arg >= 0 && args[op.device_arg].isDevice()) {
    const c10::Device wanted = args[op.device_arg].toDevice();
    if (wanted.has_index()) {
      device = wanted.index();
      return;
    }
  }
  device = c10::impl::VirtualGuardImpl(c10::DeviceType::PrivateUse1).getDevice().index();
}

// Integers travel with the floats where there are any, since most will become floats, and doubles
// as float32, since most numbers are; but not those that would lose digits on the way.
trace::Carrier Frame::carrier(const RawScalar& scalar) const {
  if (scalar.is_start) return trace::Carrier::kS64;
  const bool integer = scalar.real.is_integer();
  if (integer && (!has_float_ || scalar.is_large())) return trace::Carrier::kS64;
  if (has_double_ || (!integer && !has_float_ && scalar.is_large())) return trace::Carrier::kF64;
  return trace::Carrier::kF32;
}

// Another carrier is another program.
void Frame::mark_large() {
  for (const RawScalar& scalar : scalars) {
    if (scalar.is_start || scalar.real.is_integer() != has_float_ || !scalar.is_large()) continue;
    key.set(scalar.word,
            key.data()[scalar.word] | (scalar.host ? uint64_t{kLargeScalar} << 32 : kLargeNumber));
  }
}

}  // namespace torch_tpu::dispatch
