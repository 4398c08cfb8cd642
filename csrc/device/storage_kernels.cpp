// Kernels that touch only metadata and storages: factories without contents, set_, resize_, views.
// None of them runs anything on the device, but for the fill that deterministic algorithms ask for.
#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/is_set_to_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <torch/library.h>

#include "csrc/device/allocator.h"
#include "csrc/device/cell.h"
#include "csrc/device/current.h"
#include "csrc/device/tensor.h"
#include "csrc/ops/call.h"
#include "csrc/trace/shape.h"

namespace torch_tpu::device {
namespace {

using c10::IntArrayRef;
using std::optional;

// What both factories check, as the CUDA ones do.
c10::ScalarType check_options(optional<c10::ScalarType> dtype, optional<c10::Layout> layout,
                              optional<bool> pin_memory) {
  TORCH_CHECK(c10::layout_or_default(layout) == c10::Layout::Strided,
              "Only strided tensors are supported on device tpu, got layout ", *layout);
  TORCH_CHECK(!pin_memory.value_or(false), "Only dense CPU tensors can be pinned");
  const c10::ScalarType type = c10::dtype_or_default(dtype);
  ops::to_dtype(type);  // throws for a dtype no program could hold
  if (type == c10::ScalarType::ComplexHalf) {
    TORCH_WARN_ONCE("ComplexHalf support is experimental and many operators don't support it yet.");
  }
  return type;
}

int device_index(optional<c10::Device> device) {
  return check_device(device ? device->index() : -1);
}

// With deterministic algorithms memory that nobody has written yet has a known value: `from` is the
// first such element of the storage.
void fill_unwritten(const at::Tensor& tensor, int64_t from) {
  const at::Context& context = at::globalContext();
  if (!context.deterministicAlgorithms() || !context.deterministicFillUninitializedMemory()) return;
  const auto item = static_cast<int64_t>(tensor.itemsize());
  const int64_t elements = static_cast<int64_t>(tensor.storage().nbytes()) / item;
  if (from >= elements) return;
  const at::NoGradGuard no_grad;
  const at::Tensor unwritten = tensor.detach().as_strided({elements - from}, {1}, from);
  if (c10::isFloatingType(tensor.scalar_type()) || tensor.is_complex()) {
    unwritten.fill_(std::numeric_limits<double>::quiet_NaN());
  } else if (tensor.scalar_type() == c10::ScalarType::Bool) {
    unwritten.fill_(true);
  } else {
    const bool is_signed = c10::isSignedType(tensor.scalar_type());
    const auto largest = ~uint64_t{0} >> (64 - 8 * item + (is_signed ? 1 : 0));
    unwritten.fill_(is_signed || item < 8 ? c10::Scalar(static_cast<int64_t>(largest))
                                          : c10::Scalar(largest));
  }
}

at::Tensor empty_strided(IntArrayRef size, IntArrayRef stride, optional<c10::ScalarType> dtype,
                         optional<c10::Layout> layout, optional<c10::Device> device,
                         optional<bool> pin_memory) {
  const c10::ScalarType type = check_options(dtype, layout, pin_memory);
  const int index = device_index(device);
  at::detail::check_size_nonnegative(size);
  const size_t item = c10::elementSize(type);
  check_room(index, at::detail::computeStorageNbytes(size, stride, item));
  at::Tensor result = make_tensor(size, stride, type, index);
  fill_unwritten(result, 0);
  return result;
}

at::Tensor empty(IntArrayRef size, optional<c10::ScalarType> dtype, optional<c10::Layout> layout,
                 optional<c10::Device> device, optional<bool> pin_memory,
                 optional<c10::MemoryFormat> memory_format) {
  at::detail::check_size_nonnegative(size);
  const at::Tensor result =
      empty_strided(size, trace::contiguous_strides(size), dtype, layout, device, pin_memory);
  if (memory_format && *memory_format != c10::MemoryFormat::Contiguous) {
    result.unsafeGetTensorImpl()->empty_tensor_restride(*memory_format);
  }
  return result;
}

// Gives `tensor` its new geometry; the storage grows first, so that a failure changes nothing.
void resize_tensor(c10::TensorImpl& tensor, IntArrayRef size, c10::OptionalIntArrayRef stride,
                   int64_t offset) {
  const size_t item = tensor.dtype().itemsize();
  const auto at = static_cast<size_t>(offset);
  const size_t nbytes = stride ? at::detail::computeStorageNbytes(size, *stride, item, at)
                               : at::detail::computeStorageNbytesContiguous(size, item, at);
  c10::StorageImpl& storage = *tensor.unsafe_storage().unsafeGetStorageImpl();
  if (c10::multiply_integers(size) != 0 && nbytes > storage.nbytes()) {
    resize_storage(storage, nbytes);
  }
  if (stride) {
    tensor.set_sizes_and_strides(size, *stride);
  } else {
    tensor.set_sizes_contiguous(size);
  }
  tensor.set_storage_offset(offset);
}

const at::Tensor& resize_(const at::Tensor& self, IntArrayRef size,
                          optional<c10::MemoryFormat> memory_format) {
  at::detail::check_size_nonnegative(size);
  c10::TensorImpl& tensor = *self.unsafeGetTensorImpl();
  if (tensor.sizes() != size) {
    const size_t had = tensor.unsafe_storage().nbytes();
    resize_tensor(tensor, size, std::nullopt, tensor.storage_offset());
    if (tensor.unsafe_storage().nbytes() > had) {
      fill_unwritten(self, static_cast<int64_t>(had / tensor.itemsize()));
    }
  }
  if (memory_format) {
    TORCH_CHECK(*memory_format != c10::MemoryFormat::Preserve, "Unsupported memory format ",
                *memory_format);
    tensor.empty_tensor_restride(*memory_format);
  }
  return self;
}

// A storage too small is grown, as on CPU; but not when only the offset changed, which is an error.
at::Tensor& set_storage(at::Tensor& self, c10::Storage source, int64_t offset, IntArrayRef size,
                        IntArrayRef stride) {
  const bool contiguous = stride.empty() && !size.empty();
  TORCH_CHECK(contiguous || size.size() == stride.size(), "unequal size length (", size.size(),
              ") and stride length (", stride.size(), ")");
  TORCH_CHECK(offset >= 0, "Tensor: invalid storage offset ", offset);
  TORCH_CHECK(self.device() == source.device(),
              "Attempted to set the storage of a tensor on device \"", self.device(),
              "\" to a storage on different device \"", source.device(),
              "\".  This is no longer allowed; the devices must match.");
  c10::TensorImpl& tensor = *self.unsafeGetTensorImpl();
  const trace::Shape strides =
      contiguous ? trace::contiguous_strides(size) : trace::Shape(stride.begin(), stride.end());
  if (tensor.sizes() == size && tensor.strides() == IntArrayRef(strides)) {
    const size_t nbytes = at::detail::computeStorageNbytes(size, strides, tensor.dtype().itemsize(),
                                                           static_cast<size_t>(offset));
    TORCH_CHECK(tensor.numel() == 0 || nbytes <= source.nbytes(), "setStorage: sizes ", size,
                ", strides ", IntArrayRef(strides), ", storage offset ", offset, ", and itemsize ",
                tensor.dtype().itemsize(), " requiring a storage size of ", nbytes,
                " are out of bounds for storage of size ", source.nbytes());
  }
  if (!self.storage().is_alias_of(source)) tensor.set_storage_keep_dtype(std::move(source));
  resize_tensor(tensor, size, IntArrayRef(strides), offset);
  return self;
}

at::Tensor& set_empty(at::Tensor& self) {
  const c10::Storage storage(make_storage(self.device().index(), 0));
  return set_storage(self, storage, 0, {0}, {});
}

// Programs hold on to the values they use: there is nothing to note.
void record_stream(at::Tensor&, c10::Stream) {}

// Lets `tensor.data = other` cross between host and device, so that module.to("tpu") keeps its
// Parameters (and with them tied weights and optimizers). PyTorch has it only for devices it knows.
bool has_compatible_shallow_copy_type(const at::Tensor& self, const at::Tensor& from) {
  constexpr c10::DispatchKeySet backends(
      {c10::BackendComponent::CPUBit, c10::BackendComponent::PrivateUse1Bit});
  constexpr c10::DispatchKeySet dense(c10::DispatchKey::Dense);
  const auto is_dense = [&](const at::Tensor& t) {
    return t.key_set().has_any(dense) && t.key_set().has_any(backends);
  };
  return (is_dense(self) && is_dense(from)) ||
         self.unsafeGetTensorImpl()->has_compatible_shallow_copy_type(from.key_set());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", TORCH_FN(empty));
  m.impl("empty_strided", TORCH_FN(empty_strided));
  m.impl("resize_", TORCH_FN(resize_));

  m.impl("set_", TORCH_FN(set_empty));
  m.impl("set_.source_Tensor", TORCH_FN(at::native::set_tensor_));
  m.impl("set_.source_Storage",
         TORCH_FN((static_cast<at::Tensor& (*)(at::Tensor&, at::Storage)>(at::native::set_))));
  m.impl("set_.source_Storage_storage_offset", TORCH_FN(set_storage));
  m.impl("is_set_to", TORCH_FN(at::native::is_set_to));

  m.impl("as_strided", TORCH_FN(at::native::as_strided_tensorimpl));
  m.impl("view", TORCH_FN(at::native::view));
  m.impl("_reshape_alias", TORCH_FN(at::native::_reshape_alias));
  m.impl("unfold", TORCH_FN(at::native::unfold));
  m.impl("view_as_real", TORCH_FN(at::native::view_as_real));
  m.impl("view_as_complex", TORCH_FN(at::native::view_as_complex));

  m.impl("record_stream", TORCH_FN(record_stream));
  m.impl("_has_compatible_shallow_copy_type", TORCH_FN(has_compatible_shallow_copy_type));
}

}  // namespace
}  // namespace torch_tpu::device
