#include "csrc/trace/memory_history.h"

#include <chrono>
#include <deque>
#include <mutex>
#include <unordered_map>

namespace torch_tpu::trace {
namespace {

struct State {
  std::mutex mutex;
  size_t max_events = 0;
  std::deque<MemoryEvent> events;
  std::unordered_map<uint64_t, IssueLine> lines;    // of values that have no memory as yet
  std::unordered_map<uint64_t, MemoryEvent> alive;  // those that have
};

// Leaked: values are freed while statics are destroyed.
State& state() {
  static auto* made = new State();
  return *made;
}

uint64_t number_of(const void* value) { return reinterpret_cast<uintptr_t>(value); }

int64_t now_us() {
  using std::chrono::duration_cast, std::chrono::microseconds, std::chrono::system_clock;
  return duration_cast<microseconds>(system_clock::now().time_since_epoch()).count();
}

void keep(State& all, const MemoryEvent& event) {
  if (all.max_events == 0) return;  // stopped since the caller asked whether it is on
  if (all.events.size() >= all.max_events) all.events.pop_front();
  all.events.push_back(event);
}

}  // namespace

MemoryHistory& MemoryHistory::get() {
  static MemoryHistory instance;
  return instance;
}

void MemoryHistory::start(size_t max_events) {
  State& all = state();
  const std::lock_guard lock(all.mutex);
  all.max_events = max_events;
  all.events.clear();
  all.lines.clear();
  all.alive.clear();
  on_.store(max_events > 0);
}

std::vector<MemoryEvent> MemoryHistory::events() {
  State& all = state();
  const std::lock_guard lock(all.mutex);
  return {all.events.begin(), all.events.end()};
}

std::vector<MemoryEvent> MemoryHistory::alive() {
  State& all = state();
  const std::lock_guard lock(all.mutex);
  std::vector<MemoryEvent> out;
  for (const auto& [number, event] : all.alive) out.push_back(event);
  return out;
}

void MemoryHistory::made(const void* value) noexcept {
  const IssueLine line = issue_line();
  State& all = state();
  const std::lock_guard lock(all.mutex);
  if (all.max_events > 0) all.lines[number_of(value)] = line;
}

void MemoryHistory::entered(const void* value, int64_t bytes, int device) noexcept {
  State& all = state();
  const std::lock_guard lock(all.mutex);
  if (all.max_events == 0) return;
  MemoryEvent event{true, number_of(value), bytes, device, now_us(), {}};
  if (const auto known = all.lines.find(event.address); known != all.lines.end()) {
    event.line = known->second;
  }
  all.alive[event.address] = event;
  keep(all, event);
}

void MemoryHistory::left(const void* value) noexcept {
  State& all = state();
  const std::lock_guard lock(all.mutex);
  const auto known = all.alive.find(number_of(value));
  if (known == all.alive.end()) return;  // made before the start
  MemoryEvent event = known->second;
  all.alive.erase(known);
  event.takes = false;
  event.time_us = now_us();
  keep(all, event);
}

void MemoryHistory::gone(const void* value) noexcept {
  State& all = state();
  const std::lock_guard lock(all.mutex);
  all.lines.erase(number_of(value));
}

}  // namespace torch_tpu::trace
