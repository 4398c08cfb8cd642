// What the process compiled, ran, read and cut, as a bounded list of events and as counts that are
// never lost. Thread-safe, process-wide. Rare kinds are always on; launches of single ops are off
// until asked for, and then cost two clock reads and a lock each.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <exception>
#include <string>
#include <string_view>
#include <vector>

namespace torch_tpu::base::journal {

enum class Kind : uint8_t {
  kCompile,
  kCompileFailed,
  kLoadFromDisk,
  kCut,       // a trace ended; `nodes` of it
  kLaunch,    // of a fused program
  kOpLaunch,  // of a single op's program; off by default
  kReplay,    // a fused trace run as single ops
  kHostRead,
  kUpload,
  kFallback,
  kMiss,
  kWarning,
  kCollective,
};
inline constexpr int kNumKinds = 13;
const char* name(Kind kind) noexcept;  // "host_read"

// Why a trace ended.
enum class Cut : uint8_t {
  kHostRead,
  kSynchronize,
  kEvent,
  kOtherDevice,
  kCollective,
  kMemoryBudget,
  kMaximumLength,
  kRepetition,  // of the op stream: a loop's turn
  kDataDependentSize,
  kModeChange,
  kUnsupportedOp,
  kLinalgCheck,
  kUserFlush,
  kCompiledCall,
  kExit,
};
inline constexpr int kNumCuts = 15;
const char* name(Cut reason) noexcept;  // "host read"

struct Event {
  Kind kind = Kind::kWarning;
  uint32_t thread = 0;      // index into thread_names()
  uint32_t text = 0;        // index into texts()
  int64_t start_ns = 0;     // since the journal began
  int64_t duration_ns = 0;  // 0: a moment
  uint64_t program = 0;     // fingerprint, or 0
  int64_t nodes = 0;
  int64_t bytes = 0;
};

struct Count {
  uint64_t events = 0;
  int64_t ns = 0;  // of events that were recorded, not only counted
  int64_t bytes = 0;
};

// Events of one kind and text: (compile, "aten::add.Tensor").
struct Total {
  Kind kind;
  uint32_t text;
  Count count;
};

// Somebody who watches spans as they happen: a profiler. Both functions are called on the span's
// thread; what `begin` returns is given to `end`.
struct Tracer {
  void* (*begin)(Kind kind, std::string_view text, uint64_t program, int64_t nodes,
                 int64_t bytes) noexcept;
  void (*end)(void* span, bool failed) noexcept;
};
// One at a time; it must live for ever, since a span may have begun before null was set.
void set_tracer(const Tracer* tracer) noexcept;

namespace detail {
// In `mask`, beside the kinds: a tracer is set. In the same word, so that a launch without one
// costs no second look.
inline constexpr uint32_t kTraced = 1U << 31;
struct AtomicCount {
  std::atomic<uint64_t> events{0};
  std::atomic<int64_t> ns{0};
  std::atomic<int64_t> bytes{0};
};
extern std::atomic<uint32_t> mask;
extern std::array<AtomicCount, kNumKinds> counts;
}  // namespace detail

// Whether events of this kind are kept; counted they are always.
inline bool enabled(Kind kind) noexcept {
  return (detail::mask.load(std::memory_order_relaxed) >> static_cast<int>(kind) & 1) != 0;
}
void enable(Kind kind, bool on) noexcept;
inline bool traced() noexcept {
  return (detail::mask.load(std::memory_order_relaxed) & detail::kTraced) != 0;
}

inline void count(Kind kind) noexcept {
  detail::counts[static_cast<size_t>(kind)].events.fetch_add(1, std::memory_order_relaxed);
}

int64_t now_ns() noexcept;

// Counts the event and, if its kind is enabled, keeps it. The newest kCapacity events stay.
inline constexpr size_t kCapacity = 65536;
void add(Kind kind, std::string_view text, int64_t start_ns, int64_t duration_ns,
         uint64_t program = 0, int64_t nodes = 0, int64_t bytes = 0) noexcept;
void add_cut(Cut reason, int64_t nodes = 0, int64_t bytes = 0, uint64_t program = 0) noexcept;
void warn(std::string_view text) noexcept;

// The calling thread's name in reports. Compilations on a background thread count as such.
void name_thread(std::string_view text, bool background = false) noexcept;
bool on_background_thread() noexcept;
std::string this_thread_name();

// From here to the end of the block. `text` must live as long. A compilation that throws is a
// failed one.
class Span {
 public:
  explicit Span(Kind kind, std::string_view text = {}, uint64_t program = 0, int64_t nodes = 0,
                int64_t bytes = 0) noexcept
      : kind_(kind), on_(wanted(kind)) {
    if (on_) begin(text, program, nodes, bytes);
  }
  ~Span() {
    if (on_) {
      end();
    } else {
      count(kind_);
    }
  }
  Span(const Span&) = delete;
  Span& operator=(const Span&) = delete;

 private:
  static bool wanted(Kind kind) noexcept {
    const uint32_t bits = 1U << static_cast<int>(kind) | detail::kTraced;
    return (detail::mask.load(std::memory_order_relaxed) & bits) != 0;
  }
  void begin(std::string_view text, uint64_t program, int64_t nodes, int64_t bytes) noexcept;
  void end() noexcept;

  Kind kind_;
  bool on_;
  int exceptions_;
  std::string_view text_;
  uint64_t program_;
  int64_t nodes_;
  int64_t bytes_;
  int64_t start_;
  const Tracer* tracer_;
  void* traced_;
};

// Everything below is for reports.

std::vector<Event> events();  // oldest first
uint64_t dropped();           // events that were kept once and made room for newer ones
std::vector<std::string> texts();
std::vector<std::string> thread_names();
std::vector<Total> totals();
Count count_of(Kind kind) noexcept;
uint64_t cuts(Cut reason) noexcept;
uint64_t background_compiles() noexcept;
// Forgets events and counts; names of texts and threads stay.
void reset() noexcept;

}  // namespace torch_tpu::base::journal
