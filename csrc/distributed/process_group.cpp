// The backend itself and what all collectives share; the collectives are in
// collectives.cpp and exchanges.cpp.
#include "csrc/distributed/process_group.h"

#include <ATen/core/LegacyTypeDispatch.h>

#include "csrc/dispatch/call/mode.h"
#include "csrc/dispatch/fuse/pending.h"
#include "csrc/distributed/flight.h"
#include "csrc/distributed/watchdog.h"
#include "csrc/distributed/work.h"

namespace torch_tpu::distributed {

TpuBackend::TpuBackend(GroupInfo info, c10::intrusive_ptr<c10d::Backend> transport,
                       std::shared_ptr<XlaTransport> xla)
    : Backend(info.rank, info.size),
      options_(c10::make_intrusive<Options>("tpu", info.timeout)),
      transport_(std::move(transport)),
      inner_(transport_.get()),
      xla_(std::move(xla)),
      group_(std::make_shared<Group>(std::move(info))),
      default_timeout_ms_(group_->info().timeout.count()) {
  init();
  if (size_ > 1) Watchdog::get().watch(group_);
}

TpuBackend::~TpuBackend() {
  if (made_.forked_since()) {
    // We are a child, and these have threads, which are not here: their ends would wait for ever.
    static_cast<void>(transport_.release());
    static_cast<void>(new auto(xla_));
    static_cast<void>(new auto(group_));
    return;
  }
  end(/*in_destructor=*/true);
}

void TpuBackend::end(bool in_destructor) {
  if (ended_ || made_.forked_since()) return;
  const bool failed = group_->failed();
  if (!failed) group_->shutdown(in_destructor);
  ended_ = true;
  group_->stop();
  Watchdog::get().forget(group_.get());
  if (xla_) xla_->leave();
  // Its destructor would wait for calls that never end.
  if (failed || !group_->outstanding().empty()) static_cast<void>(transport_.release());
}

void TpuBackend::abort() {
  if (!made_.forked_since()) group_->abort("the process group was aborted");
}

c10d::ErrorType TpuBackend::getError() {
  return group_->failed() ? c10d::ErrorType::COMM_ERROR : c10d::ErrorType::SUCCESS;
}

void TpuBackend::setTimeout(std::chrono::milliseconds timeout) {
  default_timeout_ms_ = timeout.count();
  options_->timeout = timeout;
}

std::chrono::milliseconds TpuBackend::timeout_or_default(std::chrono::milliseconds given) const {
  return given > std::chrono::milliseconds(0) ? given
                                              : std::chrono::milliseconds(default_timeout_ms_);
}

void TpuBackend::startCoalescing() {
  std::lock_guard lock(coalescing_mutex_);
  coalescing_ = true;
  coalesced_.clear();
}

WorkPtr TpuBackend::endCoalescing() {
  std::lock_guard lock(coalescing_mutex_);
  coalescing_ = false;
  return c10::make_intrusive<CoalescedWork>(rank_, std::move(coalesced_));
}

WorkPtr TpuBackend::keep(WorkPtr work) {
  std::lock_guard lock(coalescing_mutex_);
  if (coalescing_) coalesced_.push_back(work);
  return work;
}

namespace {

// The device of the last, or -1.
int check_tensors(const char* op, const std::vector<at::Tensor>& tensors) {
  int device = -1;
  for (const at::Tensor& tensor : tensors) {
    TORCH_CHECK(tensor.device().type() == c10::DeviceType::PrivateUse1, "[", op,
                "] expected tensors on tpu, got one on ", tensor.device());
    TORCH_CHECK(tensor.layout() == c10::kStrided, "[", op, "] expected dense tensors, got ",
                tensor.layout());
    device = tensor.device().index();
  }
  return device;
}

}  // namespace

TpuBackend::Start TpuBackend::on_devices(Plan& plan, const CollectivePtr& call, Start host) {
  std::optional<XlaCollective> what = xla_->plan(*plan.xla, plan.reads, plan.writes);
  if (!what) return host;
  for (const Tensors* tensors : {&plan.reads, &plan.writes}) {
    for (const at::Tensor& tensor : *tensors) {
      TORCH_CHECK_VALUE(tensor.device().index() == xla_->device(), "[", plan.op,
                        "] this rank of group '", group_->info().name,
                        "' has the device tpu:", xla_->device(), ", got a tensor on ",
                        tensor.device());
    }
  }
  plan.detail += unusual_sizes(*what, rank_);
  if (plan.local_detail) {
    // Others may send other sizes, over the other transport: then all must know.
    plan.detail += " even";
    plan.local_detail = false;
  }
  // Every device has an argument; and no old memory is kept to be written.
  if (plan.reads.empty()) plan.reads = plan.writes;
  plan.in_place = true;
  call->on_device = true;
  call->in_turn = xla_->spans();
  return [xla = xla_, what = std::move(*what), weak = std::weak_ptr<Collective>(call),
          host = std::move(host)](Collective&) { return xla->start(what, weak.lock(), host); };
}

WorkPtr TpuBackend::issue(Plan plan, Start start) {
  TORCH_CHECK_WITH(DistBackendError, !made_.forked_since(), "[", plan.op, "] process group '",
                   group_->info().name, "' was made by the process that forked this one. Make a ",
                   "new one here.");
  const at::AutoDispatchBelowADInplaceOrView below;  // copies of inputs are no part of any graph
  auto call = std::make_shared<Collective>();
  int device = check_tensors(plan.op, plan.reads);
  device = std::max(device, check_tensors(plan.op, plan.writes));
  if (xla_ && plan.xla) start = on_devices(plan, call, std::move(start));
  call->op = plan.op;
  call->detail = std::move(plan.detail);
  call->local_detail = plan.local_detail;
  call->message = plan.message;
  call->receives = plan.receives;
  call->rooted = plan.rooted;
  call->peer = plan.peer;
  call->timeout = timeout_or_default(plan.timeout);
  call->start = std::move(start);
  group_->check();
  {
    Tensors operands;
    for (const at::Tensor& tensor : plan.reads) {
      operands.push_back(call->on_device ? plain_on_device(tensor) : readable(tensor));
    }
    if (device >= 0) dispatch::launch_pending(device, dispatch::Cut::kCollective);
    for (const at::Tensor& tensor : operands) call->operands.emplace_back(tensor);
  }
  for (const at::Tensor& tensor : plan.writes) {
    call->destinations.emplace_back(tensor, call->promise, plan.in_place);
  }
  if (device >= 0) trace::Ledger::of(device).add(call->promise);
  call->device = std::max(device, call->on_device ? xla_->device() : 0);
  std::vector<Destination::Copy> copies;
  for (const Destination& destination : call->destinations) {
    if (destination.copy()) copies.push_back(*destination.copy());
  }
  group_->issue(call);
  // What follows runs while the transport is at work already.
  Tensors outputs = plan.writes.empty() ? plan.reads : plan.writes;
  auto work =
      c10::make_intrusive<TpuWork>(rank_, plan.type, plan.title, call, std::move(plan.reads),
                                   std::move(outputs), std::move(copies), plan.blocking);
  TpuWork::finish_with(work);
  work->place_results();
  return keep(std::move(work));
}

}  // namespace torch_tpu::distributed
