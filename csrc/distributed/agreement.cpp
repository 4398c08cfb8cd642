#include "csrc/distributed/agreement.h"

#include <algorithm>
#include <thread>

#include "csrc/dispatch/mode.h"
#include "csrc/distributed/call.h"
#include "csrc/distributed/group.h"

namespace torch_tpu::distributed {
namespace {

// What a rank says: fingerprint, rank, and what and where it is in words.
struct Statement {
  std::string fingerprint;
  std::string rank;
  std::string text;
};

std::string encode(const GroupInfo& info, Call& call) {
  if (call.site.empty()) call.site = dispatch::describe(call.line);
  std::string text = call.op;
  if (!call.detail.empty()) text += " (" + call.detail + ")";
  if (!call.site.empty()) text += " at " + call.site;
  return std::to_string(call.fingerprint) + "\n" + std::to_string(info.global(info.rank)) + "\n" +
         text;
}

Statement decode(const std::string& said) {
  const size_t first = said.find('\n');
  const size_t second = said.find('\n', first + 1);
  if (first == std::string::npos || second == std::string::npos) return {};
  return {said.substr(0, first), said.substr(first + 1, second - first - 1),
          said.substr(second + 1)};
}

std::string difference(const GroupInfo& info, const Call& call, const Statement& mine,
                       const Statement& theirs) {
  return std::string("the ranks do not agree on ") + (call.message ? "message " : "collective ") +
         std::to_string(call.seq) + " of group '" + info.name + "': rank " + mine.rank + " calls " +
         mine.text + ", rank " + theirs.rank + " calls " + theirs.text;
}

std::string key_of(const GroupInfo& info, const Call& call) {
  if (!call.message) return "tpu/agree/" + std::to_string(call.seq);
  const int from = call.receives ? call.peer : info.rank;
  const int to = call.receives ? info.rank : call.peer;
  return "tpu/message/" + std::to_string(from) + "-" + std::to_string(to) + "/" +
         std::to_string(call.seq);
}

}  // namespace

std::optional<std::string> read_if_there(c10d::Store& store, const std::string& key) {
  if (!store.check({key})) return std::nullopt;
  return store.get_to_str(key);
}

std::string compare_with_others(c10d::Store& store, const GroupInfo& info, Call& call,
                                const std::function<bool()>& given_up) {
  using namespace std::chrono_literals;
  const std::string key = key_of(info, call);
  const std::string mine = encode(info, call);
  const std::string first = store.compareSet(key, "", mine);
  if (const Statement theirs = decode(first);
      theirs.fingerprint != std::to_string(call.fingerprint)) {
    return difference(info, call, decode(mine), theirs);
  }
  if (call.message) return "";  // the other end may come much later
  const std::string count = key + "/n";
  int64_t here = store.add(count, 1);
  const auto until = call.issued + call.timeout;
  for (auto pause = 20us; here < info.size; here = store.add(count, 0)) {
    if (given_up() || std::chrono::steady_clock::now() > until) return "";
    std::this_thread::sleep_for(pause);
    pause = std::min<std::chrono::microseconds>(pause * 2, 5ms);
  }
  return "";
}

std::string look_for_disagreement(c10d::Store& store, const GroupInfo& info, Call& call) {
  if (call.message) return "";
  const std::string mine = encode(info, call);
  store.set("tpu/at/" + std::to_string(info.rank), std::to_string(call.seq) + "\n" + mine);
  const auto compare = [&](const std::string& said) {
    const Statement theirs = decode(said);
    if (theirs.fingerprint.empty() || theirs.fingerprint == std::to_string(call.fingerprint)) {
      return std::string();
    }
    return difference(info, call, decode(mine), theirs);
  };
  if (const auto said = read_if_there(store, key_of(info, call))) {
    if (std::string text = compare(*said); !text.empty()) return text;
  }
  for (int rank = 0; rank < info.size; ++rank) {
    if (rank == info.rank) continue;
    const auto said = read_if_there(store, "tpu/at/" + std::to_string(rank));
    if (!said) continue;
    const size_t end = said->find('\n');
    if (end == std::string::npos || said->substr(0, end) != std::to_string(call.seq)) continue;
    if (std::string text = compare(said->substr(end + 1)); !text.empty()) return text;
  }
  return "";
}

}  // namespace torch_tpu::distributed
