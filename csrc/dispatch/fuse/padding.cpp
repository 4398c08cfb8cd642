#include "csrc/dispatch/fuse/padding.h"

#include <mutex>

#include <ATen/ops/zeros.h>

#include "csrc/base/gil.h"
#include "csrc/device/tensor.h"
#include "csrc/dispatch/call/mode.h"
#include "csrc/ops/call.h"
#include "csrc/pjrt/runtime.h"

namespace torch_tpu::dispatch {
namespace {

// Of the padded values of all: they change hands rarely.
std::mutex& mutex() {
  static auto* all = new std::mutex();
  return *all;
}

// Also of a value that a bad index spoiled: who reads the result hears of it, not who launches.
at::Tensor on_host(const trace::ValuePtr& value) { return device::base_on_host(value); }

at::Tensor first_elements(at::Tensor tensor, trace::ShapeRef sizes) {
  for (size_t d = 0; d < sizes.size(); ++d) {
    tensor = tensor.narrow(static_cast<int64_t>(d), 0, sizes[d]);
  }
  return tensor;
}

trace::ValuePtr pointer_to(trace::DeviceValue& value) {
  return trace::ValuePtr::reclaim_copy(&value);
}

// Elements of the value on the host, with its sizes.
at::Tensor elements(trace::DeviceValue& value) {
  if (value.only_padded()) return first_elements(on_host(value.padded()), value.dims());
  return on_host(pointer_to(value));
}

}  // namespace

void compact(trace::DeviceValue& value) {
  const base::WithoutGil released;  // whoever holds the mutex may wait for a computation
  const std::lock_guard lock(mutex());
  if (!value.only_padded()) return;
  const at::Tensor host = elements(value).contiguous();
  const pjrt::Runtime& runtime = pjrt::Runtime::get();
  trace::Ledger::of(value.device()).check_room(value.bytes());
  pjrt::Buffer buffer = runtime.client().from_host(
      host.const_data_ptr(), device::buffer_type(value.dtype()),
      {value.dims().data(), value.dims().size()}, {}, pjrt::HostSemantics::kOnlyDuringCall,
      runtime.device(value.device()), {});
  value.settle(buffer.release());
}

const trace::ValuePtr& padded_to(trace::DeviceValue& value, trace::ShapeRef sizes) {
  if (!value.only_padded()) value.obtain();  // launched, or what it failed with
  const base::WithoutGil released;           // as above
  const std::lock_guard lock(mutex());
  if (value.padded() && value.padded()->dims() == sizes) return value.padded();
  const at::Tensor host = elements(value);
  at::Tensor padded = at::zeros(sizes, host.options());
  first_elements(padded, value.dims()).copy_(host);
  value.keep_padded(device::upload(padded, value.device(), /*keep_alive_zero_copy=*/true));
  return value.padded();
}

}  // namespace torch_tpu::dispatch
