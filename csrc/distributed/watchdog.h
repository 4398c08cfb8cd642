// One thread per process that looks after all groups. Each rank leaves a sign of life in the store.
// When a call fails, takes too long, or another rank reports a failure, it finds out who is to
// blame, tells the others, writes the flight recorder, and ends the group's calls with an error.
#pragma once

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <set>
#include <thread>

#include "csrc/distributed/group.h"

namespace torch_tpu::distributed {

class Watchdog {
 public:
  static Watchdog& get();

  void watch(const std::shared_ptr<Group>& group);
  // Tells the others that this rank leaves the group, which it is not to be blamed for where it has
  // called what they have.
  void forget(const Group* group);
  // The transport failed, or (final) it is already known what is wrong. Returns at once; the call
  // is settled by the watchdog.
  void report(const std::shared_ptr<Group>& group, const CollectivePtr& call,
              const std::string& text, bool final = false);
  // A thread of the transport has died, as Gloo's does when it gets more bytes than it expects; all
  // groups that wait for something fail. True when there are any.
  bool transport_died(const std::string& text);
  // Ends the thread; a rank that may host the store stays until the others have read the error.
  void stop();

 private:
  using Clock = std::chrono::steady_clock;
  // A key: there is a verdict, or what ranks have called last is wanted.
  static constexpr const char* kAlarm = "tpu/alarm";
  struct Beat {  // a sign of life, as read
    std::string host;
    int64_t pid = 0;
    uint64_t count = 0;
    uint64_t issued = 0;
    std::string last;
    std::vector<History::Mark> marks;
    // Of a rank that has left the group, which was its last sign: so many collectives it has done.
    std::optional<uint64_t> left;

    // It will never do its part in that call. Of a message nobody knows.
    bool left_before(const Collective& call) const {
      return left && !call.message && *left < call.seq;
    }
  };
  struct Watched {
    std::shared_ptr<Group> group;
    c10::intrusive_ptr<c10d::Store> store;  // a connection of our own
    std::mutex beating;                     // who leaves gives its last sign of life itself
    uint64_t beats = 0;
    std::optional<uint64_t> left;  // as in Beat
    Clock::time_point last_look;
    bool over = false;
    std::atomic<bool> store_lost = false;
    bool alarmed = false;             // our last calls are in the store
    uint64_t compared = 0;            // so many collectives of ours have been compared
    std::set<int> blamed;             // ranks in the group
    std::vector<int64_t> neighbours;  // process ids by rank, of those on this machine
  };
  using WatchedPtr = std::shared_ptr<Watched>;
  struct Report {
    std::shared_ptr<Group> group;
    CollectivePtr call;
    std::string text;
    bool final;
  };

  void run();
  void beat_all();
  void beat(Watched& watched);
  void leave(Watched& watched);
  void look(const WatchedPtr& watched);
  void handle(const Report& report);
  // Who is to blame for a call that failed: an English sentence, and the ranks.
  std::string diagnose(Watched& watched, const Collective& call, bool timed_out);
  std::optional<Beat> read_beat(Watched& watched, int rank);
  void end(Watched& watched, const std::string& why, const std::string& said, bool tell);
  bool take_others_verdict(Watched& watched);
  // Somebody wants to know what we called, or has a verdict; true when the group is over.
  bool heed_alarm(Watched& watched);
  // Whether what was called so far is what rank 0 called. Ends the group if not.
  void compare_with_first(Watched& watched);
  // Asks all ranks for their last calls: what they do not agree on, in words, or "".
  std::string ask_everybody(Watched& watched);
  // A process of the group on this machine has ended, or a rank has left without this call.
  bool somebody_is_gone(Watched& watched, const Collective& call);
  void linger();
  WatchedPtr find(const Group* group);
  std::vector<WatchedPtr> all();

  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<WatchedPtr> watched_;
  std::vector<Report> reports_;
  std::thread thread_;
  bool stopping_ = false;
  Clock::time_point last_beat_;
};

}  // namespace torch_tpu::distributed
