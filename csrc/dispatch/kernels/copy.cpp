// Copies between tensors: within a device (or only sharing the value), between devices, to and from
// the host. `copy_`, `clone`, `contiguous`, `to` all end here.
#include <ATen/ExpandUtils.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/_copy_from.h>
#include <ATen/ops/_local_scalar_dense.h>
#include <ATen/ops/conj_physical.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/neg.h>
#include <torch/library.h>

#include "csrc/base/journal.h"
#include "csrc/device/checks.h"
#include "csrc/device/tensor.h"
#include "csrc/dispatch/call/mode.h"
#include "csrc/dispatch/call/op.h"
#include "csrc/dispatch/fuse/pending.h"
#include "csrc/dispatch/record/recorder.h"
#include "csrc/dispatch/report/sync_debug.h"
#include "csrc/pjrt/runtime.h"

namespace torch_tpu::dispatch {
namespace {

using base::journal::Kind;

// A transfer in the journal. Where single ops are recorded, with the Python line that asked for it.
struct Transfer {
  Transfer(Kind kind, const char* what, const at::Tensor& tensor)
      : text(base::journal::enabled(Kind::kOpLaunch) ? located(what) : what),
        span(kind, text, 0, 0, static_cast<int64_t>(tensor.nbytes())) {}
  static std::string located(const char* what) {
    const std::string where = python_location();
    return where.empty() ? what : what + (" at " + where);
  }
  const std::string text;
  const base::journal::Span span;
};

bool on_tpu(const at::Tensor& tensor) {
  return tensor.device().type() == c10::DeviceType::PrivateUse1;
}

// Covers all of its storage, so that writing it replaces the cell's value.
bool covers_storage(const at::Tensor& tensor) {
  return tensor.storage_offset() == 0 && tensor.is_non_overlapping_and_dense() &&
         tensor.storage().nbytes() == tensor.nbytes();
}

bool same_strides(const at::Tensor& a, const at::Tensor& b) {
  for (int64_t i = 0; i < a.dim(); ++i) {
    if (a.size(i) != 1 && a.stride(i) != b.stride(i)) return false;
  }
  return true;
}

// dst takes src's value as it is; writes to either later put a new value into its own cell.
bool share_value(const at::Tensor& src, const at::Tensor& dst) {
  if (src.scalar_type() != dst.scalar_type() || src.sizes() != dst.sizes() ||
      !same_strides(src, dst) || !covers_storage(src) || !covers_storage(dst) ||
      src.is_conj() != dst.is_conj() || src.is_neg() != dst.is_neg()) {
    return false;
  }
  trace::ValuePtr value = device::cell_of(*src.unsafeGetTensorImpl())->load();
  device::Cell* target = device::cell_of(*dst.unsafeGetTensorImpl());
  if (value && target->load()) {
    // A tensor that is sound is not given what a bad index has spoiled, or may have.
    if (!shares_pending(*value)) return false;
    device::raise_violations(value->guards());
  }
  target->store(std::move(value));
  return true;
}

// The elements as stored, lazy conj and neg bits left aside.
at::Tensor raw(const at::Tensor& tensor) {
  at::Tensor out = tensor;
  if (out.is_conj()) out = out.conj();
  if (out.is_neg()) out = out._neg_view();
  return out;
}

// Kernels see stored elements only, so lazy bits are worked off here.
at::Tensor resolved(const at::Tensor& tensor) {
  at::Tensor out = raw(tensor);
  if (tensor.is_conj()) out = at::conj_physical(out);
  if (tensor.is_neg()) out = at::neg(out);
  return out;
}

void copy_on_device(const at::Tensor& src, const at::Tensor& dst) {
  if (share_value(src, dst)) return;
  at::Tensor from = resolved(src);
  if (dst.is_conj()) from = at::conj_physical(from);
  if (dst.is_neg()) from = at::neg(from);
  static const Op* const op = &find_op("aten::copy_");
  c10::Stack stack{raw(dst), from, false};
  run_op(*op, &stack);
}

void copy_from_host(const at::Tensor& src, const at::Tensor& dst) {
  const Transfer transfer(Kind::kUpload, "copy from the host", dst);
  const int device = dst.device().index();
  at::Tensor host = src.to(dst.scalar_type());
  if (dst.is_conj()) host = host.conj();
  if (dst.is_neg()) host = at::neg(host);
  if (covers_storage(dst)) {
    const at::Tensor full = host.expand(dst.sizes());
    at::Tensor laid_out = full;
    if (!full.is_non_overlapping_and_dense() || !same_strides(full, dst)) {
      laid_out = at::empty_strided(dst.sizes(), dst.strides(), full.options()).copy_(full);
    }
    const trace::ValuePtr value = device::upload(laid_out, device);
    device::cell_of(*dst.unsafeGetTensorImpl())->store(value);
    return;
  }
  host = host.contiguous().resolve_conj().resolve_neg();
  copy_on_device(device::make_tensor(host.sizes(), host.strides(), host.scalar_type(), device,
                                     device::upload(host, device)),
                 raw(dst));
}

void copy_between_devices(const at::Tensor& src, const at::Tensor& dst) {
  const pjrt::Runtime& runtime = pjrt::Runtime::get();
  at::Tensor packed = src;
  if (!covers_storage(src) || src.is_conj() || src.is_neg()) {
    packed = device::make_tensor(src.sizes(), trace::contiguous_strides(src.sizes()),
                                 src.scalar_type(), src.device().index());
    copy_on_device(src, packed);
  }
  const trace::ValuePtr value = device::cell_of(*packed.unsafeGetTensorImpl())->load();
  if (!value) return;  // uninitialised stays uninitialised
  const int device = dst.device().index();
  pjrt::Buffer buffer = value->obtain().copy_to_device(runtime.device(device));
  auto moved = c10::make_intrusive<trace::DeviceValue>(buffer.release(), value->dtype(),
                                                       value->dims(), value->strides(), device);
  moved->guard(value->guards());
  copy_on_device(device::make_tensor(packed.sizes(), packed.strides(), packed.scalar_type(), device,
                                     std::move(moved)),
                 dst);
}

// One plain copy where both lie alike: at::copy_ would wake its threads for it.
void copy_to_host(const at::Tensor& src, const at::Tensor& dst) {
  note_sync("a copy to the host");
  const Transfer transfer(Kind::kHostRead, "copy to the host", src);
  const bool alike = dst.device().is_cpu() && src.scalar_type() == dst.scalar_type() &&
                     src.sizes() == dst.sizes() && same_strides(src, dst) &&
                     src.is_conj() == dst.is_conj() && src.is_neg() == dst.is_neg();
  if (alike && device::download_bytes(src, dst.mutable_data_ptr())) return;
  dst.copy_(device::host_view(src));
}

at::Tensor copy_from(const at::Tensor& self, const at::Tensor& dst, bool /*non_blocking*/) {
  // The error of a shape that does not fit is copy_'s own.
  if (self.sizes() != dst.sizes()) {
    const auto common = at::infer_size_dimvector(dst.sizes(), self.sizes());
    TORCH_CHECK(c10::IntArrayRef(common) == dst.sizes(), "output with shape ", dst.sizes(),
                " doesn't match the broadcast shape ", c10::IntArrayRef(common));
  }
  if (const Recorder* recorder = Recorder::current()) {
    recorder->check_inside(dst, /*written=*/true, "copy_");
    recorder->check_inside(self, /*written=*/false, "copy_");
  }
  if (on_tpu(self) && on_tpu(dst)) {
    if (self.device() == dst.device()) {
      copy_on_device(self, dst);
    } else {
      copy_between_devices(self, dst);
    }
  } else if (on_tpu(dst)) {
    copy_from_host(self.device().is_cpu() ? self : self.cpu(), dst);
  } else {
    copy_to_host(self, dst);
  }
  return dst;
}

// The out= protocol of the CPU fallback: dst takes the shape of self.
at::Tensor copy_from_and_resize(const at::Tensor& self, const at::Tensor& dst) {
  dst.resize_(self.sizes());
  return copy_from(self, dst, false);
}

at::Scalar local_scalar_dense(const at::Tensor& self) {
  if (const Recorder* recorder = Recorder::current()) {
    recorder->check_inside(self, /*written=*/false, "item()");
  }
  note_sync("item()");
  const Transfer transfer(Kind::kHostRead, "item()", self);
  launch_at_read(self.device().index());
  return at::_local_scalar_dense(device::host_view(self));
}

// The same elements in the same order: what is left of `x[i] += 1` after the addition.
bool is_itself(const at::Tensor& self, const at::Tensor& src) {
  return self.is_same(src) ||
         (src.device() == self.device() && src.is_alias_of(self) &&
          src.storage_offset() == self.storage_offset() && src.dtype() == self.dtype() &&
          src.sizes() == self.sizes() && src.strides() == self.strides() &&
          src.is_conj() == self.is_conj() && src.is_neg() == self.is_neg());
}

at::Tensor& copy_(at::Tensor& self, const at::Tensor& src, bool non_blocking) {
  if (is_itself(self, src)) return self;
  TORCH_CHECK_NOT_IMPLEMENTED(!src.is_meta(), "Cannot copy out of meta tensor; no data!");
  copy_from(src, self, non_blocking);
  return self;
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("copy_", TORCH_FN(copy_));
  m.impl("_copy_from", TORCH_FN(copy_from));
  m.impl("_copy_from_and_resize", TORCH_FN(copy_from_and_resize));
  m.impl("_local_scalar_dense", TORCH_FN(local_scalar_dense));
}

// Lazy bits are handled above; PyTorch's own handling would call copy_ again without end.
TORCH_LIBRARY_IMPL(aten, Conjugate, m) {
  m.impl("_copy_from", torch::CppFunction::makeFallthrough());
}
TORCH_LIBRARY_IMPL(aten, Negative, m) {
  m.impl("_copy_from", torch::CppFunction::makeFallthrough());
}

}  // namespace
}  // namespace torch_tpu::dispatch
