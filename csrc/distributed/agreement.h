// Rank programs may differ; collectives must not. Before a collective is used for the first time
// (in this place of the sequence of collectives), the ranks of the group compare what they are
// about to do, through the store. Later uses touch no store: the watchdogs compare hashes over all
// that was called (history.h), and when those differ, tell each other their last calls here.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "csrc/distributed/collective.h"

namespace torch_tpu::distributed {

struct GroupInfo;

// Waits until all ranks said the same, at most until the call's deadline (then "": the watchdog
// knows who is missing) or until `given_up`. Else what they do not agree on, in words.
std::string compare_with_others(c10d::Store& store, const GroupInfo& info, Collective& call,
                                const std::function<bool()>& given_up);

// For a call that has been waiting for long: whether another rank is waiting in a different one.
std::string look_for_disagreement(c10d::Store& store, const GroupInfo& info, Collective& call);

// Leaves our last collectives in the store for the others.
void publish_history(c10d::Store& store, const GroupInfo& info,
                     const std::vector<CollectivePtr>& calls);
// The first collective that ranks called differently, in words, and in `missing` how many ranks
// have not published yet. "": none that all of them still know.
std::string compare_histories(c10d::Store& store, const GroupInfo& info, int& missing);

// Reads a key without waiting for it to appear.
std::optional<std::string> read_if_there(c10d::Store& store, const std::string& key);

}  // namespace torch_tpu::distributed
