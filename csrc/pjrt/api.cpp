// Errors: from PJRT_Error to Error, always freed; and the names of the codes.
#include "csrc/pjrt/api.h"

#include <utility>

namespace torch_tpu::pjrt {

const char* code_name(PJRT_Error_Code code) noexcept {
  switch (code) {
    case PJRT_Error_Code_OK:
      return "OK";
    case PJRT_Error_Code_CANCELLED:
      return "CANCELLED";
    case PJRT_Error_Code_UNKNOWN:
      return "UNKNOWN";
    case PJRT_Error_Code_INVALID_ARGUMENT:
      return "INVALID_ARGUMENT";
    case PJRT_Error_Code_DEADLINE_EXCEEDED:
      return "DEADLINE_EXCEEDED";
    case PJRT_Error_Code_NOT_FOUND:
      return "NOT_FOUND";
    case PJRT_Error_Code_ALREADY_EXISTS:
      return "ALREADY_EXISTS";
    case PJRT_Error_Code_PERMISSION_DENIED:
      return "PERMISSION_DENIED";
    case PJRT_Error_Code_RESOURCE_EXHAUSTED:
      return "RESOURCE_EXHAUSTED";
    case PJRT_Error_Code_FAILED_PRECONDITION:
      return "FAILED_PRECONDITION";
    case PJRT_Error_Code_ABORTED:
      return "ABORTED";
    case PJRT_Error_Code_OUT_OF_RANGE:
      return "OUT_OF_RANGE";
    case PJRT_Error_Code_UNIMPLEMENTED:
      return "UNIMPLEMENTED";
    case PJRT_Error_Code_INTERNAL:
      return "INTERNAL";
    case PJRT_Error_Code_UNAVAILABLE:
      return "UNAVAILABLE";
    case PJRT_Error_Code_DATA_LOSS:
      return "DATA_LOSS";
    case PJRT_Error_Code_UNAUTHENTICATED:
      return "UNAUTHENTICATED";
  }
  return "UNKNOWN";
}

Error::Error(PJRT_Error_Code code, std::string function, std::string message)
    : std::runtime_error("[" + function + "] " + code_name(code) + ": " + message),
      code_(code),
      function_(std::move(function)),
      message_(std::move(message)) {}

void discard(const PJRT_Api* api, PJRT_Error* error) noexcept {
  if (error == nullptr) return;
  auto args = make_args<PJRT_Error_Destroy_Args>();
  args.error = error;
  api->PJRT_Error_Destroy(&args);
}

Error take_error(const PJRT_Api* api, PJRT_Error* error, const char* function) {
  // Frees also when a copy of the message fails.
  struct Free {
    const PJRT_Api* api;
    PJRT_Error* error;
    ~Free() { discard(api, error); }
  } const free{api, error};

  auto text = make_args<PJRT_Error_Message_Args>();
  text.error = error;
  api->PJRT_Error_Message(&text);

  auto code = make_args<PJRT_Error_GetCode_Args>();
  code.error = error;
  code.code = PJRT_Error_Code_UNKNOWN;
  discard(api, api->PJRT_Error_GetCode(&code));
  return Error(code.code, function, std::string(text.message, text.message_size));
}

void throw_error(const PJRT_Api* api, PJRT_Error* error, const char* function) {
  throw take_error(api, error, function);
}

std::string api_version_string(const PJRT_Api* api) {
  return std::to_string(api->pjrt_api_version.major_version) + "." +
         std::to_string(api->pjrt_api_version.minor_version);
}

void throw_missing_function(const PJRT_Api* api, const char* function) {
  throw Error(PJRT_Error_Code_UNIMPLEMENTED, function,
              "the plugin (PJRT API " + api_version_string(api) +
                  ") does not have this function. Install a newer plugin.");
}

}  // namespace torch_tpu::pjrt
