#include "csrc/base/journal.h"

#include <chrono>
#include <functional>
#include <mutex>
#include <unordered_map>

#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "csrc/base/fork.h"
#include "csrc/base/hash.h"

namespace torch_tpu::base::journal {

namespace detail {
std::atomic<uint32_t> mask{((1U << kNumKinds) - 1) & ~(1U << static_cast<int>(Kind::kOpLaunch))};
std::array<AtomicCount, kNumKinds> counts;
}  // namespace detail

namespace {

std::atomic<const Tracer*> tracer{nullptr};
std::array<std::atomic<uint64_t>, kNumCuts> cut_counts;
std::atomic<uint64_t> background_count{0};

// Texts are names of ops and places in programs: few. A runaway caller must not fill the memory.
constexpr size_t kMaxTexts = 16384;

struct TextHash {
  using is_transparent = void;
  size_t operator()(std::string_view text) const { return hash_bytes(text); }
};

struct Journal {
  std::mutex mutex;
  std::vector<Event> ring;  // grows to kCapacity, then wraps
  uint64_t added = 0;
  std::vector<std::string> texts;
  std::vector<std::array<Count, kNumKinds>> totals;  // by text
  std::unordered_map<std::string, uint32_t, TextHash, std::equal_to<>> ids;
  std::vector<std::string> threads;

  uint32_t text_id(std::string_view text) {
    if (auto it = ids.find(text); it != ids.end()) return it->second;
    if (texts.size() >= kMaxTexts) return text_id("(others)");
    const auto id = static_cast<uint32_t>(texts.size());
    texts.emplace_back(text);
    totals.emplace_back();
    ids.emplace(text, id);
    return id;
  }
};

Journal& journal() {
  static auto* all = [] {  // leaked: threads may write at exit
    auto* made = new Journal();
    made->text_id("(others)");
    hold_while_forking(made->mutex);  // a child may report, whatever threads it has lost
    return made;
  }();
  return *all;
}

struct Thread {
  uint32_t id = ~0U;
  bool background = false;
};
thread_local Thread this_thread;

// "main", or what the system calls the thread ("pt_autograd_0").
std::string system_name(uint32_t id) {
  if (::getpid() == static_cast<pid_t>(::syscall(SYS_gettid))) return "main";
  char text[32] = "";
  if (pthread_getname_np(pthread_self(), text, sizeof text) != 0 || *text == '\0') {
    return "thread " + std::to_string(id);
  }
  return text + (" #" + std::to_string(id));
}

// Under the journal's lock.
uint32_t thread_id(Journal& all) {
  if (this_thread.id == ~0U) {
    this_thread.id = static_cast<uint32_t>(all.threads.size());
    all.threads.push_back(system_name(this_thread.id));
  }
  return this_thread.id;
}

int64_t epoch() noexcept {
  static const int64_t start = std::chrono::steady_clock::now().time_since_epoch().count();
  return start;
}
// Set when the library is loaded, not at the first event.
const int64_t started = epoch();

void keep(const Event& event, std::string_view text) noexcept {
  try {
    Journal& all = journal();
    std::lock_guard lock(all.mutex);
    Event kept = event;
    kept.thread = thread_id(all);
    kept.text = all.text_id(text);
    if (all.ring.size() < kCapacity) {
      all.ring.push_back(kept);
    } else {
      all.ring[all.added % kCapacity] = kept;
    }
    ++all.added;
    Count& total = all.totals[kept.text][static_cast<size_t>(kept.kind)];
    ++total.events;
    total.ns += kept.duration_ns;
    total.bytes += kept.bytes;
  } catch (...) {  // no memory: the count is what remains
  }
}

}  // namespace

const char* name(Kind kind) noexcept {
  static constexpr const char* kNames[] = {
      "compile",   "compile_failed", "load_from_disk", "cut",  "launch",  "op_launch", "replay",
      "host_read", "upload",         "fallback",       "miss", "warning", "collective"};
  static_assert(std::size(kNames) == kNumKinds);
  return kNames[static_cast<size_t>(kind)];
}

const char* name(Cut reason) noexcept {
  static constexpr const char* kNames[] = {"host read",
                                           "synchronize",
                                           "event",
                                           "copy to another device",
                                           "collective",
                                           "memory budget",
                                           "maximum length",
                                           "repetition",
                                           "data-dependent size",
                                           "mode change",
                                           "unsupported op",
                                           "linear-algebra check",
                                           "user flush",
                                           "compiled call",
                                           "exit"};
  static_assert(std::size(kNames) == kNumCuts);
  return kNames[static_cast<size_t>(reason)];
}

void enable(Kind kind, bool on) noexcept {
  const uint32_t bit = 1U << static_cast<int>(kind);
  if (on) {
    detail::mask.fetch_or(bit, std::memory_order_relaxed);
  } else {
    detail::mask.fetch_and(~bit, std::memory_order_relaxed);
  }
}

void set_tracer(const Tracer* value) noexcept {
  tracer.store(value, std::memory_order_release);
  if (value != nullptr) {
    detail::mask.fetch_or(detail::kTraced, std::memory_order_release);
  } else {
    detail::mask.fetch_and(~detail::kTraced, std::memory_order_release);
  }
}

int64_t now_ns() noexcept {
  return std::chrono::steady_clock::now().time_since_epoch().count() - epoch();
}

void add(Kind kind, std::string_view text, int64_t start_ns, int64_t duration_ns, uint64_t program,
         int64_t nodes, int64_t bytes) noexcept {
  detail::AtomicCount& counted = detail::counts[static_cast<size_t>(kind)];
  counted.events.fetch_add(1, std::memory_order_relaxed);
  counted.ns.fetch_add(duration_ns, std::memory_order_relaxed);
  counted.bytes.fetch_add(bytes, std::memory_order_relaxed);
  if (kind == Kind::kCompile && this_thread.background) {
    background_count.fetch_add(1, std::memory_order_relaxed);
  }
  if (!enabled(kind)) return;
  Event event;
  event.kind = kind;
  event.start_ns = start_ns;
  event.duration_ns = duration_ns;
  event.program = program;
  event.nodes = nodes;
  event.bytes = bytes;
  keep(event, text);
}

void add_cut(Cut reason, int64_t nodes, int64_t bytes, uint64_t program) noexcept {
  cut_counts[static_cast<size_t>(reason)].fetch_add(1, std::memory_order_relaxed);
  add(Kind::kCut, name(reason), now_ns(), 0, program, nodes, bytes);
}

void warn(std::string_view text) noexcept { add(Kind::kWarning, text, now_ns(), 0); }

void name_thread(std::string_view text, bool background) noexcept {
  this_thread.background = background;
  try {
    Journal& all = journal();
    std::lock_guard lock(all.mutex);
    all.threads[thread_id(all)] = text;
  } catch (...) {
  }
}

bool on_background_thread() noexcept { return this_thread.background; }

std::string this_thread_name() {
  Journal& all = journal();
  std::lock_guard lock(all.mutex);
  return all.threads[thread_id(all)];
}

void Span::begin(std::string_view text, uint64_t program, int64_t nodes, int64_t bytes) noexcept {
  exceptions_ = std::uncaught_exceptions();
  text_ = text;
  program_ = program;
  nodes_ = nodes;
  bytes_ = bytes;
  traced_ = nullptr;
  tracer_ = traced() ? tracer.load(std::memory_order_acquire) : nullptr;
  if (tracer_ != nullptr) traced_ = tracer_->begin(kind_, text, program, nodes, bytes);
  start_ = now_ns();
}

void Span::end() noexcept {
  const bool failed = std::uncaught_exceptions() > exceptions_;
  const Kind kind = failed && kind_ == Kind::kCompile ? Kind::kCompileFailed : kind_;
  add(kind, text_, start_, now_ns() - start_, program_, nodes_, bytes_);
  if (tracer_ != nullptr) tracer_->end(traced_, failed);
}

std::vector<Event> events() {
  Journal& all = journal();
  std::lock_guard lock(all.mutex);
  if (all.ring.size() < kCapacity) return all.ring;
  const auto oldest = static_cast<std::ptrdiff_t>(all.added % kCapacity);
  std::vector<Event> out(all.ring.begin() + oldest, all.ring.end());
  out.insert(out.end(), all.ring.begin(), all.ring.begin() + oldest);
  return out;
}

uint64_t dropped() {
  Journal& all = journal();
  std::lock_guard lock(all.mutex);
  return all.added - all.ring.size();
}

std::vector<std::string> texts() {
  Journal& all = journal();
  std::lock_guard lock(all.mutex);
  return all.texts;
}

std::vector<std::string> thread_names() {
  Journal& all = journal();
  std::lock_guard lock(all.mutex);
  return all.threads;
}

std::vector<Total> totals() {
  Journal& all = journal();
  std::lock_guard lock(all.mutex);
  std::vector<Total> out;
  for (size_t text = 0; text < all.totals.size(); ++text) {
    for (size_t kind = 0; kind < kNumKinds; ++kind) {
      const Count& count = all.totals[text][kind];
      if (count.events == 0) continue;
      out.push_back({static_cast<Kind>(kind), static_cast<uint32_t>(text), count});
    }
  }
  return out;
}

Count count_of(Kind kind) noexcept {
  const detail::AtomicCount& counted = detail::counts[static_cast<size_t>(kind)];
  return {counted.events.load(std::memory_order_relaxed),
          counted.ns.load(std::memory_order_relaxed),
          counted.bytes.load(std::memory_order_relaxed)};
}

uint64_t cuts(Cut reason) noexcept {
  return cut_counts[static_cast<size_t>(reason)].load(std::memory_order_relaxed);
}

uint64_t background_compiles() noexcept { return background_count.load(std::memory_order_relaxed); }

void reset() noexcept {
  Journal& all = journal();
  std::lock_guard lock(all.mutex);
  all.ring.clear();
  all.added = 0;
  for (auto& kinds : all.totals) kinds = {};
  for (detail::AtomicCount& counted : detail::counts) {
    counted.events.store(0, std::memory_order_relaxed);
    counted.ns.store(0, std::memory_order_relaxed);
    counted.bytes.store(0, std::memory_order_relaxed);
  }
  for (std::atomic<uint64_t>& counted : cut_counts) counted.store(0, std::memory_order_relaxed);
  background_count.store(0, std::memory_order_relaxed);
}

}  // namespace torch_tpu::base::journal
