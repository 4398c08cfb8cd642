// Who is to blame for a call that failed or takes too long: what the watchdog says of the other
// ranks. It says only what is true, or how it knows.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <thread>

#include "csrc/distributed/processes.h"
#include "csrc/distributed/watchdog.h"

namespace torch_tpu::distributed {
namespace {

using namespace std::chrono_literals;

constexpr auto kSilent = 1200ms;  // a rank that gave no sign for so long is taken for dead

}  // namespace

std::string Watchdog::diagnose(Watched& watched, const Collective& call, bool timed_out) {
  const GroupInfo& info = watched.group->info();
  const auto seconds = [](auto time) {
    char text[32];
    std::snprintf(text, sizeof text, "%.1f s", std::chrono::duration<double>(time).count());
    return std::string(text);
  };
  const auto started = Clock::now();
  std::vector<std::optional<Beat>> first(static_cast<size_t>(info.size));
  std::vector<std::optional<Beat>> latest = first;
  std::set<int> left, gone, stopped, silent;
  try {
    bool begun = false;
    do {
      if (begun) std::this_thread::sleep_for(100ms);
      beat_all();
      if (watched.store_lost) throw std::runtime_error("store");
      if (take_others_verdict(watched)) return "";
      silent.clear();
      for (int rank = 0; rank < info.size; ++rank) {
        if (rank == info.rank) continue;
        auto& beat = latest[static_cast<size_t>(rank)];
        beat = read_beat(watched, rank);
        if (!beat) continue;
        auto& before = first[static_cast<size_t>(rank)];
        if (!before) before = beat;
        if (beat->left) {
          if (call.message ? rank == call.peer : beat->left_before(call)) left.insert(rank);
          continue;
        }
        if (beat->host == machine()) {
          const Process process = state_of(beat->pid);
          if (process == Process::kGone) gone.insert(rank);
          if (process == Process::kStopped) stopped.insert(rank);
        }
        if (beat->count == before->count) silent.insert(rank);
      }
      begun = true;
    } while (left.empty() && gone.empty() && stopped.empty() && !silent.empty() &&
             Clock::now() - started < kSilent);
  } catch (...) {
    watched.store_lost = true;
    const char* agent = std::getenv("TORCHELASTIC_USE_AGENT_STORE");
    if (info.rank != 0 && (agent == nullptr || std::string(agent) != "True")) {
      watched.blamed.insert(0);
      return "rank " + std::to_string(info.global(0)) +
             ", which hosts the store, cannot be reached";
    }
    return "the store cannot be reached";
  }
  // What a rank that lives, or has said good-bye, told of itself is true. One that is gone may have
  // called more since its last sign of life: at least what cannot be done without it.
  const Group::Progress ours = watched.group->progress();
  const auto last_of = [&](int rank) {
    const auto& beat = latest[static_cast<size_t>(rank)];
    const bool told =
        beat && silent.count(rank) == 0 && gone.count(rank) == 0 && stopped.count(rank) == 0;
    uint64_t seq = beat ? beat->issued : 0;
    std::string last = beat ? beat->last : "";
    if (!told && ours.met > seq) {
      seq = ours.met;
      last = ours.met_last;
    }
    if (seq == 0) {
      return std::string(told ? " (it has called no collective)"
                              : " (no collective is known that it has called)");
    }
    return (told ? " (its last collective was " : " (the last collective known of it was ") +
           std::to_string(seq) + ", " + last + ")";
  };
  const auto each = [&](const std::set<int>& ranks, const std::string& what) {
    std::string text;
    for (int rank : ranks) {
      text += (text.empty() ? "rank " : "; rank ") + std::to_string(info.global(rank)) + " " +
              what + last_of(rank);
    }
    watched.blamed = ranks;
    return text;
  };
  if (!left.empty()) return each(left, "has left the group");
  if (!gone.empty()) return each(gone, "died: its process has ended");
  if (!stopped.empty()) return each(stopped, "is stopped");
  if (!silent.empty()) return each(silent, "gives no sign of life");
  if (!call.message) {
    try {
      std::string problem = ask_everybody(watched);
      if (!problem.empty() || watched.over) return problem;
    } catch (...) {
      watched.store_lost = true;
    }
  }
  std::set<int> late;
  for (int rank = 0; rank < info.size; ++rank) {
    const auto& beat = latest[static_cast<size_t>(rank)];
    if (rank != info.rank && (!beat || beat->issued < call.seq)) late.insert(rank);
  }
  const std::string after =
      timed_out ? "timed out after " + seconds(Clock::now() - call.issued) + ": " : "";
  if (call.message) {
    if (call.peer >= 0) watched.blamed = {call.peer};
    return after + (call.peer >= 0 ? "rank " + std::to_string(info.global(call.peer)) +
                                         " did not do its part" + last_of(call.peer)
                                   : std::string("no rank sent a message"));
  }
  if (!late.empty()) return after + each(late, "has not called it");
  const bool all_here = std::none_of(latest.begin(), latest.end(),
                                     [](const auto& beat) { return beat && beat->left; });
  return after + (all_here ? "all ranks are alive and have called it" : "all ranks have called it");
}

}  // namespace torch_tpu::distributed
