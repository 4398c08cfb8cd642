// The watchdog's part in finding ranks that call different collectives; see history.h.
#include "csrc/distributed/agreement.h"
#include "csrc/distributed/watchdog.h"

namespace torch_tpu::distributed {
namespace {

using namespace std::chrono_literals;

constexpr auto kAnswer = 900ms;  // how long others have to say what they called

}  // namespace

bool Watchdog::heed_alarm(Watched& watched) {
  if (watched.store_lost) return false;
  try {
    if (!watched.store->check({kAlarm})) return false;
    if (take_others_verdict(watched)) return true;
    if (!std::exchange(watched.alarmed, true)) {
      publish_history(*watched.store, watched.group->info(), watched.group->recent());
    }
  } catch (...) {
    watched.store_lost = true;
  }
  return false;
}

void Watchdog::compare_with_first(Watched& watched) {
  if (watched.store_lost || watched.group->info().rank == 0) return;
  const uint64_t issued = watched.group->progress().issued;
  if (issued == watched.compared) return;
  try {
    const auto first = read_beat(watched, 0);
    if (!first || first->marks.empty()) return;
    if (first->issued >= issued) watched.compared = issued;  // else it comes to them later
    const auto seq = watched.group->first_difference(first->marks);
    if (!seq) return;
    std::string problem = ask_everybody(watched);
    if (watched.over) return;
    if (problem.empty()) {
      const GroupInfo& info = watched.group->info();
      problem = "the ranks do not agree on the collectives of group '" + info.name +
                "' up to number " + std::to_string(*seq) + ": rank " +
                std::to_string(info.global(0)) + " (last " + first->last + ") and rank " +
                std::to_string(info.global(info.rank)) + " (last " +
                watched.group->progress().last + ") have not called the same";
    }
    end(watched, problem, "", true);
  } catch (...) {
    watched.store_lost = true;
  }
}

std::string Watchdog::ask_everybody(Watched& watched) {
  const GroupInfo& info = watched.group->info();
  for (const WatchedPtr& other : all()) {
    // Ranks of the group that are threads of this process: nobody else would answer for them.
    if (other->group->info().name != info.name || other->over) continue;
    other->alarmed = true;
    publish_history(*other->store, other->group->info(), other->group->recent());
  }
  watched.store->set(kAlarm, "1");
  const auto until = Clock::now() + kAnswer;
  while (true) {
    int missing = 0;
    std::string problem = compare_histories(*watched.store, info, missing);
    if (!problem.empty() || missing == 0 || Clock::now() > until) return problem;
    std::this_thread::sleep_for(50ms);
    beat_all();
    if (watched.store_lost || take_others_verdict(watched)) return "";
  }
}

}  // namespace torch_tpu::distributed
