#include "csrc/dispatch/report/causes.h"

#include <algorithm>
#include <cstdlib>
#include <deque>
#include <mutex>
#include <unordered_map>

#include "csrc/base/fork.h"
#include "csrc/base/hash.h"
#include "csrc/base/journal.h"

namespace torch_tpu::dispatch {
namespace {

namespace journal = base::journal;

// A process that never settles must not fill the memory.
constexpr size_t kMaxKnown = 65536;
constexpr size_t kMaxCauses = 4096;
constexpr size_t kCallsPerSite = 128;
constexpr size_t kMaxValues = 64;
constexpr int kFirstSteps = 4;

struct Call {
  WordsPtr key;
  uint64_t step = 0;
};
struct Known {
  KnownCause cause;
  std::shared_ptr<const std::string> where;
};

// Where a step is: what its calls had in common so far.
struct Step {
  uint64_t number = 0;
  CauseId change = kNoCause;
  CauseId beginning = kNoCause;
  uint64_t changed_site = 0;           // of the call that showed the change
  std::pair<uint64_t, uint64_t> pair;  // of sizes, as the key has them
};

struct State {
  std::mutex mutex;
  std::deque<Cause> all;                                 // by id
  std::unordered_map<uint64_t, std::deque<Call>> sites;  // newest first
  std::unordered_map<uint64_t, Known> known;             // by identity
  std::unordered_map<uint64_t, CauseId> changes;         // by site and field
  std::unordered_map<uint64_t, CauseId> others;          // by line and kind
  Step step;
  // Whether the last call with parameters was a first one: a model's layers come one after another
  // from one line, and an op between them has other sizes because the layer is another one. Holds
  // for a few steps, as a first one may have reads within.
  bool first = false;
  int first_steps = 0;
  uint64_t serial = 0;
};

State& state() {
  static auto* made = [] {
    auto* all = new State();  // leaked: threads may write at exit
    base::hold_while_forking(all->mutex);
    return all;
  }();
  return *made;
}

// A step ends where the host reads or waits: what comes after is the next one.
uint64_t step_number() noexcept {
  using journal::Cut;
  uint64_t number = journal::count_of(journal::Kind::kHostRead).events;
  for (const Cut cut : {Cut::kSynchronize, Cut::kEvent, Cut::kUserFlush, Cut::kCompiledCall}) {
    number += journal::cuts(cut);
  }
  return number;
}

struct Distance {
  size_t words = SIZE_MAX;             // that differ
  std::pair<uint64_t, uint64_t> pair;  // the first of them
};

Distance distance(const Words& before, const Words& after) {
  Distance out;
  if (before.size() != after.size()) return out;
  out.words = 0;
  for (size_t i = 0; i < before.size(); ++i) {
    if (before[i] == after[i]) continue;
    if (out.words++ == 0) out.pair = {before[i], after[i]};
  }
  return out;
}

// The call from the same line that differs least. Among equals one whose size changed as others
// did in this step, then one of an earlier step, then the latest.
const Call* nearest_call(const std::deque<Call>& calls, const Words& key, const Step& step) {
  const Call* best = nullptr;
  size_t fewest = 0;
  int rank = 0;
  for (const Call& call : calls) {
    const Distance far = distance(*call.key, key);
    const int good =
        (step.change != kNoCause && far.pair == step.pair ? 2 : 0) + (call.step != step.number);
    if (best != nullptr && (far.words > fewest || (far.words == fewest && good <= rank))) continue;
    best = &call;
    fewest = far.words;
    rank = good;
  }
  return best;
}

// Differences that come by themselves in a second step, and calls of another kind from one line:
// there is nothing to be done about them.
bool is_harmless(const Difference& difference) {
  const std::string& label = difference.label;
  return label.ends_with(".donated") || label.ends_with(".view begins") ||
         label.ends_with(".view") || label.ends_with(".dim()");
}

CauseId add(State& all, Cause cause) {
  if (all.all.size() >= kMaxCauses) return static_cast<CauseId>(all.all.size() - 1);
  all.all.push_back(std::move(cause));
  return static_cast<CauseId>(all.all.size() - 1);
}

// "file.py:12 in train" of "file.py:12 in train: loss = f(x)".
std::string_view function_of(std::string_view where) {
  const size_t in = where.find(" in ");
  return in == where.npos ? where : where.substr(0, where.find(": ", in));
}

// By file and function, without the line: a step has many first calls.
uint64_t function_hash(std::string_view where) {
  const std::string_view function = function_of(where);
  const size_t in = function.find(" in ");
  if (in == function.npos) return base::hash_bytes(function);
  const size_t line = function.rfind(':', in);
  return base::hash_combine(base::hash_bytes(function.substr(0, line)),
                            base::hash_bytes(function.substr(in)));
}

CauseId other_cause(State& all, Cause::Kind kind, const std::string& name, const std::string& where,
                    bool graph) {
  const uint64_t site = base::hash_combine(function_hash(where), static_cast<uint64_t>(kind));
  const auto [at, fresh] = all.others.try_emplace(site, kNoCause);
  if (fresh) {
    Cause cause;
    cause.kind = kind;
    cause.name = name;
    cause.where = where;
    cause.graph = graph;
    at->second = add(all, std::move(cause));
  }
  return at->second;
}

void add_value(Cause& cause, const std::string& value) {
  if (cause.values.size() >= kMaxValues) return;
  if (std::find(cause.values.begin(), cause.values.end(), value) == cause.values.end()) {
    cause.values.push_back(value);
    cause.value_waited.push_back(0);
  }
}

CauseId change_cause(State& all, const NewCall& call, uint64_t site, const Change& change,
                     std::pair<uint64_t, uint64_t> pair) {
  Step& step = all.step;
  const uint64_t field = base::hash_combine(site, base::hash_bytes(change.difference.label));
  const auto found = all.changes.find(field);
  const bool again = step.changed_site == site;  // the next turn of a loop without reads
  if (step.change != kNoCause && !again) {
    if (found == all.changes.end()) all.changes.emplace(field, step.change);
    return step.change;
  }
  if (found == all.changes.end()) {
    Cause cause;
    cause.kind = Cause::Kind::kChange;
    cause.graph = call.graph;
    cause.where = call.shown;
    cause.name = call.name;
    step.change = add(all, std::move(cause));
    all.changes.emplace(field, step.change);
  } else {
    step.change = found->second;
  }
  step.changed_site = site;
  step.pair = pair;
  Cause& cause = all.all[step.change];
  // Another op of the family may show it first this time: the field of the first one counts.
  if (cause.change.label.empty() || cause.change.label == change.difference.label) {
    cause.change = change.difference;
    cause.rank = change.rank;
    add_value(cause, change.difference.before);
    add_value(cause, change.difference.after);
  }
  return step.change;
}

CauseId first_cause(State& all, const NewCall& call) {
  Step& step = all.step;
  if (step.beginning == kNoCause) {
    step.beginning = other_cause(all, Cause::Kind::kFirst, call.name, call.shown, call.graph);
  }
  return step.beginning;
}

}  // namespace

Explained explain_call(const NewCall& call, const Compare& compare) {
  State& all = state();
  const uint64_t number = step_number();
  const std::lock_guard lock(all.mutex);
  if (all.step.number != number) {
    all.step = {};
    all.step.number = number;
    if (all.first_steps > 0 && --all.first_steps == 0) all.first = false;
  }
  const uint64_t line = base::hash_combine(call.what, base::hash_bytes(call.where));
  const uint64_t site = base::hash_combine(line, call.parameters);
  if (all.sites.size() > kMaxKnown) all.sites.clear();
  if (all.known.size() > kMaxKnown) all.known.clear();
  std::deque<Call>& calls = all.sites[site];
  Explained out;
  const Call* near = nearest_call(calls, *call.key, all.step);
  if (near != nullptr) out.nearest = near->key;
  const bool first = near == nullptr || (call.parameters == 0 && !call.graph && all.first);
  std::optional<Change> change;
  if (!first) change = compare(*near->key, *call.key);
  // The same parameters with another size of the data: not the first time. With other strides it
  // may be: layers alike, the data of one of them a view.
  const bool resized = change && change->difference.label.find(".shape[") != std::string::npos;
  if (call.parameters != 0 && (first || resized)) {
    all.first = first;
    all.first_steps = kFirstSteps;
  }
  if (change && !is_harmless(change->difference)) {
    out.cause = change_cause(all, call, site, *change, distance(*near->key, *call.key).pair);
  } else {
    out.cause = first_cause(all, call);
  }
  Cause& cause = all.all[out.cause];
  ++cause.calls;
  cause.ops.insert(call.name);
  calls.push_front({call.key, number});
  if (calls.size() > kCallsPerSite) calls.pop_back();
  all.known[call.identity] = {{out.cause, ++all.serial},
                              std::make_shared<const std::string>(call.shown)};
  return out;
}

KnownCause cause_of(uint64_t identity) noexcept {
  State& all = state();
  const std::lock_guard lock(all.mutex);
  const auto at = all.known.find(identity);
  return at == all.known.end() ? KnownCause{} : at->second.cause;
}

std::string line_of(uint64_t identity) {
  State& all = state();
  const std::lock_guard lock(all.mutex);
  const auto at = all.known.find(identity);
  return at == all.known.end() ? std::string() : *at->second.where;
}

CauseId unexplained(Cause::Kind kind, const std::string& name, const std::string& where) {
  State& all = state();
  const std::lock_guard lock(all.mutex);
  return other_cause(all, kind, name, where, false);
}

Cause charge(CauseId cause, uint64_t programs, double waited, double compiled) {
  State& all = state();
  const std::lock_guard lock(all.mutex);
  Cause& charged = all.all.at(cause);
  charged.programs += programs;
  charged.waited += waited;
  charged.compiled += compiled;
  for (size_t i = 0; i < charged.values.size(); ++i) {
    if (charged.values[i] == charged.change.after) charged.value_waited[i] += waited;
  }
  return charged;
}

bool tell_once(CauseId cause, double seconds, Cause& out) {
  State& all = state();
  const std::lock_guard lock(all.mutex);
  Cause& asked = all.all.at(cause);
  if (asked.told || asked.waited < seconds) return false;
  asked.told = true;
  out = asked;
  return true;
}

namespace {
std::string (*find_user_line)() = nullptr;
}  // namespace

void set_user_line(std::string (*find)()) noexcept { find_user_line = find; }

std::string shown_line(const std::string& where) {
  const bool installed =
      where.find("/site-packages/") != where.npos || where.find("/dist-packages/") != where.npos;
  if (!installed || find_user_line == nullptr) return where;
  std::string own = find_user_line();
  return own.empty() ? where : own;
}

std::vector<Cause> causes() {
  State& all = state();
  const std::lock_guard lock(all.mutex);
  std::vector<Cause> out;
  for (const Cause& cause : all.all) {
    if (cause.calls > 0 || cause.programs > 0) out.push_back(cause);
  }
  return out;
}

void reset_causes() noexcept {
  State& all = state();
  const std::lock_guard lock(all.mutex);
  for (Cause& cause : all.all) {
    cause.calls = cause.programs = 0;
    cause.waited = cause.compiled = 0;
    cause.ops.clear();
    cause.values.clear();
    cause.value_waited.clear();
  }
}

void forget_causes() noexcept {
  State& all = state();
  const std::lock_guard lock(all.mutex);
  all.sites.clear();
  all.changes.clear();
  all.others.clear();
  all.step = {};
  all.first = false;
}

namespace {

// The dimension of "input[0].shape[1]", or -1.
int dimension(const Cause& cause) {
  const std::string& label = cause.change.label;
  const size_t at = label.rfind(".shape[");
  if (at == label.npos || !label.ends_with("]")) return -1;
  return std::atoi(label.c_str() + at + 7);
}

bool is_batch(const Cause& cause) { return dimension(cause) == 0 && cause.rank > 1; }

std::string values_of(const Cause& cause) {
  constexpr size_t kShown = 4;
  if (cause.values.size() < 3) return cause.change.before + " → " + cause.change.after;
  std::string out;
  for (size_t i = 0; i < std::min(kShown, cause.values.size()); ++i) {
    out += (i > 0 ? ", " : "") + cause.values[i];
  }
  if (cause.values.size() > kShown) {
    out += " and " + std::to_string(cause.values.size() - kShown) + " more";
  }
  return out;
}

}  // namespace

std::string in_words(const Cause& cause) {
  switch (cause.kind) {
    case Cause::Kind::kFirst:
      return "first step";
    case Cause::Kind::kOrder:
      return "known ops in another order";
    case Cause::Kind::kChange:
      break;
  }
  const int dim = dimension(cause);
  if (dim < 0) return cause.change.text() + " of " + cause.name;
  if (is_batch(cause)) return "batch " + values_of(cause);
  return "size " + values_of(cause) + " (dim " + std::to_string(dim) + " of " + cause.name + ")";
}

std::string advice(const Cause& cause) {
  if (cause.kind == Cause::Kind::kOrder) return "Steps that repeat compile nothing.";
  if (cause.kind == Cause::Kind::kFirst) return "";
  const int dim = dimension(cause);
  if (dim < 0) {
    if (cause.change.label.ends_with(".dtype")) return "Cast it, or let autocast cover all calls.";
    return "";
  }
  if (is_batch(cause) && cause.values.size() < 3) {
    return "drop_last=True in the DataLoader, or a padded last batch, avoids it.";
  }
  if (cause.graph) {
    return "torch_tpu.mark_dynamic(x, " + std::to_string(dim) +
           ") makes one program for many sizes.";
  }
  return "Pad it to a few sizes (multiples of 64).";
}

}  // namespace torch_tpu::dispatch
