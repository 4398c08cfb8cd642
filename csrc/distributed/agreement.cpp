#include "csrc/distributed/agreement.h"

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <map>
#include <sstream>
#include <thread>

#include "csrc/dispatch/call/mode.h"
#include "csrc/distributed/collective.h"
#include "csrc/distributed/group.h"

namespace torch_tpu::distributed {
namespace {

// What a rank says: fingerprint, rank, and what and where it is in words.
struct Statement {
  std::string fingerprint;
  std::string rank;
  std::string text;
};

std::string in_words(const Collective& call) {
  std::string text = call.op;
  if (!call.detail.empty()) text += " (" + call.detail + ")";
  return text + call.where();
}

std::string encode(const GroupInfo& info, const Collective& call) {
  return std::to_string(call.fingerprint) + "\n" + std::to_string(info.global(info.rank)) + "\n" +
         in_words(call);
}

Statement decode(const std::string& said) {
  const size_t first = said.find('\n');
  const size_t second = said.find('\n', first + 1);
  if (first == std::string::npos || second == std::string::npos) return {};
  return {said.substr(0, first), said.substr(first + 1, second - first - 1),
          said.substr(second + 1)};
}

std::string difference(const GroupInfo& info, bool message, uint64_t seq, const Statement& mine,
                       const Statement& theirs) {
  return std::string("the ranks do not agree on ") + (message ? "message " : "collective ") +
         std::to_string(seq) + " of group '" + info.name + "': rank " + mine.rank + " calls " +
         mine.text + ", rank " + theirs.rank + " calls " + theirs.text;
}

std::string key_of(const GroupInfo& info, const Collective& call) {
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

std::string compare_with_others(c10d::Store& store, const GroupInfo& info, Collective& call,
                                const std::function<bool()>& given_up) {
  using namespace std::chrono_literals;
  const std::string key = key_of(info, call);
  const std::string mine = encode(info, call);
  const std::string first = store.compareSet(key, "", mine);
  if (const Statement theirs = decode(first);
      theirs.fingerprint != std::to_string(call.fingerprint)) {
    return difference(info, call.message, call.seq, decode(mine), theirs);
  }
  if (call.message) return "";  // the other end may come much later
  // The last to come says so: others ask only whether that is there. A count would be written with
  // each look at it, and a FileStore keeps all that was ever written.
  const std::string complete = key + "/all";
  if (store.add(key + "/n", 1) == info.size) {
    store.set(complete, "1");
    return "";
  }
  const auto until = call.issued + call.timeout;
  for (auto pause = 20us; !store.check({complete});) {
    if (given_up() || std::chrono::steady_clock::now() > until) return "";
    std::this_thread::sleep_for(pause);
    pause = std::min<std::chrono::microseconds>(pause * 2, 5ms);
  }
  return "";
}

std::string look_for_disagreement(c10d::Store& store, const GroupInfo& info, Collective& call) {
  if (call.message) return "";
  const std::string mine = encode(info, call);
  store.set("tpu/at/" + std::to_string(info.rank), std::to_string(call.seq) + "\n" + mine);
  const auto compare = [&](const std::string& said) {
    const Statement theirs = decode(said);
    if (theirs.fingerprint.empty() || theirs.fingerprint == std::to_string(call.fingerprint)) {
      return std::string();
    }
    return difference(info, call.message, call.seq, decode(mine), theirs);
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

namespace {

std::string history_key(int rank) { return "tpu/history/" + std::to_string(rank); }

// By number: a collective's fingerprint, and it in words.
using Said = std::map<uint64_t, std::pair<std::string, std::string>>;

Said decode_history(const std::string& text) {
  Said said;
  std::istringstream lines(text);
  for (std::string seq, fingerprint, words; std::getline(lines, seq) &&
                                            std::getline(lines, fingerprint) &&
                                            std::getline(lines, words);) {
    said[std::strtoull(seq.c_str(), nullptr, 10)] = {fingerprint, words};
  }
  return said;
}

}  // namespace

void publish_history(c10d::Store& store, const GroupInfo& info,
                     const std::vector<CollectivePtr>& calls) {
  std::string text;
  for (const CollectivePtr& call : calls) {
    std::string words = in_words(*call);
    std::replace(words.begin(), words.end(), '\n', ' ');
    text +=
        std::to_string(call->seq) + "\n" + std::to_string(call->fingerprint) + "\n" + words + "\n";
  }
  store.set(history_key(info.rank), text.empty() ? "\n" : text);
}

std::string compare_histories(c10d::Store& store, const GroupInfo& info, int& missing) {
  std::map<uint64_t, std::pair<int, std::pair<std::string, std::string>>> first;  // who said it
  std::string found;
  uint64_t at = std::numeric_limits<uint64_t>::max();
  missing = 0;
  for (int rank = 0; rank < info.size; ++rank) {
    const auto text = read_if_there(store, history_key(rank));
    if (!text) {
      ++missing;
      continue;
    }
    for (const auto& [seq, said] : decode_history(*text)) {
      const auto [entry, is_new] = first.try_emplace(seq, rank, said);
      if (is_new || entry->second.second.first == said.first) continue;
      if (seq < at) {
        at = seq;
        const auto& [other, others] = entry->second;
        found = difference(info, false, seq,
                           {others.first, std::to_string(info.global(other)), others.second},
                           {said.first, std::to_string(info.global(rank)), said.second});
      }
      break;
    }
  }
  return found;
}

}  // namespace torch_tpu::distributed
