#include "csrc/distributed/watchdog.h"

#include <cstdlib>
#include <exception>
#include <sstream>

#include <pthread.h>
#include <unistd.h>

#include "csrc/base/fork.h"
#include "csrc/base/signals.h"
#include "csrc/distributed/agreement.h"
#include "csrc/distributed/flight.h"
#include "csrc/distributed/processes.h"

namespace torch_tpu::distributed {
namespace {

using namespace std::chrono_literals;

constexpr auto kBeat = 300ms;     // between signs of life
constexpr auto kLook = 500ms;     // between looks at calls that are under way
constexpr auto kLong = 1000ms;    // a call that takes this long is looked at more closely
constexpr auto kLinger = 2000ms;  // how long the store's host waits for the others at the end
constexpr const char* kVerdict = "tpu/verdict";
constexpr const char* kSomebodyLeft = "tpu/left";

std::string beat_key(int rank) { return "tpu/beat/" + std::to_string(rank); }
std::string seen_key(int rank) { return "tpu/seen/" + std::to_string(rank); }

// Gloo's thread throws when it gets more bytes than its rank expects, and nobody catches that: the
// process would end without a word. The thread is lost, but the others can still say why.
std::terminate_handler before_ours = nullptr;
[[noreturn]] void on_terminate() {
  char name[32] = "";
  pthread_getname_np(pthread_self(), name, sizeof name);
  if (std::string_view(name).starts_with("gloo")) {
    std::string text = "a thread of the transport has died";
    if (const std::exception_ptr error = std::current_exception()) text = text_of(error);
    if (Watchdog::get().transport_died(text)) {
      while (true) std::this_thread::sleep_for(1h);  // the process ends without it
    }
  }
  if (before_ours != nullptr) before_ours();
  std::abort();
}

}  // namespace

Watchdog& Watchdog::get() {
  static base::PerProcess<Watchdog> watchdog;  // its thread may outlive static destructors
  return watchdog.get();
}

void Watchdog::watch(const std::shared_ptr<Group>& group) {
  auto watched = std::make_shared<Watched>();
  watched->group = group;
  watched->store = group->info().store->clone();
  beat(*watched);  // before anybody can be missing us
  std::lock_guard lock(mutex_);
  watched_.push_back(std::move(watched));
  stopping_ = false;
  if (!thread_.joinable()) {
    const base::WithoutSignals for_it;
    thread_ = std::thread([this] { run(); });
    if (before_ours == nullptr) before_ours = std::set_terminate(&on_terminate);
  }
}

void Watchdog::forget(const Group* group) {
  const WatchedPtr item = find(group);
  if (!item || item->over) return;
  leave(*item);
  std::lock_guard lock(mutex_);
  std::erase(watched_, item);
}

void Watchdog::leave(Watched& watched) {
  {
    const std::lock_guard lock(watched.beating);
    watched.left = watched.group->progress().done;
  }
  beat(watched);
  if (watched.store_lost) return;
  try {
    watched.store->set(kSomebodyLeft, "1");
  } catch (...) {
    watched.store_lost = true;
  }
}

void Watchdog::report(const std::shared_ptr<Group>& group, const CollectivePtr& call,
                      const std::string& text, bool final) {
  {
    std::lock_guard lock(mutex_);
    if (thread_.joinable() && !stopping_) {
      reports_.push_back({group, call, text, final});
      wake_.notify_one();
      return;
    }
  }
  group->fail_all([&](const Collective* other) {
    return other == nullptr ? text : Group::describe(group->info(), *other) + ": " + text;
  });
}

Watchdog::WatchedPtr Watchdog::find(const Group* group) {
  std::lock_guard lock(mutex_);
  for (const WatchedPtr& item : watched_) {
    if (item->group.get() == group) return item;
  }
  return nullptr;
}

std::vector<Watchdog::WatchedPtr> Watchdog::all() {
  std::lock_guard lock(mutex_);
  return watched_;
}

void Watchdog::run() {
  pthread_setname_np(pthread_self(), "tpu_watchdog");
  while (true) {
    std::vector<Report> reports;
    {
      std::unique_lock lock(mutex_);
      wake_.wait_for(lock, kBeat, [this] { return stopping_ || !reports_.empty(); });
      if (stopping_) return;
      reports.swap(reports_);
    }
    beat_all();
    for (const Report& report : reports) handle(report);
    for (const WatchedPtr& watched : all()) look(watched);
  }
}

void Watchdog::beat_all() {
  if (Clock::now() - last_beat_ < kBeat - 20ms) return;
  last_beat_ = Clock::now();
  for (const WatchedPtr& watched : all()) beat(*watched);
}

void Watchdog::beat(Watched& watched) {
  if (watched.store_lost) return;
  const std::lock_guard lock(watched.beating);
  const Group::Progress progress = watched.group->progress();
  const GroupInfo& info = watched.group->info();
  try {
    watched.store->set(beat_key(info.rank),
                       machine() + "\n" + std::to_string(getpid()) + "\n" +
                           std::to_string(++watched.beats) + "\n" +
                           std::to_string(progress.issued) + "\n" + progress.last + "\n" +
                           encode_marks(watched.group->marks()) + "\n" +
                           (watched.left ? std::to_string(*watched.left) : ""));
  } catch (...) {
    watched.store_lost = true;
  }
}

std::optional<Watchdog::Beat> Watchdog::read_beat(Watched& watched, int rank) {
  const auto text = read_if_there(*watched.store, beat_key(rank));
  if (!text) return std::nullopt;
  Beat beat;
  std::istringstream lines(*text);
  std::string line;
  std::getline(lines, beat.host);
  if (std::getline(lines, line)) beat.pid = std::atoll(line.c_str());
  if (std::getline(lines, line)) beat.count = std::strtoull(line.c_str(), nullptr, 10);
  if (std::getline(lines, line)) beat.issued = std::strtoull(line.c_str(), nullptr, 10);
  std::getline(lines, beat.last);
  if (std::getline(lines, line)) beat.marks = decode_marks(line);
  if (std::getline(lines, line)) beat.left = std::strtoull(line.c_str(), nullptr, 10);
  return beat;
}

void Watchdog::look(const WatchedPtr& item) {
  Watched& watched = *item;
  if (watched.over || Clock::now() - watched.last_look < kLook) return;
  watched.last_look = Clock::now();
  if (heed_alarm(watched)) return;
  compare_with_first(watched);
  if (watched.over) return;
  const std::vector<CollectivePtr> calls = watched.group->outstanding();
  if (calls.empty()) return;
  Collective& oldest = *calls.front();
  const auto age = Clock::now() - oldest.issued;
  if (age > oldest.timeout + 200ms) {
    handle({watched.group, calls.front(), "it timed out", false});
    return;
  }
  if (age < kLong || watched.store_lost) return;
  try {
    if (take_others_verdict(watched)) return;
    if (somebody_is_gone(watched, oldest)) {
      handle({watched.group, calls.front(), "", false});
      return;
    }
    const std::string problem =
        look_for_disagreement(*watched.store, watched.group->info(), oldest);
    if (!problem.empty()) end(watched, problem, "", true);
  } catch (...) {
    watched.store_lost = true;
  }
}

bool Watchdog::transport_died(const std::string& text) {
  bool any = false;
  for (const WatchedPtr& watched : all()) {
    const std::vector<CollectivePtr> calls = watched->group->outstanding();
    if (calls.empty()) continue;
    report(watched->group, calls.front(), text);
    any = true;
  }
  return any;
}

bool Watchdog::somebody_is_gone(Watched& watched, const Collective& call) {
  const GroupInfo& info = watched.group->info();
  watched.neighbours.resize(static_cast<size_t>(info.size), -1);
  const bool somebody_left = watched.store->check({kSomebodyLeft});
  for (int rank = 0; rank < info.size; ++rank) {
    if (rank == info.rank) continue;
    int64_t& pid = watched.neighbours[static_cast<size_t>(rank)];
    if (pid < 0 || somebody_left) {  // not asked yet; 0: elsewhere, or left
      const auto beat = read_beat(watched, rank);
      if (beat && beat->left_before(call)) return true;
      if (beat) pid = beat->host == machine() && !beat->left ? beat->pid : 0;
    }
    if (pid > 0 && state_of(pid) == Process::kGone) return true;
  }
  return false;
}

bool Watchdog::take_others_verdict(Watched& watched) {
  const auto verdict = read_if_there(*watched.store, kVerdict);
  if (!verdict) return false;
  const size_t end_of_ranks = verdict->find('\n');
  std::istringstream ranks(verdict->substr(0, end_of_ranks));
  for (int rank; ranks >> rank;) watched.blamed.insert(rank);
  end(watched, verdict->substr(end_of_ranks + 1), "", false);
  return true;
}

void Watchdog::handle(const Report& report) {
  const WatchedPtr watched = find(report.group.get());
  if (!watched || watched->over) {
    // A straggler of a group that is over already: settled with the others.
    report.group->abort(report.text);
    return;
  }
  if (report.final) {
    end(*watched, report.text, "", true);
    return;
  }
  const auto age = Clock::now() - report.call->issued;
  const bool timed_out = age >= report.call->timeout - 50ms;
  const std::string why = diagnose(*watched, *report.call, timed_out);
  if (!watched->over) end(*watched, why, report.text, true);
}

void Watchdog::end(Watched& watched, const std::string& why, const std::string& said, bool tell) {
  if (watched.over) return;
  watched.over = true;
  const GroupInfo& info = watched.group->info();
  if (!watched.store_lost) {
    try {
      if (tell) {
        std::string ranks;
        for (int rank : watched.blamed) ranks += std::to_string(rank) + " ";
        watched.store->compareSet(kVerdict, "", ranks + "\n" + why);
        watched.store->set(kAlarm, "1");
      }
      watched.store->set(seen_key(info.rank), "1");
    } catch (...) {
      watched.store_lost = true;
    }
  }
  watched.group->fail_all([&](const Collective* call) {
    std::string text = call != nullptr ? Group::describe(info, *call) + ": " + why
                                       : "group '" + info.name + "' has failed: " + why;
    if (!said.empty()) text += ". The transport said: " + said;
    return text;
  });
  Flight::get().dump(why);
}

void Watchdog::linger() {
  for (const WatchedPtr& watched : all()) {
    const GroupInfo& info = watched->group->info();
    if (!watched->over || watched->store_lost || info.rank != 0) continue;
    const auto until = Clock::now() + kLinger;
    try {
      for (int rank = 1; rank < info.size && Clock::now() < until;) {
        if (watched->blamed.count(rank) != 0 || watched->store->check({seen_key(rank)})) {
          ++rank;
        } else {
          std::this_thread::sleep_for(50ms);
        }
      }
    } catch (...) {
      watched->store_lost = true;
    }
  }
}

void Watchdog::stop() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
    wake_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
  for (const WatchedPtr& watched : all()) {
    if (!watched->over) leave(*watched);
    // Nobody looks after what is still under way; waiting for it could take for ever.
    if (!watched->group->outstanding().empty()) watched->group->abort("the process ends");
  }
  linger();
  std::lock_guard lock(mutex_);
  watched_.clear();
  reports_.clear();
}

}  // namespace torch_tpu::distributed
