#include "csrc/distributed/xla_transport.h"

#include <ATen/core/ivalue.h>

#include "csrc/dispatch/run/scalar_pool.h"
#include "csrc/distributed/flight.h"
#include "csrc/ops/call.h"
#include "csrc/pjrt/runtime.h"

namespace torch_tpu::distributed {
namespace {

using stablehlo::Dims;

Dims dims_of(const at::Tensor& tensor) { return tensor.sizes().vec(); }

// Done when the program is.
class XlaWork final : public c10d::Work {
 public:
  XlaWork() : future_(c10::make_intrusive<c10::ivalue::Future>(c10::NoneType::get())) {}
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future_; }

 private:
  const c10::intrusive_ptr<c10::ivalue::Future> future_;
};

std::string text_of(const Dims& dims) {
  std::string text;
  for (const int64_t dim : dims) text += (text.empty() ? "" : ", ") + std::to_string(dim);
  return "[" + text + "]";
}

}  // namespace

void XlaTransport::leave() {
  std::shared_ptr<Meeting> meeting;
  {
    std::lock_guard lock(mutex_);
    meeting = meeting_;
  }
  if (meeting) meeting->leave(place_.rank);
}

std::optional<XlaCollective> XlaTransport::plan(const Ask& ask,
                                                const std::vector<at::Tensor>& reads,
                                                const std::vector<at::Tensor>& writes) const {
  if (!has_module(ask.reduction)) return std::nullopt;
  XlaCollective what;
  what.kind = ask.kind;
  what.reduction = ask.reduction;
  what.root = ask.root;
  what.size = static_cast<int64_t>(place_.devices.size());
  if (reads.empty() && writes.empty()) {
    what.dtype = stablehlo::DType::kS32;
    what.inputs = what.outputs = {{1}};
    return what;
  }
  what.dtype = ops::to_dtype((reads.empty() ? writes : reads)[0].scalar_type());
  for (const at::Tensor& tensor : reads.empty() ? writes : reads) {
    if (tensor.numel() == 0) return std::nullopt;
    what.inputs.push_back(dims_of(tensor));
  }
  for (const at::Tensor& tensor : writes.empty() ? reads : writes) {
    if (tensor.numel() == 0) return std::nullopt;
    what.outputs.push_back(dims_of(tensor));
  }
  return what;
}

std::shared_ptr<Meeting> XlaTransport::meeting() {
  std::lock_guard lock(mutex_);
  if (!meeting_) {
    std::vector<int64_t> ids = place_.devices;
    if (!place_.spans) {
      const auto& devices = pjrt::Runtime::get().client().addressable_devices();
      for (int64_t& id : ids) id = devices.at(static_cast<size_t>(id)).id();
    }
    ids_ = std::move(ids);
    meeting_ = Meeting::join(place_.name, place_.here);
  }
  return meeting_;
}

std::vector<WorkPtr> XlaTransport::start(
    const XlaCollective& what, const CollectivePtr& call,
    const std::function<std::vector<WorkPtr>(Collective&)>& host) {
  const std::shared_ptr<Meeting> meeting = this->meeting();
  Meeting::Part part;
  part.rank = place_.rank;
  part.program = XlaProgram::get(what, ids_);
  if (!part.program) {
    Flight::get().over_host(call->record);
    for (const Operand& operand : call->operands) operand.await(call->timeout);
    return host(*call);
  }
  for (Operand& operand : call->operands) part.args.push_back(operand.into_value());
  if (part.args.empty()) {
    const int32_t one = 1;
    part.args.push_back(dispatch::upload_pack(stablehlo::DType::kS32, &one, 1, place_.device));
  } else {
    part.donate = part.args[0]->held_only_by(1);
  }
  for (const trace::ValuePtr& value : part.args) value->obtain();  // may make it, which takes time
  auto work = c10::make_intrusive<XlaWork>();
  part.done = [call, future = work->getFuture()](std::vector<pjrt::Buffer> outputs,
                                                 const std::exception_ptr& error) {
    if (error) {
      future->setError(error);
      return;
    }
    try {
      const pjrt::Event ready = outputs.at(0).ready_event();
      for (size_t i = 0; i < call->destinations.size(); ++i) {
        call->destinations[i].use_buffer(outputs.at(i).release());
      }
      ready.on_ready([future](const pjrt::Error* failed) {
        if (failed != nullptr) {
          future->setError(std::make_exception_ptr(*failed));
        } else {
          future->markCompleted();
        }
      });
    } catch (...) {
      future->setError(std::current_exception());
    }
  };
  meeting->arrive(call->seq, std::move(part));
  return {std::move(work)};
}

std::string unusual_sizes(const XlaCollective& what, int rank) {
  const auto at = static_cast<size_t>(rank);
  switch (what.kind) {
    case XlaKind::kAllGather: {
      if (what.outputs.size() > 1) {  // which are compared
        return what.inputs[0] == what.outputs[at] ? "" : " from " + text_of(what.inputs[0]);
      }
      Dims whole = what.inputs[0];
      if (!whole.empty()) whole[0] *= what.size;
      if (whole.empty()) whole = {what.size};
      return what.outputs[0] == whole ? "" : " into " + text_of(what.outputs[0]);
    }
    case XlaKind::kReduceScatter: {
      if (what.inputs.size() > 1) {
        return what.outputs[0] == what.inputs[at] ? "" : " into " + text_of(what.outputs[0]);
      }
      Dims whole = what.outputs[0];
      if (!whole.empty()) whole[0] *= what.size;
      return what.inputs[0] == whole ? "" : " into " + text_of(what.outputs[0]);
    }
    case XlaKind::kAllToAll:
      return what.outputs[0] == what.inputs[0] ? "" : " into " + text_of(what.outputs[0]);
    default:
      return "";
  }
}

}  // namespace torch_tpu::distributed
