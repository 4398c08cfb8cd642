// The C callbacks around a KeyValueStore.
#include "csrc/pjrt/key_value.h"

#include <cstring>
#include <exception>

namespace torch_tpu::pjrt {
namespace {

PJRT_Error* make_error(PJRT_CallbackError* callback_error, PJRT_Error_Code code,
                       const std::string& message) {
  return (*callback_error)(code, message.data(), message.size());
}

// Runs `body`; what it throws becomes a PJRT error, since the caller is C.
template <class Body>
PJRT_Error* guarded(PJRT_CallbackError* callback_error, Body&& body) {
  try {
    return body();
  } catch (const Error& error) {
    return make_error(callback_error, error.code(), error.message());
  } catch (const std::exception& error) {
    return make_error(callback_error, PJRT_Error_Code_UNKNOWN, error.what());
  } catch (...) {
    return make_error(callback_error, PJRT_Error_Code_UNKNOWN, "unknown exception");
  }
}

KeyValueStore& store_of(void* user_arg) { return *static_cast<KeyValueStore*>(user_arg); }

// The plugin copies the value and then calls the deleter.
template <class Args>
void give_value(Args* args, const std::string& value) {
  args->value = new char[value.size()];
  args->value_size = value.size();
  std::memcpy(args->value, value.data(), value.size());
  args->value_deleter_callback = [](char* data) { delete[] data; };
}

PJRT_Error* get(PJRT_KeyValueGetCallback_Args* args) {
  return guarded(args->callback_error, [&]() -> PJRT_Error* {
    const std::string key(args->key, args->key_size);
    give_value(args, store_of(args->user_arg).get(key, args->timeout_in_ms));
    return nullptr;
  });
}

PJRT_Error* try_get(PJRT_KeyValueTryGetCallback_Args* args) {
  return guarded(args->callback_error, [&]() -> PJRT_Error* {
    const std::string key(args->key, args->key_size);
    const auto value = store_of(args->user_arg).try_get(key);
    if (!value) {
      return make_error(args->callback_error, PJRT_Error_Code_NOT_FOUND, "no key " + key);
    }
    give_value(args, *value);
    return nullptr;
  });
}

PJRT_Error* put(PJRT_KeyValuePutCallback_Args* args) {
  return guarded(args->callback_error, [&]() -> PJRT_Error* {
    store_of(args->user_arg)
        .put(std::string(args->key, args->key_size), std::string(args->value, args->value_size));
    return nullptr;
  });
}

}  // namespace

void set_key_value_callbacks(PJRT_Client_Create_Args& args, KeyValueStore& store) noexcept {
  args.kv_get_callback = get;
  args.kv_get_user_arg = &store;
  args.kv_put_callback = put;
  args.kv_put_user_arg = &store;
  args.kv_try_get_callback = try_get;
  args.kv_try_get_user_arg = &store;
}

}  // namespace torch_tpu::pjrt
