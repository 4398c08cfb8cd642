// The collectives: what each one reads, writes and asks of the transport, which works on host
// memory.
#include <cstring>
#include <numeric>
#include <sstream>

#include <ATen/ops/empty.h>
#include <torch/csrc/distributed/c10d/Utils.hpp>

#include "csrc/distributed/process_group.h"
#include "csrc/distributed/reduce.h"
#include "csrc/distributed/work.h"

namespace torch_tpu::distributed {
namespace {

using c10d::OpType;
using Tensors = TpuBackend::Tensors;
using Works = std::vector<WorkPtr>;

const at::Tensor& only(const Tensors& tensors, const char* op) {
  TORCH_CHECK_VALUE(tensors.size() == 1, "[", op, "] expected one tensor per process, got ",
                    tensors.size());
  return tensors[0];
}

void append(std::string& text, const at::Tensor& tensor) {
  text += c10::toString(tensor.scalar_type());
  text += " [";
  const char* separator = "";
  for (int64_t size : tensor.sizes()) {
    text += separator + std::to_string(size);
    separator = ", ";
  }
  text += "]";
}

std::string detail_of(const at::Tensor& tensor) {
  std::string text;
  append(text, tensor);
  return text;
}

std::string detail_of(const Tensors& tensors) {
  std::string text;
  for (const at::Tensor& tensor : tensors) {
    if (!text.empty()) text += ", ";
    append(text, tensor);
  }
  return text;
}

std::string rooted(std::string text, int64_t root) {
  return text + " root " + std::to_string(root);
}

at::Tensor new_bytes(int64_t bytes) {
  return at::empty({bytes}, at::TensorOptions().dtype(c10::kByte));
}

int64_t bytes_of(const at::Tensor& tensor) { return static_cast<int64_t>(tensor.nbytes()); }

void check_alike(const Tensors& tensors, const at::Tensor& like, const char* op) {
  for (const at::Tensor& tensor : tensors) {
    TORCH_CHECK_TYPE(tensor.scalar_type() == like.scalar_type(), "[", op,
                     "] expected tensors of one dtype, got ", tensor.scalar_type(), " and ",
                     like.scalar_type());
  }
}

void copy_bytes(const at::Tensor& to, const void* from) {
  if (to.nbytes() > 0) std::memcpy(to.mutable_data_ptr(), from, to.nbytes());
}

void copy_bytes(void* to, const at::Tensor& from) {
  if (from.nbytes() > 0) std::memcpy(to, from.const_data_ptr(), from.nbytes());
}

}  // namespace

WorkPtr TpuBackend::broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) {
  const at::Tensor& tensor = only(tensors, "broadcast");
  Plan plan{OpType::BROADCAST,
            "broadcast",
            "tpu:broadcast",
            rooted(detail_of(tensor), options.rootRank),
            options.timeout,
            {},
            {}};
  const bool root = options.rootRank == rank_;
  (root ? plan.reads : plan.writes) = tensors;
  c10d::BroadcastOptions inner_options = options;
  inner_options.timeout = timeout_or_default(options.timeout);
  return issue(std::move(plan), [inner = inner_, root, inner_options](Call& call) -> Works {
    if (!root) call.targets[0].use_new_memory();
    Tensors bytes{as_bytes(root ? call.sources[0].host() : call.targets[0].host())};
    if (bytes[0].numel() == 0) return {};
    return {inner->broadcast(bytes, inner_options)};
  });
}

WorkPtr TpuBackend::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
  const at::Tensor& tensor = only(tensors, "all_reduce");
  check_reduction(options.reduceOp, tensor.scalar_type());
  Plan plan{OpType::ALLREDUCE,
            "all_reduce",
            "tpu:all_reduce",
            detail_of(tensor) + " " + name_of(options.reduceOp.op_),
            options.timeout,
            tensors,
            tensors};
  plan.in_place = true;
  if (c10::isComplexType(tensor.scalar_type()) && options.reduceOp.op_ == c10d::ReduceOp::PRODUCT) {
    // No transport multiplies complex numbers: everybody gets all the factors.
    c10d::AllgatherOptions gather;
    gather.timeout = timeout_or_default(options.timeout);
    return issue(std::move(plan), [=, this](Call& call) -> Works {
      call.targets[0].use_new_memory();
      const at::Tensor& out = call.targets[0].host();
      at::Tensor mine = as_bytes(call.sources[0].host());
      at::Tensor all = new_bytes(mine.numel() * size_);
      call.finish = [all, out, op = options.reduceOp, size = size_](Call&) {
        reduce_rows(all.view(out.scalar_type()).view({size, out.numel()}), out.view({-1}), op);
      };
      if (mine.numel() == 0) return {};
      return {inner_->_allgather_base(all, mine, gather)};
    });
  }
  c10d::AllreduceOptions inner_options = options;
  inner_options.timeout = timeout_or_default(options.timeout);
  return issue(std::move(plan), [inner = inner_, size = size_, inner_options](Call& call) -> Works {
    call.targets[0].use_memory(call.sources[0].into_memory());
    auto reduction =
        std::make_shared<Reduction>(call.targets[0].host(), inner_options.reduceOp, size);
    call.finish = [reduction](Call&) { reduction->finish(); };
    c10d::AllreduceOptions wire = inner_options;
    wire.reduceOp = reduction->wire_op();
    Tensors wires{reduction->wire()};
    if (wires[0].numel() == 0) return {};
    return {inner->allreduce(wires, wire)};
  });
}

WorkPtr TpuBackend::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  const at::Tensor& tensor = only(tensors, "reduce");
  check_reduction(options.reduceOp, tensor.scalar_type());
  const bool root = options.rootRank == rank_;
  Plan plan{OpType::REDUCE,
            "reduce",
            "tpu:reduce",
            rooted(detail_of(tensor) + " " + name_of(options.reduceOp.op_), options.rootRank),
            options.timeout,
            tensors,
            root ? tensors : Tensors()};
  plan.in_place = true;
  c10d::ReduceOptions inner_options = options;
  inner_options.timeout = timeout_or_default(options.timeout);
  return issue(std::move(plan), [=, inner = inner_, size = size_](Call& call) -> Works {
    Memory memory = call.sources[0].into_memory();  // others' is scratch to the transport
    at::Tensor host = memory.host();
    if (root) call.targets[0].use_memory(std::move(memory));
    auto reduction = std::make_shared<Reduction>(host, inner_options.reduceOp, size);
    call.finish = [reduction, root](Call&) {
      if (root) reduction->finish();
    };
    c10d::ReduceOptions wire = inner_options;
    wire.reduceOp = reduction->wire_op();
    Tensors wires{reduction->wire()};
    if (wires[0].numel() == 0) return {};
    return {inner->reduce(wires, wire)};
  });
}

WorkPtr TpuBackend::allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                              const c10d::AllgatherOptions& options) {
  const at::Tensor& input = only(inputs, "all_gather");
  TORCH_CHECK_VALUE(outputs.size() == 1 && outputs[0].size() == static_cast<size_t>(size_),
                    "[all_gather] expected ", size_, " output tensors, got ",
                    outputs.empty() ? 0 : outputs[0].size());
  check_alike(outputs[0], input, "all_gather");
  TORCH_CHECK_VALUE(outputs[0][static_cast<size_t>(rank_)].numel() == input.numel(),
                    "[all_gather] the output of this rank has another size than its input: ",
                    outputs[0][static_cast<size_t>(rank_)].sizes(), " and ", input.sizes());
  bool even = true;
  for (const at::Tensor& output : outputs[0]) even = even && output.numel() == input.numel();
  Plan plan{OpType::ALLGATHER, "all_gather", "tpu:all_gather", detail_of(outputs[0]),
            options.timeout,   inputs,       outputs[0]};
  const auto timeout = timeout_or_default(options.timeout);
  return issue(std::move(plan), [=, rank = rank_, inner = inner_](Call& call) -> Works {
    std::vector<Tensors> all(1);
    for (Target& target : call.targets) {
      target.use_new_memory();
      all[0].push_back(as_bytes(target.host()));
    }
    Tensors mine{as_bytes(call.sources[0].host())};
    if (even) {
      c10d::AllgatherOptions gather;
      gather.timeout = timeout;
      if (mine[0].numel() == 0) return {};
      return {inner->allgather(all, mine, gather)};
    }
    Works works;  // sizes differ: each rank's tensor in turn
    copy_bytes(call.targets[static_cast<size_t>(rank)].host(), mine[0].const_data_ptr());
    for (size_t root = 0; root < all[0].size(); ++root) {
      if (all[0][root].numel() == 0) continue;
      c10d::BroadcastOptions from;
      from.rootRank = static_cast<int64_t>(root);
      from.timeout = timeout;
      Tensors bytes{all[0][root]};
      works.push_back(inner->broadcast(bytes, from));
    }
    return works;
  });
}

WorkPtr TpuBackend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                    const c10d::AllgatherOptions& options) {
  TORCH_CHECK_VALUE(
      output.numel() == input.numel() * size_, "[all_gather_into_tensor] the output must have ",
      size_, " times the elements of the input, got ", output.sizes(), " and ", input.sizes());
  check_alike({output}, input, "all_gather_into_tensor");
  Plan plan{OpType::_ALLGATHER_BASE,
            "all_gather_into_tensor",
            "tpu:all_gather_into_tensor",
            detail_of(input),
            options.timeout,
            {input},
            {output}};
  c10d::AllgatherOptions inner_options = options;
  inner_options.timeout = timeout_or_default(options.timeout);
  return issue(std::move(plan), [inner = inner_, inner_options](Call& call) -> Works {
    call.targets[0].use_new_memory();
    at::Tensor all = as_bytes(call.targets[0].host());
    at::Tensor mine = as_bytes(call.sources[0].host());
    if (mine.numel() == 0) return {};
    return {inner->_allgather_base(all, mine, inner_options)};
  });
}

WorkPtr TpuBackend::gather(std::vector<Tensors>& outputs, Tensors& inputs,
                           const c10d::GatherOptions& options) {
  const at::Tensor& input = only(inputs, "gather");
  const bool root = options.rootRank == rank_;
  TORCH_CHECK_VALUE(
      !root || (outputs.size() == 1 && outputs[0].size() == static_cast<size_t>(size_)),
      "[gather] the root expects ", size_, " output tensors");
  if (root) check_alike(outputs[0], input, "gather");
  Plan plan{OpType::GATHER,
            "gather",
            "tpu:gather",
            rooted(detail_of(input), options.rootRank),
            options.timeout,
            inputs,
            root ? outputs[0] : Tensors()};
  c10d::GatherOptions inner_options = options;
  inner_options.timeout = timeout_or_default(options.timeout);
  return issue(std::move(plan), [inner = inner_, root, inner_options](Call& call) -> Works {
    std::vector<Tensors> all;
    if (root) all.emplace_back();
    for (Target& target : call.targets) {
      target.use_new_memory();
      all[0].push_back(as_bytes(target.host()));
    }
    Tensors mine{as_bytes(call.sources[0].host())};
    if (mine[0].numel() == 0) return {};
    return {inner->gather(all, mine, inner_options)};
  });
}

WorkPtr TpuBackend::scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                            const c10d::ScatterOptions& options) {
  const at::Tensor& output = only(outputs, "scatter");
  const bool root = options.rootRank == rank_;
  TORCH_CHECK_VALUE(!root || (inputs.size() == 1 && inputs[0].size() == static_cast<size_t>(size_)),
                    "[scatter] the root expects ", size_, " input tensors");
  if (root) check_alike(inputs[0], output, "scatter");
  Plan plan{OpType::SCATTER, "scatter",
            "tpu:scatter",   rooted(detail_of(output), options.rootRank),
            options.timeout, root ? inputs[0] : Tensors(),
            outputs};
  c10d::ScatterOptions inner_options = options;
  inner_options.timeout = timeout_or_default(options.timeout);
  return issue(std::move(plan), [inner = inner_, root, inner_options](Call& call) -> Works {
    std::vector<Tensors> pieces;
    if (root) pieces.emplace_back();
    for (const Source& source : call.sources) pieces[0].push_back(as_bytes(source.host()));
    call.targets[0].use_new_memory();
    Tensors mine{as_bytes(call.targets[0].host())};
    if (mine[0].numel() == 0) return {};
    return {inner->scatter(mine, pieces, inner_options)};
  });
}

WorkPtr TpuBackend::exchange(Plan plan, std::vector<int64_t> input_bytes,
                             std::vector<int64_t> output_bytes,
                             std::function<void(Call&, const at::Tensor&)> finish) {
  c10d::AllToAllOptions options;
  options.timeout = timeout_or_default(plan.timeout);
  return issue(std::move(plan), [=, inner = inner_](Call& call) -> Works {
    // One source is read where it lies, several are put together.
    at::Tensor sent;
    if (call.sources.size() == 1) {
      sent = as_bytes(call.sources[0].host());
    } else {
      sent = new_bytes(std::accumulate(input_bytes.begin(), input_bytes.end(), int64_t{0}));
      auto* to = static_cast<char*>(sent.mutable_data_ptr());
      for (const Source& source : call.sources) {
        copy_bytes(to, source.host());
        to += source.nbytes();
      }
    }
    const int64_t total = std::accumulate(output_bytes.begin(), output_bytes.end(), int64_t{0});
    at::Tensor received;
    for (Target& target : call.targets) target.use_new_memory();
    if (!finish) {
      received = as_bytes(call.targets[0].host());
    } else {
      received = new_bytes(total);
      call.finish = [finish, received](Call& done) { finish(done, received); };
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
                  [](Call& call, const at::Tensor& received) {
                    auto* from = static_cast<const char*>(received.const_data_ptr());
                    for (Target& target : call.targets) {
                      copy_bytes(target.host(), from);
                      from += target.host().nbytes();
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
  // Everybody gets its pieces from all others and reduces them itself: no more is sent than a ring
  // would send, and the order is that of the ranks.
  const std::vector<int64_t> received(static_cast<size_t>(size_), bytes_of(output));
  return exchange(std::move(plan), sizes_in_bytes(inputs[0]), received,
                  [op = options.reduceOp, size = size_](Call& call, const at::Tensor& pieces) {
                    const at::Tensor& out = call.targets[0].host();
                    if (out.numel() == 0) return;
                    reduce_rows(pieces.view(out.scalar_type()).view({size, out.numel()}),
                                out.view({-1}), op);
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
  const std::vector<int64_t> pieces(static_cast<size_t>(size_), bytes_of(output));
  return exchange(std::move(plan), pieces, pieces,
                  [op = options.reduceOp, size = size_](Call& call, const at::Tensor& received) {
                    const at::Tensor& out = call.targets[0].host();
                    if (out.numel() == 0) return;
                    reduce_rows(received.view(out.scalar_type()).view({size, out.numel()}),
                                out.view({-1}), op);
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
  Plan plan{OpType::SEND, "send", "tpu:send", detail_of(tensor), c10d::kUnsetTimeout, tensors, {}};
  plan.message = true;
  plan.peer = to;
  return issue(std::move(plan), [inner = inner_, to, tag](Call& call) -> Works {
    Tensors bytes{as_bytes(call.sources[0].host())};
    return {inner->send(bytes, to, tag)};
  });
}

WorkPtr TpuBackend::recv(Tensors& tensors, int from, int tag) {
  const at::Tensor& tensor = only(tensors, "recv");
  Plan plan{OpType::RECV, "recv", "tpu:recv", detail_of(tensor), c10d::kUnsetTimeout, {}, tensors};
  plan.message = plan.receives = true;
  plan.peer = from;
  return issue(std::move(plan), [inner = inner_, from, tag](Call& call) -> Works {
    call.targets[0].use_new_memory();
    Tensors bytes{as_bytes(call.targets[0].host())};
    return {inner->recv(bytes, from, tag)};
  });
}

WorkPtr TpuBackend::recvAnysource(Tensors& tensors, int tag) {
  const at::Tensor& tensor = only(tensors, "recv");
  Plan plan{OpType::RECVANYSOURCE, "recv", "tpu:recv", detail_of(tensor),
            c10d::kUnsetTimeout,   {},     tensors};
  plan.message = plan.receives = true;
  return issue(std::move(plan), [inner = inner_, tag](Call& call) -> Works {
    call.targets[0].use_new_memory();
    Tensors bytes{as_bytes(call.targets[0].host())};
    return {inner->recvAnysource(bytes, tag)};
  });
}

WorkPtr TpuBackend::barrier(const c10d::BarrierOptions& options) {
  Plan plan{OpType::BARRIER, "barrier", "tpu:barrier", "", options.timeout, {}, {}};
  plan.blocking = true;
  c10d::BarrierOptions inner_options;
  inner_options.timeout = timeout_or_default(options.timeout);
  return issue(std::move(plan), [inner = inner_, inner_options](Call&) -> Works {
    return {inner->barrier(inner_options)};
  });
}

void TpuBackend::monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) {
  group_->check();
  c10d::BarrierOptions inner_options = options;
  inner_options.timeout = timeout_or_default(options.timeout);
  inner_->monitoredBarrier(inner_options, wait_all_ranks);
}

}  // namespace torch_tpu::distributed
