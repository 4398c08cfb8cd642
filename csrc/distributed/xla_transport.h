// The transport over XLA's own collectives, for a group each of whose ranks has a device of one
// client: a collective is a program over these devices, which reads and writes device memory. The
// other transport is Gloo on host memory; a call that this one does not take goes there.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "csrc/distributed/collective.h"
#include "csrc/distributed/meeting.h"

namespace torch_tpu::distributed {

class XlaTransport : public std::enable_shared_from_this<XlaTransport> {
 public:
  struct Place {
    std::string name;  // of the group, unlike that of any other group in these processes
    int rank = 0;
    int device = 0;  // this rank's, as a number of this process
    // By rank. Where the client spans processes, global ids; else numbers of this process, of which
    // all ranks are threads.
    std::vector<int64_t> devices;
    bool spans = false;
    size_t here = 1;  // ranks in this process
  };
  // What a collective asks for, besides its tensors.
  struct Ask {
    XlaKind kind = XlaKind::kAllReduce;
    c10d::ReduceOp::RedOpType reduction = c10d::ReduceOp::SUM;
    int64_t root = 0;
  };

  explicit XlaTransport(Place place) : place_(std::move(place)) {}
  ~XlaTransport() { leave(); }

  const Place& place() const noexcept { return place_; }
  int device() const noexcept { return place_.device; }
  bool spans() const noexcept { return place_.spans; }

  // The collective as a program, or nothing: then it goes over the host, on all ranks alike. Both
  // lists empty: a barrier. A list of outputs or inputs may be empty where this rank has none.
  std::optional<XlaCollective> plan(const Ask& ask, const std::vector<at::Tensor>& reads,
                                    const std::vector<at::Tensor>& writes) const;
  // Starts it with the call's operands. The work is done when its destinations have been computed.
  // Where the compiler does not take it, `host` starts it, on all ranks alike.
  std::vector<WorkPtr> start(const XlaCollective& what, const CollectivePtr& call,
                             const std::function<std::vector<WorkPtr>(Collective&)>& host);
  // The group is over: what has been brought and not been used is dropped.
  void leave();

 private:
  std::shared_ptr<Meeting> meeting();

  const Place place_;
  std::mutex mutex_;
  // From the first call on: they need the client.
  std::vector<int64_t> ids_;
  std::shared_ptr<Meeting> meeting_;
};

// What ranks must agree on beyond what they say anyway: sizes on the other side that are not those
// one would expect. "" for usual ones.
std::string unusual_sizes(const XlaCollective& what, int rank);

}  // namespace torch_tpu::distributed
