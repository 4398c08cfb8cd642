// Compiles the programs of a piece of the trace that runs op by op: on the pool's threads and on
// the caller's, each program by whoever is free.
#pragma once

#include <memory>
#include <vector>

#include "csrc/trace/program.h"

namespace torch_tpu::dispatch {

class CompileAhead {
 public:
  // In the order in which they will run. Starts nothing where all are compiled.
  explicit CompileAhead(const std::vector<trace::ProgramPtr>& programs);

  // While somebody else compiles the program, this thread compiles others. Returns when it is
  // compiled, or nothing else is left to do. Errors are thrown where the program is run.
  void help_until_compiled(const trace::Program& program);

 private:
  struct Work;
  std::shared_ptr<Work> work_;
};

}  // namespace torch_tpu::dispatch
