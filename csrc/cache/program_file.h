// What is known of a call as bytes and back: the serialized executable and all that a caller needs
// to run it without looking at the op again. And code alone, where the caller knows the rest.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "csrc/trace/fused.h"
#include "csrc/trace/program.h"

namespace torch_tpu::cache {

// A program with its text, and its code once it is compiled. Empty for one that means something in
// this process only: one that keeps values on a device.
std::optional<std::string> encode_answer(const trace::Answer& answer);
std::optional<std::string> encode_program(const trace::Program& program);
// Throws BadBytes when the bytes are no such thing. No executable is loaded yet.
trace::Answer decode_answer(std::string_view bytes);

// Of graphs, fused programs and programs over several devices.
std::string encode_code(const trace::Code& code);
std::string encode_code(double compile_seconds, std::string_view executable);
// Throws BadBytes when the bytes are no code.
trace::Runnable::Stored decode_code(std::string_view bytes);

// A buffer that an executable gives back.
struct ResultType {
  PJRT_Buffer_Type type = PJRT_Buffer_Type_INVALID;  // this one: not known here
  trace::Shape dims;
};
using ResultTypes = std::vector<ResultType>;
ResultTypes result_types(const trace::Runnable& program);
ResultTypes result_types(const trace::FusedProgram& program);

// Loads an executable into the client. Throws BadBytes when it gives other results than the
// description says, which decides how much memory is read; pjrt::Error when the plugin does not
// take it.
pjrt::LoadedExecutable load_executable(std::string_view code, const ResultTypes& results);

}  // namespace torch_tpu::cache
