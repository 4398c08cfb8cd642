// The key-value store through which the clients of several processes find each
// other. Implemented by the distributed layer over its own store.
#pragma once

#include <optional>
#include <string>

#include "csrc/pjrt/api.h"

namespace torch_tpu::pjrt {

// Called from threads of the plugin, several at a time: must be thread-safe.
// Exceptions become PJRT errors; a timeout of get should throw
// Error(PJRT_Error_Code_DEADLINE_EXCEEDED, ...).
class KeyValueStore {
 public:
  virtual ~KeyValueStore() = default;
  // Blocks until the key is there.
  virtual std::string get(const std::string& key, int timeout_ms) = 0;
  virtual std::optional<std::string> try_get(const std::string& key) = 0;
  virtual void put(const std::string& key, const std::string& value) = 0;
};

// Fills the callback fields of `args`; `store` must outlive the client.
void set_key_value_callbacks(PJRT_Client_Create_Args& args, KeyValueStore& store) noexcept;

}  // namespace torch_tpu::pjrt
