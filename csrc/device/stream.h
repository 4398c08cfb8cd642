// Streams and events. A stream is only a label: PJRT runs a program as soon as its inputs are
// there, so order comes from data and a wait between streams has nothing to do. Events are real:
// they know when the work issued before them was finished.
#pragma once

#include <memory>

#include <c10/core/Stream.h>

namespace torch_tpu::device {

// Launches work that was issued but is still held back (a pending fused trace). Called before
// anything waits; set once, at start. Null: nothing is ever held back.
using LaunchPending = void (*)(int device);
void set_launch_pending(LaunchPending launch) noexcept;
void launch_pending(int device);

// All three see everything issued so far on `device`, by any thread and on any stream. synchronize
// throws the first error a program failed with.
void synchronize(int device);
bool idle(int device);

c10::Stream default_stream(int device);
c10::Stream current_stream(int device);  // of the calling thread
// Makes `stream` the current one of its device; returns the one it replaces.
c10::Stream exchange_stream(c10::Stream stream);
// One of a fixed set, in turn.
c10::Stream pool_stream(int device);
// A label nobody has yet.
c10::Stream new_stream(int device);

// The end of the work issued before record(); the events of a device are done in the order they
// were recorded. Thread-safe except for record(), which replaces what the event stands for.
class Event {
 public:
  void record(int device);
  // True when never recorded.
  bool query() const;
  void synchronize() const;
  // Milliseconds from this event to `end`. Both must be done.
  double elapsed_ms(const Event& end) const;
  // Waits for all events recorded on the device so far.
  static void synchronize_all(int device);

 private:
  struct State;
  class Timeline;
  std::shared_ptr<State> state_;  // shared with the callback, which may outlive the event
};

}  // namespace torch_tpu::device
