// What a run of a program reports of the numbers it was given: an index out of range. The flags of
// one run are one object, and each value carries guards, the flags that it depends on. So a
// violation is raised by what it spoiled and by nothing else.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include <c10/util/SmallVector.h>
#include <c10/util/intrusive_ptr.h>

#include "csrc/ops/source.h"
#include "csrc/pjrt/buffer.h"
#include "csrc/pjrt/read.h"
#include "csrc/trace/issue_line.h"

namespace torch_tpu::trace {

// Thread-safe.
class Flags final : public c10::intrusive_ptr_target {
 public:
  // Where a flag comes from. The pointers lead into the program that `owner` keeps.
  struct Place {
    const ops::ValueCheck* check = nullptr;
    const std::string* op = nullptr;  // null: the call has not returned yet, so it needs no name
    IssueLine line;
    uint32_t thread = 0;  // that issued the call
  };
  using Places = c10::SmallVector<Place, 2>;
  using Owner = c10::intrusive_ptr<c10::intrusive_ptr_target>;

  // `buffers` hold all flags in order, each one or several numbers of s64. Where a transfer takes
  // its time it begins now, so that the read which raises finds it done.
  Flags(std::vector<pjrt::Buffer> buffers, Places places, Owner owner);

  size_t size() const noexcept { return places_.size(); }
  const Place& place(size_t index) const { return places_[index]; }

  // Neither waits. Whether they are there; whether they are and all in order.
  bool known() noexcept;
  bool good() noexcept;
  // The offending value, or ops::kNoViolation. Waits. What the program itself failed with is no
  // violation: its values raise that.
  int64_t value(size_t index) noexcept;
  bool violated(size_t index) noexcept { return value(index) != ops::kNoViolation; }

  // Whether somebody was told of the violation; also whether that was when `reports()` was at most
  // so many, and so before a call that was issued then.
  bool reported(size_t index) const noexcept { return report_of(index) != 0; }
  bool reported_by(size_t index, uint64_t reports) const noexcept {
    return reported(index) && report_of(index) <= reports;
  }
  void report(size_t index) noexcept;
  // How many reports there were in this process.
  static uint64_t reports() noexcept { return reports_.load(std::memory_order_relaxed); }

 private:
  enum class State : uint8_t { kUnknown, kGood, kViolated };
  State look(bool wait) noexcept;
  uint64_t report_of(size_t index) const noexcept {
    return reported_[index].load(std::memory_order_acquire);
  }

  std::mutex mutex_;  // of what follows, until the state is known
  std::vector<pjrt::Buffer> buffers_;
  std::vector<std::optional<pjrt::EarlyRead>> early_;
  std::vector<int64_t> values_;
  const Places places_;
  const Owner owner_;
  std::unique_ptr<std::atomic<uint64_t>[]> reported_;  // the number of the report; 0: none
  static std::atomic<uint64_t> reports_;
  std::atomic<State> state_{State::kUnknown};
};

using FlagsPtr = c10::intrusive_ptr<Flags>;

// One flag that a value depends on. Where it was violated, a `spoiled` value holds nothing of
// meaning; any other one is sound, as if the call that was given the bad number had not been made,
// and only has to tell if nobody did.
struct Guard {
  FlagsPtr flags;
  uint32_t index = 0;
  bool spoils = true;

  // For a call that was issued when there were so many reports: it may run much later, and who was
  // told meanwhile did not ask for it again.
  static constexpr uint64_t kNow = UINT64_MAX;
  bool settled(uint64_t reports = kNow) const noexcept;  // nothing will ever be raised
  bool raises(uint64_t reports = kNow) const noexcept;   // waits
};

// Immutable.
struct Guards final : public c10::intrusive_ptr_target {
  std::vector<Guard> all;
};
// Null: none. Nearly every value has none.
using GuardsPtr = c10::intrusive_ptr<Guards>;

// Collects what a result depends on; costs nothing while there is nothing.
class GuardUnion {
 public:
  explicit GuardUnion(uint64_t reports = Guard::kNow) noexcept : reports_(reports) {}
  void add(const GuardsPtr& guards) {
    if (guards && guards != one_) add_slowly(guards);
  }
  void add(FlagsPtr flags, uint32_t index, bool spoils);
  // A call that writes in place leaves sound what it may not touch.
  void add_without_spoiling(const GuardsPtr& guards);
  bool empty() const noexcept { return !one_ && !several_; }
  GuardsPtr take();

 private:
  void add_slowly(const GuardsPtr& guards);
  void put(const Guard& guard);

  GuardsPtr one_;  // as given, not looked through
  GuardsPtr several_;
  uint64_t reports_;
};

}  // namespace torch_tpu::trace
