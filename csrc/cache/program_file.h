// A program as bytes and back: the serialized executable and all that a caller needs to run it
// without looking at the op again.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "csrc/trace/program.h"

namespace torch_tpu::cache {

// Empty for a program that means something in this process only: one that keeps values on a device.
std::optional<std::string> encode_program(const trace::Program& program);

// Loads the executable into the client. Throws BadBytes when the bytes are not such a program, and
// pjrt::Error when the plugin does not take them.
trace::ProgramPtr decode_program(std::string_view bytes);

}  // namespace torch_tpu::cache
