// An immutable array on a device: what a cell holds and a program takes and gives. All live values
// of a device stand in its ledger, which is how memory is counted and how synchronize() knows what
// to wait for without asking for an event per launch.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

#include <c10/util/intrusive_ptr.h>

#include "csrc/pjrt/buffer.h"
#include "csrc/pjrt/read.h"
#include "csrc/stablehlo/type.h"
#include "csrc/trace/flags.h"
#include "csrc/trace/promise.h"
#include "csrc/trace/shape.h"

namespace torch_tpu::trace {

class Ledger;

// Somebody asked for the elements of a value while the ops that make it were only being recorded.
class RecordedValue : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class DeviceValue final : public c10::intrusive_ptr_target {
 public:
  // Takes the buffer. `strides` say where the elements lie in the storage this value stands for: a
  // dense permutation of `dims` (channels_last tensors keep their logical shape). `donatable` is
  // false for memory that is not ours (zero-copy views).
  DeviceValue(PJRT_Buffer* buffer, stablehlo::DType dtype, ShapeRef dims, ShapeRef strides,
              int device, bool donatable = true);
  // A value that a recording will compute: it has a shape but no memory, and stands in no ledger.
  DeviceValue(int64_t recorded_id, stablehlo::DType dtype, ShapeRef dims, ShapeRef strides,
              int device);
  // The result of an op that was issued and not launched yet: the same, until it is settled.
  DeviceValue(stablehlo::DType dtype, ShapeRef dims, ShapeRef strides, int device);
  // A result of work that runs outside PJRT: the same, until the promise is kept.
  DeviceValue(PromisePtr promise, stablehlo::DType dtype, ShapeRef dims, ShapeRef strides,
              int device);
  ~DeviceValue() override;

  // The memory. Both launch what is pending if this value is, and throw what its launch failed
  // with; RecordedValue when there is no memory to read.
  PJRT_Buffer* obtain_raw() const { return obtain().raw(); }
  const pjrt::Buffer& obtain() const {
    if (state_.load(std::memory_order_acquire) == State::kReady) return buffer_;
    return demand();
  }
  // For a pending value, once, by the thread that launches: its memory, or why there is none.
  void settle(PJRT_Buffer* buffer, GuardsPtr guards = {});
  void fail(std::exception_ptr error) noexcept;
  // With a value that has more room along some dimensions: its first elements are this one's. Who
  // asks for the memory gets a copy without the room, made then.
  void settle_padded(c10::intrusive_ptr<DeviceValue> padded, GuardsPtr guards = {});
  // With the elements of another value: a call that was to write it did not run.
  void settle_as(c10::intrusive_ptr<DeviceValue> same, GuardsPtr guards);
  // The value with room it was settled with or was last given; may be null. One thread at a time.
  const c10::intrusive_ptr<DeviceValue>& padded() const noexcept { return padded_; }
  void keep_padded(c10::intrusive_ptr<DeviceValue> padded) { padded_ = std::move(padded); }
  // True while only the padded one has memory.
  bool only_padded() const noexcept {
    return state_.load(std::memory_order_acquire) == State::kPadded;
  }
  bool failed() const noexcept { return state_.load(std::memory_order_acquire) == State::kFailed; }
  // What it failed with.
  const std::exception_ptr& error() const noexcept { return error_; }
  bool pending() const noexcept {
    return state_.load(std::memory_order_acquire) == State::kPending;
  }

  // Begins to read a small value whose elements somebody will ask for. By who made it, before
  // others have it; nothing where its memory is the host's.
  void read_early();
  const pjrt::EarlyRead* early() const noexcept { return early_.get(); }  // null: not begun

  // The flags it depends on; null: none. By who made it, before others have it; of a pending value
  // they are known once it is settled.
  void guard(GuardsPtr guards) noexcept { guards_ = std::move(guards); }
  const GuardsPtr& guards() const noexcept { return guards_; }

  // The one rule of donation: memory may be given away, or written, by who holds all `references`
  // to a value, if it is ours to give. Another thread can only drop a reference meanwhile: to get
  // one it would need one, or the cell that holds it (device/cell.h).
  bool held_only_by(uint32_t references) const noexcept {
    return donatable() && held_times() <= references;
  }
  uint32_t held_times() const noexcept {
    return static_cast<uint32_t>(
        c10::raw::intrusive_ptr::use_count(const_cast<DeviceValue*>(this)));
  }
  // Gives the memory away: for the only holder of a value, who may then write it once nothing that
  // was launched reads it any more.
  PJRT_Buffer* take();
  // For a promised value, once, before the promise is kept: its memory.
  void deliver(PJRT_Buffer* buffer);
  // Null unless the value is promised and the promise not kept yet.
  const Promise* awaited() const noexcept {
    if (state_.load(std::memory_order_acquire) != State::kPromised) return nullptr;
    return promise_->done() ? nullptr : promise_.get();
  }
  const PromisePtr& promise() const noexcept { return promise_; }

  // What values need of those who run programs. Set once, at import.
  struct Runner {
    // Launches what is pending on a device. Every value issued before is settled then, but for
    // those that found no room: what it returns is why.
    std::exception_ptr (*launch)(int device) = nullptr;
    // Gives a padded value the memory of its own that somebody asks for.
    void (*compact)(DeviceValue& value) = nullptr;
  };
  static void set_runner(Runner runner) noexcept;

  int64_t recorded_id() const noexcept { return recorded_id_; }  // -1: not recorded
  stablehlo::DType dtype() const noexcept { return dtype_; }
  ShapeRef dims() const noexcept { return dims_; }
  ShapeRef strides() const noexcept { return strides_; }
  bool contiguous() const noexcept { return contiguous_; }
  int device() const noexcept { return device_; }
  int64_t bytes() const noexcept { return bytes_; }
  bool donatable() const noexcept {
    return donatable_ && state_.load(std::memory_order_acquire) != State::kSame;
  }

  // Scratch of the pass that numbers the values of a trace; see trace.h. One thread at a time.
  struct Mark {
    uint64_t pass = 0;
    uint32_t index = 0;
    uint32_t refs = 0;  // references from inside the trace
  };
  Mark mark;

 private:
  friend class Ledger;
  enum class State : uint8_t { kReady, kPending, kRecorded, kFailed, kPromised, kPadded, kSame };
  DeviceValue(State state, PJRT_Buffer* buffer, stablehlo::DType dtype, ShapeRef dims,
              ShapeRef strides, int device, bool donatable);
  const pjrt::Buffer& demand() const;

  pjrt::Buffer buffer_;
  Shape dims_;
  Shape strides_;
  int64_t bytes_;
  DeviceValue* prev_ = nullptr;
  DeviceValue* next_ = nullptr;
  int device_;
  int64_t recorded_id_ = -1;
  stablehlo::DType dtype_;
  bool donatable_;
  bool contiguous_;
  bool known_ready_ = false;
  bool entered_ = false;  // in the ledger
  mutable std::atomic<State> state_{State::kReady};
  PromisePtr promise_;
  std::exception_ptr error_;
  c10::intrusive_ptr<DeviceValue> padded_;
  c10::intrusive_ptr<DeviceValue> same_;
  GuardsPtr guards_;
  std::unique_ptr<pjrt::EarlyRead> early_;
};

using ValuePtr = c10::intrusive_ptr<DeviceValue>;

struct MemoryCounts {
  int64_t current_bytes = 0;
  int64_t peak_bytes = 0;
  int64_t peak_reserved_bytes = 0;  // with what programs needed for a while beside their results
  int64_t total_allocated = 0;      // since the start
  int64_t total_freed = 0;
  int64_t current_values = 0;
  int64_t peak_values = 0;
  int64_t allocations = 0;
  int64_t frees = 0;
  int64_t out_of_memory = 0;
};

// One per device; thread-safe. Values enter when made and leave when freed.
class Ledger {
 public:
  static constexpr int kMaxDevices = 64;
  static Ledger& of(int device);

  // Waits for every value made so far, those dropped before they were computed included. The first
  // error found is thrown after all have finished.
  void synchronize();
  // True when nothing made so far is still being computed.
  bool idle();
  // The same without work outside PJRT: no program can be reading a value nobody holds.
  bool programs_idle();
  // Calls `done` once everything made so far is computed: at once on this thread if it already is,
  // else on a thread of the plugin. For events and their timing.
  void when_idle(std::function<void()> done);
  // Work outside PJRT: it counts as made now.
  void add(PromisePtr promise);

  MemoryCounts counts();
  void reset_peak();
  void reset_accumulated();
  void count_out_of_memory();

  // Throws c10::OutOfMemoryError when `bytes` more would pass the limit (TORCH_TPU_MEMORY_LIMIT or
  // set_per_process_memory_fraction), or what the device has in all.
  void check_room(int64_t bytes);
  [[noreturn]] void throw_out_of_memory(int64_t bytes, const std::string& detail);
  // A program is about to run that needs so many bytes in all.
  void note_run(int64_t bytes);
  void set_limit(int64_t bytes);  // 0: none
  int64_t limit() const { return limit_.load(std::memory_order_relaxed); }

 private:
  friend class DeviceValue;
  explicit Ledger(int device);
  void enter(DeviceValue* value);
  void leave(DeviceValue* value) noexcept;
  // The rest is called under the lock.
  void unlink(DeviceValue* value) noexcept;
  void remember_dropped(const DeviceValue& value) noexcept;
  void settle() noexcept;  // sorts out what has finished since

  std::mutex mutex_;
  DeviceValue* head_ = nullptr;        // newest first: values not known to be ready
  DeviceValue* ready_head_ = nullptr;  // values seen ready
  MemoryCounts counts_;
  std::atomic<int64_t> limit_{0};
  int device_;
  // Work still running whose result nobody holds any more. Shared with the threads that wait.
  std::vector<std::shared_ptr<pjrt::Event>> dropped_;
  std::vector<PromisePtr> promises_;
  size_t settle_at_ = 64;  // dropped values that make it worth looking which are done
};

}  // namespace torch_tpu::trace
