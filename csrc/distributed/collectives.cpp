// Collectives that the transport has as well: what each one reads, writes and asks of it. It works
// on host memory.
#include "csrc/distributed/collective_parts.h"

namespace torch_tpu::distributed {

WorkPtr TpuBackend::broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) {
  const at::Tensor& tensor = only(tensors, "broadcast");
  check_root("broadcast", options.rootRank, size_);
  Plan plan{OpType::BROADCAST,
            "broadcast",
            "tpu:broadcast",
            rooted(detail_of(tensor), options.rootRank),
            options.timeout,
            {},
            {}};
  plan.rooted = true;
  const bool root = options.rootRank == rank_;
  (root ? plan.reads : plan.writes) = tensors;
  plan.xla = {XlaKind::kBroadcast, c10d::ReduceOp::SUM, options.rootRank};
  c10d::BroadcastOptions inner_options = options;
  inner_options.timeout = timeout_or_default(options.timeout);
  return issue(std::move(plan), [inner = inner_, root, inner_options](Collective& call) -> Works {
    if (!root) call.destinations[0].use_new_memory();
    Tensors bytes{as_bytes(root ? call.operands[0].host() : call.destinations[0].host())};
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
  plan.xla = {XlaKind::kAllReduce, options.reduceOp.op_, 0};
  if (c10::isComplexType(tensor.scalar_type()) && options.reduceOp.op_ == c10d::ReduceOp::PRODUCT) {
    // No transport multiplies complex numbers: everybody gets all the factors.
    c10d::AllgatherOptions gather;
    gather.timeout = timeout_or_default(options.timeout);
    return issue(std::move(plan), [=, this](Collective& call) -> Works {
      call.destinations[0].use_new_memory();
      const at::Tensor& out = call.destinations[0].host();
      at::Tensor mine = as_bytes(call.operands[0].host());
      at::Tensor all = new_bytes(mine.numel() * size_);
      call.finish = [all, out, op = options.reduceOp](Collective&) { reduce_pieces(all, out, op); };
      if (mine.numel() == 0) return {};
      return {inner_->_allgather_base(all, mine, gather)};
    });
  }
  c10d::AllreduceOptions inner_options = options;
  inner_options.timeout = timeout_or_default(options.timeout);
  return issue(
      std::move(plan), [inner = inner_, size = size_, inner_options](Collective& call) -> Works {
        call.destinations[0].use_memory(call.operands[0].into_memory());
        auto reduction =
            std::make_shared<Reduction>(call.destinations[0].host(), inner_options.reduceOp, size);
        call.finish = [reduction](Collective&) { reduction->finish(); };
        c10d::AllreduceOptions wire = inner_options;
        wire.reduceOp = reduction->wire_op();
        Tensors wires{reduction->wire()};
        if (wires[0].numel() == 0) return {};
        return {inner->allreduce(wires, wire)};
      });
}

WorkPtr TpuBackend::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  const at::Tensor& tensor = only(tensors, "reduce");
  check_root("reduce", options.rootRank, size_);
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
  plan.rooted = true;
  plan.xla = {XlaKind::kAllReduce, options.reduceOp.op_, 0};  // others drop what they get
  c10d::ReduceOptions inner_options = options;
  inner_options.timeout = timeout_or_default(options.timeout);
  return issue(std::move(plan), [=, inner = inner_, size = size_](Collective& call) -> Works {
    Memory memory = call.operands[0].into_memory();  // others' is scratch to the transport
    at::Tensor host = memory.host();
    if (root) call.destinations[0].use_memory(std::move(memory));
    auto reduction = std::make_shared<Reduction>(host, inner_options.reduceOp, size);
    call.finish = [reduction, root](Collective&) {
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
  if (even) plan.xla = {XlaKind::kAllGather, c10d::ReduceOp::SUM, 0};
  const auto timeout = timeout_or_default(options.timeout);
  return issue(std::move(plan), [=, rank = rank_, inner = inner_](Collective& call) -> Works {
    std::vector<Tensors> all(1);
    for (Destination& destination : call.destinations) {
      destination.use_new_memory();
      all[0].push_back(as_bytes(destination.host()));
    }
    Tensors mine{as_bytes(call.operands[0].host())};
    if (even) {
      c10d::AllgatherOptions gather;
      gather.timeout = timeout;
      if (mine[0].numel() == 0) return {};
      return {inner->allgather(all, mine, gather)};
    }
    Works works;  // sizes differ: each rank's tensor in turn
    copy_bytes(call.destinations[static_cast<size_t>(rank)].host(), mine[0].const_data_ptr());
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
  plan.xla = {XlaKind::kAllGather, c10d::ReduceOp::SUM, 0};
  c10d::AllgatherOptions inner_options = options;
  inner_options.timeout = timeout_or_default(options.timeout);
  return issue(std::move(plan), [inner = inner_, inner_options](Collective& call) -> Works {
    call.destinations[0].use_new_memory();
    at::Tensor all = as_bytes(call.destinations[0].host());
    at::Tensor mine = as_bytes(call.operands[0].host());
    if (mine.numel() == 0) return {};
    return {inner->_allgather_base(all, mine, inner_options)};
  });
}

WorkPtr TpuBackend::gather(std::vector<Tensors>& outputs, Tensors& inputs,
                           const c10d::GatherOptions& options) {
  const at::Tensor& input = only(inputs, "gather");
  check_root("gather", options.rootRank, size_);
  const bool root = options.rootRank == rank_;
  check_pieces("gather", "output", outputs, input, root, size_);
  Plan plan{OpType::GATHER,
            "gather",
            "tpu:gather",
            rooted(detail_of(input), options.rootRank),
            options.timeout,
            inputs,
            root ? outputs[0] : Tensors()};
  plan.rooted = true;
  c10d::GatherOptions inner_options = options;
  inner_options.timeout = timeout_or_default(options.timeout);
  return issue(std::move(plan), [inner = inner_, root, inner_options](Collective& call) -> Works {
    std::vector<Tensors> all;
    if (root) all.emplace_back();
    for (Destination& destination : call.destinations) {
      destination.use_new_memory();
      all[0].push_back(as_bytes(destination.host()));
    }
    Tensors mine{as_bytes(call.operands[0].host())};
    if (mine[0].numel() == 0) return {};
    return {inner->gather(all, mine, inner_options)};
  });
}

WorkPtr TpuBackend::scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                            const c10d::ScatterOptions& options) {
  const at::Tensor& output = only(outputs, "scatter");
  check_root("scatter", options.rootRank, size_);
  const bool root = options.rootRank == rank_;
  check_pieces("scatter", "input", inputs, output, root, size_);
  Plan plan{OpType::SCATTER, "scatter",
            "tpu:scatter",   rooted(detail_of(output), options.rootRank),
            options.timeout, root ? inputs[0] : Tensors(),
            outputs};
  plan.rooted = true;
  c10d::ScatterOptions inner_options = options;
  inner_options.timeout = timeout_or_default(options.timeout);
  return issue(std::move(plan), [inner = inner_, root, inner_options](Collective& call) -> Works {
    std::vector<Tensors> pieces;
    if (root) pieces.emplace_back();
    for (const Operand& operand : call.operands) pieces[0].push_back(as_bytes(operand.host()));
    call.destinations[0].use_new_memory();
    Tensors mine{as_bytes(call.destinations[0].host())};
    if (mine[0].numel() == 0) return {};
    return {inner->scatter(mine, pieces, inner_options)};
  });
}

}  // namespace torch_tpu::distributed
