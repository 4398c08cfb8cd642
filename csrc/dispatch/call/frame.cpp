#include "csrc/dispatch/call/frame.h"

#include <bit>

#include <ATen/Context.h>
#include <c10/core/DefaultDtype.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "csrc/dispatch/call/key_words.h"
#include "csrc/dispatch/call/target.h"

namespace torch_tpu::dispatch {

using Form = trace::TensorArg::Form;

namespace {

// Settings outside the arguments that programs depend on. Elementwise ops multiply no matrices, and
// asking for the precision costs a lookup by name.
uint64_t context_word(const Op& op) {
  const bool elementwise = op.entry->cpu_scalars;
  const auto precision =
      elementwise ? at::Float32MatmulPrecision{} : at::globalContext().float32MatmulPrecision();
  // Some Meta kernels raise for ops that are not deterministic on other devices.
  return static_cast<uint64_t>(precision) |
         static_cast<uint64_t>(c10::get_default_dtype_as_scalartype()) << 8 |
         static_cast<uint64_t>(at::globalContext().deterministicAlgorithms()) << 16 |
         (elementwise ? 0 : attention_word()) << 24;
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
  key.add(context_word(op));
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
      key.add(tensors[i].impl->storage_offset());
      key.add(tensors[j].impl->storage_offset());
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
      key.add(impl->storage_offset());
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
  if (!identity) flags |= kViewOfBase;
  key.add(tensor_word(ref.form, dtype, sizes.size(), flags));
  key.add(sizes);
  if (!contiguous) key.add(impl->strides());
  if (!identity) {
    key.add(impl->storage_offset());
    key.add(static_cast<uint64_t>(value.dtype()) << 8 | value.dims().size());
    key.add(value.dims());
    key.add(value.strides());
  }
  if (plan.written) add_written(ref, impl);
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
  RawScalar out{c10::ScalarType::Double};
  const auto set_int = [&](int64_t v) {
    out.type = c10::ScalarType::Long;
    out.integer = v;
    out.real = static_cast<double>(v);
  };
  switch (tensor.scalar_type()) {
    case c10::ScalarType::Double:
      out.real = *static_cast<const double*>(data);
      break;
    case c10::ScalarType::Long:
      set_int(*static_cast<const int64_t*>(data));
      break;
    case c10::ScalarType::Float:
      out.real = *static_cast<const float*>(data);
      break;
    case c10::ScalarType::Int:
      set_int(*static_cast<const int32_t*>(data));
      break;
    case c10::ScalarType::Short:
      set_int(*static_cast<const int16_t*>(data));
      break;
    case c10::ScalarType::Char:
      set_int(*static_cast<const int8_t*>(data));
      break;
    case c10::ScalarType::Byte:
      set_int(*static_cast<const uint8_t*>(data));
      break;
    case c10::ScalarType::UInt16:
      set_int(*static_cast<const uint16_t*>(data));
      break;
    case c10::ScalarType::UInt32:
      set_int(*static_cast<const uint32_t*>(data));
      break;
    case c10::ScalarType::UInt64:
      set_int(static_cast<int64_t>(*static_cast<const uint64_t*>(data)));
      break;
    case c10::ScalarType::Bool:
      set_int(*static_cast<const bool*>(data) ? 1 : 0);
      out.type = c10::ScalarType::Bool;
      break;
    case c10::ScalarType::Half:
      out.real = static_cast<float>(*static_cast<const c10::Half*>(data));
      break;
    case c10::ScalarType::BFloat16:
      out.real = static_cast<float>(*static_cast<const c10::BFloat16*>(data));
      break;
    case c10::ScalarType::ComplexFloat: {
      const auto v = *static_cast<const c10::complex<float>*>(data);
      out = {c10::ScalarType::ComplexDouble, v.real(), v.imag(), 0};
      break;
    }
    case c10::ScalarType::ComplexDouble: {
      const auto v = *static_cast<const c10::complex<double>*>(data);
      out = {c10::ScalarType::ComplexDouble, v.real(), v.imag(), 0};
      break;
    }
    default:
      TORCH_CHECK_TYPE(false, "a CPU scalar of dtype ", tensor.scalar_type(),
                       " cannot be used with tpu tensors");
  }
  return out;
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
  key.add(tensor_word(ref.form, dtype, 0, wrapped ? uint64_t{kWrapped} : 0));
  scalars.push_back(read_host_scalar(tensor));
}

c10::ScalarType scalar_type_of(const c10::IValue& value) {
  if (value.isDouble()) return c10::ScalarType::Double;
  if (value.isInt() || value.isSymInt()) return c10::ScalarType::Long;
  if (value.isBool()) return c10::ScalarType::Bool;
  if (value.isComplexDouble()) return c10::ScalarType::ComplexDouble;
  return c10::ScalarType::Double;  // SymFloat
}

RawScalar raw_scalar(const c10::IValue& value) {
  RawScalar out{scalar_type_of(value)};
  switch (out.type) {
    case c10::ScalarType::Long:
      out.integer = value.isInt() ? value.toInt() : value.toScalar().toLong();
      out.real = static_cast<double>(out.integer);
      break;
    case c10::ScalarType::Bool:
      out.integer = value.toBool() ? 1 : 0;
      out.real = static_cast<double>(out.integer);
      break;
    case c10::ScalarType::ComplexDouble: {
      const auto v = value.toComplexDouble();
      out.real = v.real();
      out.imag = v.imag();
      break;
    }
    default:
      out.real = value.isDouble() ? value.toDouble() : value.toScalar().toDouble();
  }
  return out;
}

bool is_repeated(c10::ArrayRef<c10::IValue> list) {
  if (list.size() < 2) return false;
  const RawScalar first = raw_scalar(list[0]);
  // By bits: -0 is not 0, and a NaN is itself.
  const auto bits = [](double x) { return std::bit_cast<uint64_t>(x); };
  for (const c10::IValue& item : list.slice(1)) {
    const RawScalar other = raw_scalar(item);
    if (other.type != first.type || other.integer != first.integer ||
        bits(other.real) != bits(first.real) || bits(other.imag) != bits(first.imag)) {
      return false;
    }
  }
  return true;
}

std::optional<double> known_scalar(const Op& op, const ArgPlan& plan, const c10::IValue& value) {
  if (value.isComplexDouble()) return std::nullopt;
  const double number = raw_scalar(value).real;
  if (plan.keyed || (plan.default_value && *plan.default_value == number)) return number;
  for (double special : op.entry->special) {
    if (special == number) return number;
  }
  return std::nullopt;
}

namespace {

// PyTorch refuses a negative deviation or a probability above 1 before it runs the op, so a program
// for good numbers must not be found with bad ones.
uint64_t range_of(const RawScalar& raw) {
  if (raw.real != raw.real) return 1;
  if (raw.real < 0) return 2;
  if (raw.real == 0) return 3;
  if (raw.real < 1) return 4;
  return raw.real == 1 ? 5 : 6;
}

}  // namespace

void Frame::add_scalar(const c10::IValue& value, const ArgPlan& plan) {
  if (value.isNone()) {
    key.add(kNoneWord);
    return;
  }
  const auto type = static_cast<uint64_t>(scalar_type_of(value));
  if (auto known = known_scalar(op, plan, value)) {
    key.add(type << 8 | 1);
    key.add(*known);
    return;
  }
  const RawScalar raw = raw_scalar(value);
  const bool checked = op.entry->random || op.entry->checks_numbers;
  key.add(type << 8 | (checked ? range_of(raw) << 32 : 0));
  scalars.push_back(raw);
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

trace::Carrier Frame::carrier(c10::ScalarType type) const {
  const bool floating =
      has_float_ || type == c10::ScalarType::Double || type == c10::ScalarType::ComplexDouble;
  if (!floating) return trace::Carrier::kS64;
  return has_double_ ? trace::Carrier::kF64 : trace::Carrier::kF32;
}

}  // namespace torch_tpu::dispatch
