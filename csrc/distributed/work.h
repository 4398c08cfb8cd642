// What a collective call returns. wait() does not hold up the host: results are values that come
// later, and whoever reads them waits. Only a barrier, a timeout given to wait(), and Debug Eager
// block.
#pragma once

#include "csrc/distributed/collective.h"

namespace torch_tpu::distributed {

class TpuWork final : public c10d::Work {
 public:
  TpuWork(int rank, c10d::OpType type, const char* title, CollectivePtr call,
          std::vector<at::Tensor> inputs, std::vector<at::Tensor> outputs,
          std::vector<Destination::Copy> copies, bool blocking);

  // After the call was issued: writes through views now where that waits for nothing, else later.
  void place_results();
  static void finish_with(const c10::intrusive_ptr<TpuWork>& work);

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  int sourceRank() const override;
  std::vector<at::Tensor> result() override { return outputs_; }
  void synchronize() override { wait(kNoTimeout); }
  bool wait(std::chrono::milliseconds timeout) override;
  void abort() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  uint64_t getSequencenumber() const override { return call_->seq; }

 private:
  void copy_results();

  const CollectivePtr call_;
  const trace::PromisePtr promise_;
  const std::vector<at::Tensor> outputs_;
  const bool blocking_;
  std::mutex copies_mutex_;
  std::vector<Destination::Copy> copies_;
  std::mutex future_mutex_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

// Several calls issued together.
class CoalescedWork final : public c10d::Work {
 public:
  CoalescedWork(int rank, std::vector<WorkPtr> works);
  bool isCompleted() override;
  bool isSuccess() const override;
  std::vector<at::Tensor> result() override;
  void synchronize() override { wait(kNoTimeout); }
  bool wait(std::chrono::milliseconds timeout) override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;

 private:
  const std::vector<WorkPtr> works_;
};

}  // namespace torch_tpu::distributed
