// The c10d backend "tpu": says what each collective reads, writes and asks of the transport. There
// is always one that works on CPU tensors, another c10d backend (Gloo). Where the devices of the
// group are one client's, XLA's own collectives take what they can.
#pragma once

#include <atomic>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "csrc/base/fork.h"
#include "csrc/distributed/group.h"
#include "csrc/distributed/xla_transport.h"

namespace torch_tpu::distributed {

class TpuBackend final : public c10d::Backend {
 public:
  using Tensors = std::vector<at::Tensor>;

  // `xla` may be null.
  TpuBackend(GroupInfo info, c10::intrusive_ptr<c10d::Backend> transport,
             std::shared_ptr<XlaTransport> xla);
  ~TpuBackend() override;

  const std::string getBackendName() const override { return "tpu"; }
  c10::intrusive_ptr<Options> getBackendOptions() override { return options_; }
  bool supportsCoalescing() const override { return true; }
  void startCoalescing() override;
  c10::intrusive_ptr<c10d::Work> endCoalescing() override;
  void setTimeout(std::chrono::milliseconds timeout) override;
  void setSequenceNumberForGroup() override {}
  uint64_t getSequenceNumberForGroup() override { return group_->progress().issued; }
  c10d::ErrorType getError() override;
  void abort() override;
  void shutdown() override { end(/*in_destructor=*/false); }

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override;
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  WorkPtr allreduce_coalesced(Tensors& tensors,
                              const c10d::AllreduceCoalescedOptions& options) override;
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& options) override;
  WorkPtr allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                    const c10d::AllgatherOptions& options) override;
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input,
                          const c10d::AllgatherOptions& options) override;
  WorkPtr allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                              const c10d::AllgatherOptions& options) override;
  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::AllgatherOptions& options) override;
  WorkPtr gather(std::vector<Tensors>& outputs, Tensors& inputs,
                 const c10d::GatherOptions& options) override;
  WorkPtr scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                  const c10d::ScatterOptions& options) override;
  WorkPtr reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                         const c10d::ReduceScatterOptions& options) override;
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& options) override;
  WorkPtr reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::ReduceScatterOptions& options) override;
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                        std::vector<int64_t>& input_splits,
                        const c10d::AllToAllOptions& options) override;
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs,
                   const c10d::AllToAllOptions& options) override;
  WorkPtr send(Tensors& tensors, int to, int tag) override;
  WorkPtr recv(Tensors& tensors, int from, int tag) override;
  WorkPtr recvAnysource(Tensors& tensors, int tag) override;
  WorkPtr barrier(const c10d::BarrierOptions& options) override;
  void monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) override;

 private:
  // What every collective says about itself.
  struct Plan {
    c10d::OpType type;
    const char* op;     // "all_reduce"
    const char* title;  // for the profiler: "tpu:all_reduce"
    std::string detail;
    std::chrono::milliseconds timeout;
    Tensors reads, writes;
    bool in_place = false;  // reads are the writes
    bool local_detail = false;
    bool blocking = false;
    bool message = false, receives = false;
    bool rooted = false;  // see Collective
    int peer = -1;
    std::optional<XlaTransport::Ask> xla = std::nullopt;  // as what it may run on the devices
  };
  using Start = std::function<std::vector<WorkPtr>(Collective&)>;
  // `start` asks the transport on host memory; XLA takes the call instead where it can.
  WorkPtr issue(Plan plan, Start start);
  // What starts the plan on the devices, or `host` where they do not take it. May change what it
  // says and reads.
  Start on_devices(Plan& plan, const CollectivePtr& call, Start host);
  // The pieces for each rank go out of one flat buffer and into another, which `finish` gets.
  WorkPtr exchange(Plan plan, std::vector<int64_t> input_bytes, std::vector<int64_t> output_bytes,
                   std::function<void(Collective&, const at::Tensor& received)> finish);
  WorkPtr keep(WorkPtr work);  // for coalescing
  void end(bool in_destructor);
  std::chrono::milliseconds timeout_or_default(std::chrono::milliseconds given) const;

  const c10::intrusive_ptr<Options> options_;
  c10::intrusive_ptr<c10d::Backend> transport_;
  c10d::Backend* const inner_;  // the same; outlives us when a call hangs in it
  const std::shared_ptr<XlaTransport> xla_;
  const std::shared_ptr<Group> group_;
  std::atomic<int64_t> default_timeout_ms_;
  std::mutex coalescing_mutex_;
  bool coalescing_ = false;
  std::vector<WorkPtr> coalesced_;
  bool ended_ = false;
  const base::ForkMark made_;
};

}  // namespace torch_tpu::distributed
