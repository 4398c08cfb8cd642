// What waiting for compilers costs. Each compilation is charged to its cause (causes.h), and the
// user is told on stderr once a cause has cost too much: see TORCH_TPU_COMPILE_NOTICE and
// TORCH_TPU_LOG_COMPILES. Nothing here throws, and nothing is asked when a program is found.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "csrc/dispatch/report/causes.h"
#include "csrc/trace/fused.h"

namespace torch_tpu::dispatch {

// While a piece of the trace is launched on this thread: whatever is compiled, is for its ops.
class Launching {
 public:
  explicit Launching(const trace::Segment& segment) noexcept;
  ~Launching();
  Launching(const Launching&) = delete;
  Launching& operator=(const Launching&) = delete;

 private:
  const trace::Segment* outer_;
};

// While this thread compiles the program, or waits for who does.
class Compiling {
 public:
  explicit Compiling(const trace::Runnable& program) noexcept;
  ~Compiling();
  Compiling(const Compiling&) = delete;
  Compiling& operator=(const Compiling&) = delete;

 private:
  const trace::Runnable* outer_;
};

// A graph of torch.compile that is compiled next on this thread: its arguments, each with dtype and
// sizes, are compared with those of earlier ones from the same line.
struct GraphArgument {
  uint64_t dtype = 0;
  trace::Shape sizes;
};
class CompilingGraph {
 public:
  CompilingGraph(const std::string& name, uint64_t ops,
                 const std::vector<GraphArgument>& arguments) noexcept;
  ~CompilingGraph();
  CompilingGraph(const CompilingGraph&) = delete;
  CompilingGraph& operator=(const CompilingGraph&) = delete;

 private:
  CauseId outer_;
};

// The cause of the call that this thread found no program for, until the next one.
void note_thread_cause(CauseId cause) noexcept;
// This thread has compiled a program.
void note_compile(const std::string& name, uint64_t fingerprint, double seconds) noexcept;
// This thread has waited for another one that compiled the program.
void note_wait(const trace::Runnable& program, double seconds) noexcept;

}  // namespace torch_tpu::dispatch
