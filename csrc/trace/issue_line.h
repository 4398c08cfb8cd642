// Who issued a call that runs later: the Python line, and the thread. Nothing below the bindings
// knows Python: they say how lines are found and put into words, once.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

namespace torch_tpu::trace {

// A few words to keep with an op; empty where no Python frame issued it.
struct IssueLine {
  const void* code = nullptr;  // a code object that is never freed
  int32_t lasti = -1;          // byte offset of the instruction
};

// The calling thread's innermost user frame. Needs no GIL, but may take it: hold no lock.
IssueLine issue_line() noexcept;
// "file.py:12 in train: loss = f(x)", or "". May take the GIL.
std::string describe(IssueLine line);
// The same of the calling thread's line right now.
std::string python_location();

// Set while the module is imported, before the first op.
struct LineHooks {
  IssueLine (*capture)() noexcept = nullptr;
  std::string (*describe)(IssueLine) = nullptr;
  std::string (*current)() = nullptr;
};
void set_line_hooks(LineHooks hooks);

// A small number for the calling thread, never used again for another one.
inline uint32_t this_thread() noexcept {
  static constinit std::atomic<uint32_t> next{1};
  thread_local constinit uint32_t mine = 0;  // not initialised by a call: every op asks
  if (mine == 0) mine = next.fetch_add(1, std::memory_order_relaxed);
  return mine;
}

}  // namespace torch_tpu::trace
