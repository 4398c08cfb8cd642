#include "csrc/device/tensor.h"

#include <cstring>

#include <ATen/EmptyTensor.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>

#include "csrc/device/checks.h"
#include "csrc/device/current.h"
#include "csrc/ops/call.h"
#include "csrc/pjrt/read.h"
#include "csrc/pjrt/runtime.h"
#include "csrc/trace/buffer_type.h"

namespace torch_tpu::device {

PJRT_Buffer_Type buffer_type(stablehlo::DType dtype) { return trace::buffer_type(dtype); }

namespace {

at::Tensor make_tensor_of(c10::IntArrayRef sizes, c10::IntArrayRef strides, c10::ScalarType dtype,
                          c10::intrusive_ptr<c10::StorageImpl> storage) {
  at::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(std::move(storage)), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
      c10::scalarTypeToTypeMeta(dtype));
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides);
  return tensor;
}

}  // namespace

at::Tensor make_tensor(c10::IntArrayRef sizes, c10::IntArrayRef strides, c10::ScalarType dtype,
                       int device, trace::ValuePtr value) {
  const size_t nbytes =
      value ? static_cast<size_t>(value->bytes())
            : at::detail::computeStorageNbytes(sizes, strides, c10::elementSize(dtype));
  return make_tensor_of(sizes, strides, dtype, make_storage(device, nbytes, std::move(value)));
}

at::Tensor make_prefix_tensor(c10::IntArrayRef sizes, c10::IntArrayRef strides,
                              c10::ScalarType dtype, int device, trace::ValuePtr value) {
  const size_t nbytes = at::detail::computeStorageNbytes(sizes, strides, c10::elementSize(dtype));
  if (nbytes == 0) value.reset();
  return make_tensor_of(sizes, strides, dtype, make_storage(device, nbytes, std::move(value)));
}

namespace {

trace::ValuePtr upload_with(const at::Tensor& host, int device, pjrt::HostSemantics semantics,
                            std::function<void()> on_done, bool donatable) {
  const pjrt::Runtime& runtime = pjrt::Runtime::get();
  const stablehlo::DType dtype = ops::to_dtype(host.scalar_type());
  trace::Ledger& ledger = trace::Ledger::of(device);
  const auto bytes = static_cast<int64_t>(host.nbytes());
  ledger.check_room(bytes);
  trace::Shape byte_strides;
  if (!host.is_contiguous()) {
    for (int64_t stride : host.strides()) {
      byte_strides.push_back(stride * static_cast<int64_t>(host.itemsize()));
    }
  }
  try {
    pjrt::Buffer buffer = runtime.client().from_host(
        host.const_data_ptr(), buffer_type(dtype), {host.sizes().data(), host.sizes().size()},
        {byte_strides.data(), byte_strides.size()}, semantics, runtime.device(device),
        std::move(on_done));
    return c10::make_intrusive<trace::DeviceValue>(buffer.release(), dtype, host.sizes(),
                                                   host.strides(), device, donatable);
  } catch (const pjrt::Error& error) {
    if (error.is_out_of_memory()) ledger.throw_out_of_memory(bytes, "While copying from the host.");
    throw;
  }
}

// Strides a host tensor can be uploaded with: dense ones stay (channels_last).
at::Tensor dense(const at::Tensor& host) {
  return host.is_non_overlapping_and_dense() ? host : host.contiguous();
}

}  // namespace

trace::ValuePtr upload(const at::Tensor& host, int device, bool keep_alive_zero_copy) {
  const at::Tensor source = dense(host.resolve_conj().resolve_neg());
  if (!keep_alive_zero_copy) {
    return upload_with(source, device, pjrt::HostSemantics::kOnlyDuringCall, {}, true);
  }
  // The closure owns the tensor until the plugin is done with its memory.
  return upload_with(source, device, pjrt::HostSemantics::kZeroCopy, [source] {}, false);
}

at::Tensor from_host_zero_copy(const at::Tensor& host, int device) {
  const at::Tensor source = dense(host);
  return make_tensor(source.sizes(), source.strides(), source.scalar_type(), device,
                     upload(source, device, /*keep_alive_zero_copy=*/true));
}

namespace {

// Over the device memory itself, with the value's sizes in row-major order.
at::Tensor in_place(const trace::ValuePtr& value) {
  const auto options = at::TensorOptions().dtype(ops::to_scalar_type(value->dtype()));
  value->obtain().await();
  void* data = value->obtain().unsafe_pointer();
  return at::from_blob(data, value->dims(), [value](void*) {}, options);
}

// Whether they were on their way; then they are in `dst` now.
bool read_begun(const trace::DeviceValue& value, void* dst) {
  if (value.early() == nullptr) return false;
  std::memcpy(dst, value.early()->wait(), static_cast<size_t>(value.bytes()));
  return true;
}

}  // namespace

at::Tensor base_on_host(const trace::ValuePtr& value) {
  const c10::ScalarType dtype = ops::to_scalar_type(value->dtype());
  const auto options = at::TensorOptions().dtype(dtype);
  if (trace::numel(value->dims()) == 0) {
    return at::empty_strided(value->dims(), value->strides(), options);
  }
  if (pjrt::Runtime::get().host_addressable()) {
    const at::Tensor base = in_place(value);
    if (value->contiguous()) return base;
    return at::empty_strided(value->dims(), value->strides(), options).copy_(base);
  }
  at::Tensor host = at::empty_strided(value->dims(), value->strides(), options);
  if (read_begun(*value, host.mutable_data_ptr())) return host;
  pjrt::HostLayout layout = pjrt::HostLayout::row_major();
  if (!value->contiguous()) {
    std::vector<int64_t> byte_strides;
    for (int64_t stride : value->strides()) {
      byte_strides.push_back(stride * static_cast<int64_t>(host.itemsize()));
    }
    layout = pjrt::HostLayout::byte_strides(std::move(byte_strides));
  }
  value->obtain().copy_to_host(host.mutable_data_ptr(), host.nbytes(), layout).await();
  return host;
}

namespace {

bool is_whole(const trace::DeviceValue& value, const at::Tensor& tensor) {
  return tensor.storage_offset() == 0 && tensor.sizes() == value.dims() &&
         tensor.strides() == value.strides() &&
         ops::to_dtype(tensor.scalar_type()) == value.dtype();
}

// Moving the whole base for a small part of it is worth it only while that is cheap; it saves
// compiling a program for the view.
bool worth_moving_base(const trace::DeviceValue& value, const at::Tensor& tensor) {
  constexpr int64_t kSmall = 1 << 20;
  return pjrt::Runtime::get().host_addressable() || value.bytes() <= kSmall ||
         value.bytes() <= 4 * static_cast<int64_t>(tensor.nbytes());
}

// Before elements are read: launches the value, and raises what it depends on.
void prepare_read(const trace::ValuePtr& value) {
  if (!value) return;
  try {
    value->obtain();
  } catch (...) {
    raise_violations(value->guards());  // notes that it was told
    throw;
  }
  raise_violations(value->guards());
}

}  // namespace

bool download_bytes(const at::Tensor& tensor, void* dst) {
  const trace::ValuePtr value = cell_of(*tensor.unsafeGetTensorImpl())->load();
  if (!value || tensor.numel() == 0 || !value->contiguous() ||
      !tensor.is_non_overlapping_and_dense()) {
    return false;
  }
  prepare_read(value);
  const size_t bytes = tensor.nbytes();
  if (pjrt::Runtime::get().host_addressable()) {
    // What a promise has delivered is host memory that has been written: nothing to wait for.
    if (!value->promise()) value->obtain().await();
    const char* base = static_cast<const char*>(value->obtain().unsafe_pointer());
    std::memmove(dst, base + tensor.storage_offset() * static_cast<int64_t>(tensor.itemsize()),
                 bytes);
    return true;
  }
  if (tensor.storage_offset() != 0 || value->bytes() != static_cast<int64_t>(bytes)) return false;
  if (!read_begun(*value, dst)) pjrt::read_dense(value->obtain(), dst, bytes);
  return true;
}

at::Tensor host_view(const at::Tensor& tensor) {
  const int index = tensor.device().index();
  const trace::ValuePtr value = cell_of(*tensor.unsafeGetTensorImpl())->load();
  prepare_read(value);
  const auto options = at::TensorOptions().dtype(tensor.scalar_type());
  if (!value || tensor.numel() == 0) return at::zeros(tensor.sizes(), options);
  if (!worth_moving_base(*value, tensor)) {
    at::Tensor packed = make_tensor(tensor.sizes(), trace::contiguous_strides(tensor.sizes()),
                                    tensor.scalar_type(), index);
    packed.copy_(tensor);
    return host_view(packed);
  }
  at::Tensor view;
  if (pjrt::Runtime::get().host_addressable() && is_whole(*value, tensor)) {
    view = in_place(value);
  } else {
    // The storage's elements as the tensor's dtype, then the view of them.
    const at::Tensor base = base_on_host(value);
    const int64_t count =
        static_cast<int64_t>(base.nbytes()) / static_cast<int64_t>(tensor.itemsize());
    const at::Tensor storage = at::from_blob(base.data_ptr(), {count}, [base](void*) {}, options);
    view = storage.as_strided(tensor.sizes(), tensor.strides(), tensor.storage_offset());
  }
  if (tensor.is_conj()) view = view.conj();
  if (tensor.is_neg()) view = view._neg_view();
  return view;
}

at::Tensor download(const at::Tensor& tensor) {
  const bool keep_strides = tensor.is_non_overlapping_and_dense();
  const trace::Shape strides = keep_strides
                                   ? trace::Shape(tensor.strides().begin(), tensor.strides().end())
                                   : trace::contiguous_strides(tensor.sizes());
  const auto options = at::TensorOptions().dtype(tensor.scalar_type());
  at::Tensor host = at::empty_strided(tensor.sizes(), strides, options);
  if (tensor.is_conj()) host = host.conj();
  if (tensor.is_neg()) host = host._neg_view();
  if (!download_bytes(tensor, host.data_ptr())) host.copy_(host_view(tensor));
  return host;
}

at::Tensor to_host_zero_copy(const at::Tensor& tensor) {
  TORCH_CHECK(pjrt::Runtime::get().host_addressable(),
              "the memory of this tpu device is not host memory: use tensor.cpu()");
  const int index = tensor.device().index();
  const trace::ValuePtr value = cell_of(*tensor.unsafeGetTensorImpl())->load();
  prepare_read(value);
  TORCH_CHECK(value && value->contiguous() && value->dtype() == ops::to_dtype(tensor.scalar_type()),
              "this tensor has no memory that can be shared: use tensor.cpu()");
  const at::Tensor base = base_on_host(value);
  return base.as_strided(tensor.sizes(), tensor.strides(), tensor.storage_offset());
}

}  // namespace torch_tpu::device
