// Which programs of single ops are kept on disk.
#pragma once

#include <string>

#include "csrc/trace/program.h"

namespace torch_tpu::dispatch {

// Whether the op's name and a key say all about a program. An op of somebody else's is decomposed
// by code that may change while its name stays.
bool has_lasting_meaning(const std::string& op);

// After it was compiled.
void keep_compiled(const trace::Program& program);

}  // namespace torch_tpu::dispatch
