// The one exception type of this folder: a PJRT error with its code kept.
#pragma once

#include <stdexcept>
#include <string>

#include "pjrt_c_api.h"

namespace torch_tpu::pjrt {

// "INVALID_ARGUMENT" for PJRT_Error_Code_INVALID_ARGUMENT, and so on.
const char* code_name(PJRT_Error_Code code) noexcept;

// what() is "[PJRT_Function] CODE: message".
class Error : public std::runtime_error {
 public:
  Error(PJRT_Error_Code code, std::string function, std::string message);

  PJRT_Error_Code code() const noexcept { return code_; }
  const std::string& function() const noexcept { return function_; }
  const std::string& message() const noexcept { return message_; }

  // The device (or the host, for XLA:CPU) has no memory left for the request.
  bool is_out_of_memory() const noexcept { return code_ == PJRT_Error_Code_RESOURCE_EXHAUSTED; }
  bool is_unimplemented() const noexcept { return code_ == PJRT_Error_Code_UNIMPLEMENTED; }

 private:
  PJRT_Error_Code code_;
  std::string function_;
  std::string message_;
};

}  // namespace torch_tpu::pjrt
