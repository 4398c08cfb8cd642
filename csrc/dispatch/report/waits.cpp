#include "csrc/dispatch/report/waits.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>

#include <unistd.h>

#include "csrc/base/env.h"
#include "csrc/base/hash.h"
#include "csrc/base/journal.h"
#include "csrc/cache/fused_cache.h"
#include "csrc/dispatch/report/misses.h"
#include "csrc/trace/issue_line.h"

namespace torch_tpu::dispatch {
namespace {

namespace journal = base::journal;

// What this thread is at.
struct Now {
  const trace::Segment* segment = nullptr;
  const trace::Runnable* program = nullptr;
  CauseId graph = kNoCause;
  CauseId recent = kNoCause;
  bool due = false;  // there is something to be told when the piece was launched
};
thread_local constinit Now now;  // not initialised by a call: every launch asks
thread_local std::vector<CauseId> due_causes;

// Read once. A value that is not allowed was an error when the package was imported.
double notice_after() noexcept {
  static const double seconds = [] {
    try {
      return base::env_compile_notice();
    } catch (...) {
      return 2.0;
    }
  }();
  return seconds;
}

bool logs() noexcept {
  static const bool on = [] {
    try {
      return base::env_log_compiles();
    } catch (...) {
      return false;
    }
  }();
  return on;
}

// One call for the whole line: lines of several threads and processes stay apart, and nothing is
// left in a buffer for a forked child to print again.
void say(std::string line) noexcept {
  line += '\n';
  const char* at = line.data();
  size_t left = line.size();
  while (left > 0) {
    const ssize_t written = ::write(STDERR_FILENO, at, left);
    if (written <= 0) return;
    at += written;
    left -= static_cast<size_t>(written);
  }
}

// " at train.py:45 in train": without the text of the line, and from the current folder.
std::string place(const std::string& where) {
  if (where.empty()) return "";
  const size_t in = where.find(" in ");
  std::string out = in == where.npos ? where : where.substr(0, where.find(": ", in));
  std::error_code error;
  const std::string here = std::filesystem::current_path(error).string() + "/";
  if (!error && out.starts_with(here)) out.erase(0, here.size());
  return " at " + out;
}

std::string seconds_text(double seconds) {
  char text[32];
  std::snprintf(text, sizeof text, seconds < 1 ? "%.3f s" : "%.1f s", seconds);
  return text;
}

std::string next_step(const Cause& cause) {
  if (cause.kind != Cause::Kind::kFirst) {
    const std::string text = advice(cause);
    return text.empty() ? "torch_tpu.explain() says more." : text;
  }
  return base::env_cache_dir().empty()
             ? "A cache on disk (TORCH_TPU_CACHE_DIR) would spare the next process that."
             : "They are kept on disk: the next process starts faster.";
}

void tell(CauseId id) {
  Cause cause;
  if (notice_after() <= 0 || !tell_once(id, notice_after(), cause)) return;
  const std::string programs =
      cause.programs == 1 ? "1 program" : std::to_string(cause.programs) + " programs";
  say("torch_tpu: waited " + seconds_text(cause.waited) + " for the compiler (" + programs +
      "): " + in_words(cause) + place(cause.where) + ". " + next_step(cause));
}

// The newest cause of the calls that have no program of their own yet.
template <typename Nodes, typename ProgramOf>
KnownCause newest_cause(const Nodes& nodes, ProgramOf&& program_of) {
  KnownCause newest;
  for (const auto& node : nodes) {
    const trace::Program& program = program_of(node);
    if (program.code.ready()) continue;
    const KnownCause known = cause_of(identity_of(program));
    if (known.cause != kNoCause && known.serial >= newest.serial) newest = known;
  }
  return newest;
}

CauseId cause_of_piece(const trace::Segment& segment, const std::string& name) {
  const KnownCause found = newest_cause(
      segment.nodes,
      [](const trace::TraceNode& node) -> const trace::Program& { return *node.program; });
  if (found.cause != kNoCause) return found.cause;
  return unexplained(Cause::Kind::kOrder, name, trace::describe(segment.nodes.back().line));
}

// On a thread of the background there is only the name.
CauseId cause_of_fused(const std::string& name, uint64_t fingerprint) {
  for (const trace::FusedPtr& piece : cache::FusedCache::get().programs()) {
    if (piece->fingerprint != fingerprint || piece->name != name) continue;
    KnownCause newest;
    for (const trace::ProgramPtr& node : piece->nodes) {
      const KnownCause known = cause_of(identity_of(*node));
      if (known.cause != kNoCause && known.serial >= newest.serial) newest = known;
    }
    return newest.cause;
  }
  return kNoCause;
}

CauseId find_cause(const std::string& name, uint64_t fingerprint) {
  if (now.graph != kNoCause) return now.graph;
  if (now.program != nullptr) {
    const auto* call = dynamic_cast<const trace::Program*>(now.program);
    if (call != nullptr && call->key.size() > 0) {
      if (const KnownCause known = cause_of(identity_of(*call)); known.cause != kNoCause) {
        return known.cause;
      }
    }
    // A call that is still being built has no key yet.
    if (call != nullptr && now.recent != kNoCause) return now.recent;
  }
  if (now.segment != nullptr && !now.segment->nodes.empty()) {
    return cause_of_piece(*now.segment, name);
  }
  if (journal::on_background_thread()) return cause_of_fused(name, fingerprint);
  return unexplained(Cause::Kind::kFirst, name, shown_line(trace::python_location()));
}

void note(const std::string& name, uint64_t fingerprint, double waited, double compiled) {
  const CauseId id = find_cause(name, fingerprint);
  const bool user = !journal::on_background_thread();
  Cause cause;
  if (id != kNoCause) {
    cause = charge(id, compiled > 0 ? 1 : 0, user ? waited : 0, compiled);
  }
  if (logs()) {
    std::string line =
        compiled > 0 ? "torch_tpu: compiled " : "torch_tpu: another thread compiled ";
    line += name + " in " + seconds_text(std::max(waited, compiled)) + ", ";
    line += user ? "while " + journal::this_thread_name() + " waited" : "in the background";
    if (id != kNoCause) line += ": " + in_words(cause) + place(cause.where);
    say(std::move(line));
  }
  if (!user || id == kNoCause || cause.told || cause.waited < notice_after()) return;
  if (now.segment == nullptr) {
    tell(id);
  } else if (std::find(due_causes.begin(), due_causes.end(), id) == due_causes.end()) {
    due_causes.push_back(id);
    now.due = true;
  }
}

}  // namespace

Launching::Launching(const trace::Segment& segment) noexcept : outer_(now.segment) {
  now.segment = &segment;
}

Launching::~Launching() {
  now.segment = outer_;
  if (outer_ != nullptr || !now.due) [[likely]]
    return;
  try {
    for (const CauseId cause : due_causes) tell(cause);
  } catch (...) {  // a report must never fail a call
  }
  due_causes.clear();
  now.due = false;
}

Compiling::Compiling(const trace::Runnable& program) noexcept : outer_(now.program) {
  now.program = &program;
}
Compiling::~Compiling() { now.program = outer_; }

CompilingGraph::CompilingGraph(const std::string& name, uint64_t ops,
                               const std::vector<GraphArgument>& arguments) noexcept
    : outer_(now.graph) {
  try {
    auto key = std::make_shared<Words>();
    std::vector<std::string> labels;
    std::vector<int> ranks;
    for (size_t i = 0; i < arguments.size(); ++i) {
      const std::string input = "input[" + std::to_string(i) + "]";
      const auto rank = static_cast<int>(arguments[i].sizes.size());
      key->push_back(arguments[i].dtype);
      labels.push_back(input + ".dtype");
      ranks.push_back(rank);
      for (int d = 0; d < rank; ++d) {
        key->push_back(static_cast<uint64_t>(arguments[i].sizes[static_cast<size_t>(d)]));
        labels.push_back(input + ".shape[" + std::to_string(d) + "]");
        ranks.push_back(rank);
      }
    }
    NewCall call;
    call.name = name;
    call.where = trace::python_location();
    call.shown = shown_line(call.where);
    call.what = base::hash_combine(ops, key->size());
    call.identity = base::hash_words(*key, call.what);
    call.key = key;
    call.graph = true;
    const auto compare = [&](const Words& before, const Words& after) -> std::optional<Change> {
      for (size_t i = 0; i < after.size(); ++i) {
        if (before[i] == after[i]) continue;
        return Change{{labels[i], "", std::to_string(before[i]), std::to_string(after[i])},
                      ranks[i]};
      }
      return std::nullopt;
    };
    now.graph = explain_call(call, compare).cause;
  } catch (...) {
  }
}
CompilingGraph::~CompilingGraph() { now.graph = outer_; }

void note_thread_cause(CauseId cause) noexcept { now.recent = cause; }

void note_compile(const std::string& name, uint64_t fingerprint, double seconds) noexcept {
  try {
    note(name, fingerprint, seconds, seconds);
  } catch (...) {
  }
}

void note_wait(const trace::Runnable& program, double seconds) noexcept {
  try {
    note(program.name, program.fingerprint, seconds, 0);
  } catch (...) {
  }
}

}  // namespace torch_tpu::dispatch
