// A program as bytes and back: the serialized executable and all that a caller needs to run it
// without looking at the op again.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "csrc/trace/fused.h"
#include "csrc/trace/program.h"

namespace torch_tpu::cache {

// With its text, and its code once it is compiled. Empty for a program that means something in this
// process only: one that keeps values on a device.
std::optional<std::string> encode_program(const trace::Program& program);

// Throws BadBytes when the bytes are not such a program. The executable is not loaded yet.
trace::ProgramPtr decode_program(std::string_view bytes);
// Loads the program's code into the client. Throws BadBytes when it does not fit, and pjrt::Error
// when the plugin does not take it.
void load_code(trace::Program& program);

// The executable of a fused program; all else follows from its nodes.
std::string encode_fused(const trace::FusedProgram& program);
void decode_fused(std::string_view bytes, trace::FusedProgram& program);

}  // namespace torch_tpu::cache
