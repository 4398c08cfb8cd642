// Which programs of single ops are kept on disk.
#pragma once

#include <string>

#include "csrc/trace/program.h"

namespace torch_tpu::dispatch {

// Whether the op's name and a key say all about a program. An op of somebody else's is decomposed
// by code that may change while its name stays.
bool has_lasting_meaning(const std::string& op);
// Of a program that has such a name, or whose key says more.
bool is_lasting(const trace::Node& node);

// After it was compiled.
void keep_compiled(const trace::Runnable& program);

}  // namespace torch_tpu::dispatch
