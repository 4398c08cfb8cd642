// The life of a group's calls: they start in order once their inputs are there, on the calling
// thread where that is possible at once, else on the group's own. No lock is held while waiting.
// That thread owns the group until it ends, which `stop` asks for: so the group is never destroyed
// under it, and nobody waits for it.
#pragma once

#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <unordered_set>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "csrc/distributed/collective.h"
#include "csrc/distributed/history.h"

namespace torch_tpu::distributed {

struct GroupInfo {
  std::string name;
  int rank = 0;  // in the group
  int size = 1;
  std::vector<int64_t> ranks;  // global, by rank in the group
  c10::intrusive_ptr<c10d::Store> store;
  std::chrono::milliseconds timeout{0};

  int64_t global(int rank) const;
};

class Group : public std::enable_shared_from_this<Group> {
 public:
  explicit Group(GroupInfo info);

  const GroupInfo& info() const noexcept { return info_; }

  // Counts, records and starts the call, or queues it. Throws when the group has failed before.
  void issue(const CollectivePtr& call);

  // Throws what the group failed with, if it has.
  void check();
  // Waits for all calls; then no more may come. A signal ends the wait (base/interrupt.h), and the
  // group is as it was; not so in a destructor, which must not throw.
  void shutdown(bool in_destructor);
  // Ends the group's thread once its queue is empty. Does not wait.
  void stop();
  // Fails all calls, now and later.
  void abort(const std::string& reason);
  bool failed();

  // For the watchdog.
  struct Progress {
    uint64_t issued = 0;
    uint64_t completed = 0;
    std::string last;  // "all_reduce f32 [4]"
    // The last collective that was done here and cannot be before every rank has called it.
    uint64_t met = 0;
    std::string met_last;  // in words, as above
    uint64_t done = 0;     // all up to here are
  };
  Progress progress();
  // Whatever ranks have called so far must have been the same; see history.h.
  std::vector<History::Mark> marks();
  std::optional<uint64_t> first_difference(const std::vector<History::Mark>& theirs);
  std::vector<CollectivePtr> recent();
  std::vector<CollectivePtr> outstanding();
  // Ends every call with an error made for it, and the group with it.
  void fail_all(const std::function<std::string(const Collective*)>& text);

  static std::string describe(const GroupInfo& info, const Collective& call);

 private:
  void start_thread();  // unless it runs; under order_
  void run_queue();
  // Under order_. What it returns is to be called without: it may end the call, and who waits for
  // that may call or stop this group.
  [[nodiscard]] std::function<void()> start(const CollectivePtr& call);
  bool await_sources(const CollectivePtr& call);
  bool await_turn(const CollectivePtr& call);
  // Compares with the other ranks; false when the call failed.
  bool agree(const CollectivePtr& call);
  void complete(const CollectivePtr& call, std::exception_ptr error, bool of_transport);
  void settle(const CollectivePtr& call, std::exception_ptr error);
  c10d::Store& store();  // a connection of our own, so that nobody waits for us
  std::exception_ptr failure();

  const GroupInfo info_;

  std::mutex order_;  // of starting calls; taken before mutex_
  std::deque<CollectivePtr> queue_;
  std::condition_variable queued_;  // with order_
  bool running_ = false;            // the thread; with order_
  bool stopping_ = false;

  std::mutex mutex_;
  std::map<uint64_t, CollectivePtr> outstanding_;  // by record
  std::condition_variable settled_;
  Progress progress_;
  History history_;
  std::exception_ptr failure_;

  uint64_t seq_ = 0;
  std::map<int, uint64_t> messages_;  // per peer: sent at 2 * peer, received at 2 * peer + 1
  int from_anyone_ = 0;               // messages without a source that have not come
  uint64_t previous_ = 0;             // fingerprint of the collective before
  std::unordered_set<uint64_t> agreed_;
  c10::intrusive_ptr<c10d::Store> store_;
};

// c10::DistBackendError, which Python sees as torch.distributed.DistBackendError.
std::exception_ptr make_error(const std::string& text);
std::string text_of(const std::exception_ptr& error);

}  // namespace torch_tpu::distributed
