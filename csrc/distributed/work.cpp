#include "csrc/distributed/work.h"

#include <ATen/core/ivalue.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "csrc/dispatch/call/mode.h"
#include "csrc/distributed/group.h"

namespace torch_tpu::distributed {
namespace {

bool debug() { return dispatch::mode() == base::Mode::kDebug; }

c10::intrusive_ptr<c10::ivalue::Future> new_future(const std::vector<at::Tensor>& tensors) {
  std::vector<c10::Device> devices;
  for (const at::Tensor& tensor : tensors) {
    if (tensor.is_cpu()) continue;
    if (std::find(devices.begin(), devices.end(), tensor.device()) == devices.end()) {
      devices.push_back(tensor.device());
    }
  }
  return c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()),
                                                  devices);
}

}  // namespace

TpuWork::TpuWork(int rank, c10d::OpType type, const char* title, CollectivePtr call,
                 std::vector<at::Tensor> inputs, std::vector<at::Tensor> outputs,
                 std::vector<Destination::Copy> copies, bool blocking)
    : Work(rank, type, title, inputs),
      call_(std::move(call)),
      promise_(call_->promise),
      outputs_(std::move(outputs)),
      blocking_(blocking),
      copies_(std::move(copies)) {}

void TpuWork::place_results() {
  if (dispatch::mode() == base::Mode::kFused) copy_results();
}

void TpuWork::finish_with(const c10::intrusive_ptr<TpuWork>& work) {
  const c10::weak_intrusive_ptr<TpuWork> weak(work);
  work->promise_->on_done([weak] {
    if (const auto self = weak.lock()) self->finish(self->promise_->error());
  });
}

void TpuWork::copy_results() {
  std::vector<Destination::Copy> copies;
  {
    std::lock_guard lock(copies_mutex_);
    copies.swap(copies_);
  }
  if (copies.empty()) return;
  // As a kernel would: neither autograd nor inference mode has a say in it.
  const c10::impl::ExcludeDispatchKeyGuard below(
      c10::autograd_dispatch_keyset_with_ADInplaceOrView);
  for (const Destination::Copy& copy : copies) copy.to.copy_(copy.from);
}

bool TpuWork::isCompleted() {
  if (!promise_->done()) return false;
  if (!promise_->error()) copy_results();
  return true;
}

bool TpuWork::isSuccess() const { return promise_->done() && !promise_->error(); }

std::exception_ptr TpuWork::exception() const { return promise_->error(); }

int TpuWork::sourceRank() const {
  promise_->wait();
  promise_->rethrow();
  return call_->source_rank >= 0 ? call_->source_rank : call_->peer;
}

bool TpuWork::wait(std::chrono::milliseconds timeout) {
  if (timeout != kNoTimeout) {
    if (!promise_->wait_for(timeout)) {
      std::rethrow_exception(make_error("[" + call_->op + "] collective " +
                                        std::to_string(call_->seq) + " was not done within " +
                                        std::to_string(timeout.count()) + " ms" + call_->where()));
    }
  } else if (blocking_ || debug()) {
    promise_->wait();
  }
  if (promise_->done()) promise_->rethrow();
  copy_results();
  return true;
}

void TpuWork::abort() { promise_->finish(make_error("[" + call_->op + "] was aborted")); }

c10::intrusive_ptr<c10::ivalue::Future> TpuWork::getFuture() {
  std::lock_guard lock(future_mutex_);
  if (future_) return future_;
  future_ = new_future(outputs_);
  if (!blocking_) {
    // Done as far as the host goes, as on any device with a queue of its own.
    copy_results();
    future_->markCompleted(c10::IValue(outputs_));
    return future_;
  }
  promise_->on_done([future = future_, promise = promise_, outputs = outputs_] {
    if (promise->error()) {
      future->setError(promise->error());
    } else {
      future->markCompleted(c10::IValue(outputs));
    }
  });
  return future_;
}

CoalescedWork::CoalescedWork(int rank, std::vector<WorkPtr> works)
    : Work(rank, c10d::OpType::COALESCED), works_(std::move(works)) {}

bool CoalescedWork::isCompleted() {
  bool all = true;
  for (const WorkPtr& work : works_) all = work->isCompleted() && all;
  return all;
}

bool CoalescedWork::isSuccess() const {
  for (const WorkPtr& work : works_) {
    if (!work->isSuccess()) return false;
  }
  return true;
}

std::vector<at::Tensor> CoalescedWork::result() {
  std::vector<at::Tensor> all;
  for (const WorkPtr& work : works_) {
    for (at::Tensor& tensor : work->result()) all.push_back(std::move(tensor));
  }
  return all;
}

bool CoalescedWork::wait(std::chrono::milliseconds timeout) {
  for (const WorkPtr& work : works_) work->wait(timeout);
  return true;
}

c10::intrusive_ptr<c10::ivalue::Future> CoalescedWork::getFuture() {
  for (const WorkPtr& work : works_) work->getFuture();
  const std::vector<at::Tensor> outputs = result();
  auto future = new_future(outputs);
  future->markCompleted(c10::IValue(outputs));
  return future;
}

}  // namespace torch_tpu::distributed
