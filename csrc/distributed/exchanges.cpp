// Collectives made of an exchange of pieces, those made of others, messages and barriers.
#include <numeric>

#include <torch/csrc/distributed/c10d/Utils.hpp>

#include "csrc/distributed/collective_parts.h"
#include "csrc/distributed/waiters.h"

namespace torch_tpu::distributed {

WorkPtr TpuBackend::exchange(Plan plan, std::vector<int64_t> input_bytes,
                             std::vector<int64_t> output_bytes,
                             std::function<void(Collective&, const at::Tensor&)> finish) {
  c10d::AllToAllOptions options;
  options.timeout = timeout_or_default(plan.timeout);
  return issue(std::move(plan), [=, inner = inner_](Collective& call) -> Works {
    // One operand is read where it lies, several are put together.
    at::Tensor sent;
    if (call.operands.size() == 1) {
      sent = as_bytes(call.operands[0].host());
    } else {
      sent = new_bytes(std::accumulate(input_bytes.begin(), input_bytes.end(), int64_t{0}));
      auto* to = static_cast<char*>(sent.mutable_data_ptr());
      for (const Operand& operand : call.operands) {
        copy_bytes(to, operand.host());
        to += operand.nbytes();
      }
    }
    const int64_t total = std::accumulate(output_bytes.begin(), output_bytes.end(), int64_t{0});
    at::Tensor received;
    for (Destination& destination : call.destinations) destination.use_new_memory();
    if (!finish) {
      received = as_bytes(call.destinations[0].host());
    } else {
      received = new_bytes(total);
      call.finish = [finish, received](Collective& done) { finish(done, received); };
    }
    std::vector<int64_t> in = input_bytes, out = output_bytes;
    return {inner->alltoall_base(received, sent, out, in, options)};
  });
}

namespace {

// Bytes of each piece of the first dimension.
std::vector<int64_t> split_bytes(const at::Tensor& tensor, const std::vector<int64_t>& splits,
                                 int size) {
  c10d::checkSplitSizes(splits, tensor, size);
  if (splits.empty()) {
    return std::vector<int64_t>(static_cast<size_t>(size), bytes_of(tensor) / size);
  }
  const int64_t rows = std::max<int64_t>(tensor.size(0), 1);
  std::vector<int64_t> bytes;
  for (int64_t split : splits) bytes.push_back(split * (bytes_of(tensor) / rows));
  return bytes;
}

std::vector<int64_t> sizes_in_bytes(const Tensors& tensors) {
  std::vector<int64_t> bytes;
  for (const at::Tensor& tensor : tensors) bytes.push_back(bytes_of(tensor));
  return bytes;
}

}  // namespace

WorkPtr TpuBackend::alltoall_base(at::Tensor& output, at::Tensor& input,
                                  std::vector<int64_t>& output_splits,
                                  std::vector<int64_t>& input_splits,
                                  const c10d::AllToAllOptions& options) {
  check_alike({output}, input, "all_to_all_single");
  Plan plan{OpType::ALLTOALL_BASE,
            "all_to_all_single",
            "tpu:all_to_all_single",
            detail_of(input),
            options.timeout,
            {input},
            {output}};
  plan.local_detail = true;
  // Splits that are given may be uneven on another rank only.
  if (output_splits.empty() && input_splits.empty() && input.numel() == output.numel()) {
    plan.xla = {XlaKind::kAllToAll, c10d::ReduceOp::SUM, 0};
  }
  return exchange(std::move(plan), split_bytes(input, input_splits, size_),
                  split_bytes(output, output_splits, size_), {});
}

WorkPtr TpuBackend::alltoall(Tensors& outputs, Tensors& inputs,
                             const c10d::AllToAllOptions& options) {
  TORCH_CHECK_VALUE(inputs.size() == static_cast<size_t>(size_) && outputs.size() == inputs.size(),
                    "[all_to_all] expected ", size_, " input and output tensors, got ",
                    inputs.size(), " and ", outputs.size());
  check_alike(outputs, inputs[0], "all_to_all");
  Plan plan{OpType::ALLTOALL, "all_to_all", "tpu:all_to_all", detail_of(inputs),
            options.timeout,  inputs,       outputs};
  plan.local_detail = true;
  return exchange(std::move(plan), sizes_in_bytes(inputs), sizes_in_bytes(outputs),
                  [](Collective& call, const at::Tensor& received) {
                    auto* from = static_cast<const char*>(received.const_data_ptr());
                    for (Destination& destination : call.destinations) {
                      copy_bytes(destination.host(), from);
                      from += destination.host().nbytes();
                    }
                  });
}

WorkPtr TpuBackend::reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                   const c10d::ReduceScatterOptions& options) {
  const at::Tensor& output = only(outputs, "reduce_scatter");
  TORCH_CHECK_VALUE(inputs.size() == 1 && inputs[0].size() == static_cast<size_t>(size_),
                    "[reduce_scatter] expected ", size_, " input tensors");
  check_alike(inputs[0], output, "reduce_scatter");
  check_reduction(options.reduceOp, output.scalar_type());
  TORCH_CHECK_VALUE(inputs[0][static_cast<size_t>(rank_)].numel() == output.numel(),
                    "[reduce_scatter] the input of this rank has another size than the output");
  Plan plan{OpType::REDUCE_SCATTER,
            "reduce_scatter",
            "tpu:reduce_scatter",
            detail_of(inputs[0]) + " " + name_of(options.reduceOp.op_),
            options.timeout,
            inputs[0],
            outputs};
  bool even = true;
  for (const at::Tensor& input : inputs[0]) even = even && input.numel() == output.numel();
  if (even) plan.xla = {XlaKind::kReduceScatter, options.reduceOp.op_, 0};
  // Everybody gets its pieces from all others and reduces them itself: no more is sent than a ring
  // would send, and the order is that of the ranks.
  const std::vector<int64_t> received(static_cast<size_t>(size_), bytes_of(output));
  return exchange(std::move(plan), sizes_in_bytes(inputs[0]), received,
                  [op = options.reduceOp](Collective& call, const at::Tensor& bytes) {
                    reduce_pieces(bytes, call.destinations[0].host(), op);
                  });
}

WorkPtr TpuBackend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                         const c10d::ReduceScatterOptions& options) {
  TORCH_CHECK_VALUE(
      input.numel() == output.numel() * size_, "[reduce_scatter_tensor] the input must have ",
      size_, " times the elements of the output, got ", input.sizes(), " and ", output.sizes());
  check_alike({output}, input, "reduce_scatter_tensor");
  check_reduction(options.reduceOp, output.scalar_type());
  Plan plan{OpType::_REDUCE_SCATTER_BASE,
            "reduce_scatter_tensor",
            "tpu:reduce_scatter_tensor",
            detail_of(input) + " " + name_of(options.reduceOp.op_),
            options.timeout,
            {input},
            {output}};
  plan.xla = {XlaKind::kReduceScatter, options.reduceOp.op_, 0};
  const std::vector<int64_t> pieces(static_cast<size_t>(size_), bytes_of(output));
  return exchange(std::move(plan), pieces, pieces,
                  [op = options.reduceOp](Collective& call, const at::Tensor& bytes) {
                    reduce_pieces(bytes, call.destinations[0].host(), op);
                  });
}

WorkPtr TpuBackend::allreduce_coalesced(Tensors& tensors,
                                        const c10d::AllreduceCoalescedOptions& options) {
  std::vector<WorkPtr> works;
  for (const at::Tensor& tensor : tensors) {
    Tensors one{tensor};
    works.push_back(allreduce(one, options));
  }
  return c10::make_intrusive<CoalescedWork>(rank_, std::move(works));
}

WorkPtr TpuBackend::allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                                        const c10d::AllgatherOptions& options) {
  // Outputs come by rank, then by tensor.
  std::vector<WorkPtr> works;
  for (size_t i = 0; i < inputs.size(); ++i) {
    std::vector<Tensors> all(1);
    for (const Tensors& of_rank : outputs) all[0].push_back(of_rank.at(i));
    Tensors one{inputs[i]};
    works.push_back(allgather(all, one, options));
  }
  return c10::make_intrusive<CoalescedWork>(rank_, std::move(works));
}

WorkPtr TpuBackend::allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                    const c10d::AllgatherOptions& options) {
  TORCH_CHECK_VALUE(outputs.size() == inputs.size(), "expected as many outputs as inputs");
  std::vector<WorkPtr> works;
  for (size_t i = 0; i < inputs.size(); ++i) {
    works.push_back(_allgather_base(outputs[i], inputs[i], options));
  }
  return c10::make_intrusive<CoalescedWork>(rank_, std::move(works));
}

WorkPtr TpuBackend::reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                    const c10d::ReduceScatterOptions& options) {
  TORCH_CHECK_VALUE(outputs.size() == inputs.size(), "expected as many outputs as inputs");
  std::vector<WorkPtr> works;
  for (size_t i = 0; i < inputs.size(); ++i) {
    works.push_back(_reduce_scatter_base(outputs[i], inputs[i], options));
  }
  return c10::make_intrusive<CoalescedWork>(rank_, std::move(works));
}

WorkPtr TpuBackend::send(Tensors& tensors, int to, int tag) {
  const at::Tensor& tensor = only(tensors, "send");
  check_peer("destination", to, rank_, size_);
  Plan plan{OpType::SEND, "send", "tpu:send", detail_of(tensor), c10d::kUnsetTimeout, tensors, {}};
  plan.message = true;
  plan.peer = to;
  return issue(std::move(plan), [inner = inner_, to, tag](Collective& call) -> Works {
    Tensors bytes{as_bytes(call.operands[0].host())};
    return {inner->send(bytes, to, tag)};
  });
}

WorkPtr TpuBackend::recv(Tensors& tensors, int from, int tag) {
  const at::Tensor& tensor = only(tensors, "recv");
  check_peer("source", from, rank_, size_);
  Plan plan{OpType::RECV, "recv", "tpu:recv", detail_of(tensor), c10d::kUnsetTimeout, {}, tensors};
  plan.message = plan.receives = true;
  plan.peer = from;
  return issue(std::move(plan), [inner = inner_, from, tag](Collective& call) -> Works {
    call.destinations[0].use_new_memory();
    Tensors bytes{as_bytes(call.destinations[0].host())};
    return {inner->recv(bytes, from, tag)};
  });
}

WorkPtr TpuBackend::recvAnysource(Tensors& tensors, int tag) {
  const at::Tensor& tensor = only(tensors, "recv");
  Plan plan{OpType::RECVANYSOURCE, "recv", "tpu:recv", detail_of(tensor),
            c10d::kUnsetTimeout,   {},     tensors};
  plan.message = plan.receives = true;
  return issue(std::move(plan), [inner = inner_, tag](Collective& call) -> Works {
    call.destinations[0].use_new_memory();
    Tensors bytes{as_bytes(call.destinations[0].host())};
    return {inner->recvAnysource(bytes, tag)};
  });
}

WorkPtr TpuBackend::barrier(const c10d::BarrierOptions& options) {
  Plan plan{OpType::BARRIER, "barrier", "tpu:barrier", "", options.timeout, {}, {}};
  plan.blocking = true;
  plan.xla = {XlaKind::kAllReduce, c10d::ReduceOp::SUM, 0};
  c10d::BarrierOptions inner_options;
  inner_options.timeout = timeout_or_default(options.timeout);
  return issue(std::move(plan), [inner = inner_, inner_options](Collective&) -> Works {
    return {inner->barrier(inner_options)};
  });
}

void TpuBackend::monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) {
  group_->check();
  c10d::BarrierOptions inner_options = options;
  inner_options.timeout = timeout_or_default(options.timeout);
  // On a thread of its own, since nothing interrupts the transport.
  const auto promise = std::make_shared<trace::Promise>();
  Waiters::get().run([transport = transport_, inner_options, wait_all_ranks, promise] {
    std::exception_ptr error;
    try {
      transport->monitoredBarrier(inner_options, wait_all_ranks);
    } catch (...) {
      error = std::current_exception();
    }
    promise->finish(std::move(error));
  });
  promise->wait();
  promise->rethrow();
}

}  // namespace torch_tpu::distributed
