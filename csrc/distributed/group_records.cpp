// What a group tells about its calls, for error messages and the watchdog.
#include <algorithm>

#include "csrc/distributed/group.h"

namespace torch_tpu::distributed {

std::string Group::describe(const GroupInfo& info, const Collective& call) {
  std::string text = "[" + call.op + "] ";
  if (call.message) {
    text += call.peer < 0 ? "message " + std::to_string(call.seq) + " from anyone"
                          : "message " + std::to_string(call.seq) +
                                (call.receives ? " from rank " : " to rank ") +
                                std::to_string(info.global(call.peer));
  } else {
    text += "collective " + std::to_string(call.seq);
  }
  text += " of group '" + info.name + "' (rank " + std::to_string(info.global(info.rank)) + " of " +
          std::to_string(info.size);
  if (!call.detail.empty()) text += ", " + call.detail;
  return text + ")" + call.where();
}

Group::Progress Group::progress() {
  std::lock_guard lock(mutex_);
  Progress progress = progress_;
  const auto words = [](const Collective* call) {
    return call == nullptr ? std::string() : call->op + " " + call->detail;
  };
  progress.last = words(history_.last());
  progress.met_last = words(history_.at(progress.met));
  progress.done = progress.issued;
  for (const auto& [record, call] : outstanding_) {
    if (!call->message) progress.done = std::min(progress.done, call->seq - 1);
  }
  return progress;
}

std::vector<History::Mark> Group::marks() {
  std::lock_guard lock(mutex_);
  return history_.marks();
}

std::optional<uint64_t> Group::first_difference(const std::vector<History::Mark>& theirs) {
  std::lock_guard lock(mutex_);
  return history_.first_difference(theirs);
}

std::vector<CollectivePtr> Group::recent() {
  std::lock_guard lock(mutex_);
  return history_.calls();
}

std::vector<CollectivePtr> Group::outstanding() {
  std::lock_guard lock(mutex_);
  std::vector<CollectivePtr> calls;
  for (const auto& [record, call] : outstanding_) calls.push_back(call);
  return calls;
}

}  // namespace torch_tpu::distributed
