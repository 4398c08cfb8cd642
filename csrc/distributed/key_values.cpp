#include "csrc/distributed/key_values.h"

#include <thread>

namespace torch_tpu::distributed {

// A connection of our own: one that waits keeps all others from using it.
KeyValues::KeyValues(const c10::intrusive_ptr<c10d::Store>& store) : store_(store->clone()) {}

std::optional<std::string> KeyValues::try_get(const std::string& key) {
  if (!store_->check({key})) return std::nullopt;
  return store_->get_to_str(key);
}

std::string KeyValues::get(const std::string& key, int timeout_ms) {
  using namespace std::chrono_literals;
  // Asking again and again, not waiting: several threads of the plugin share the connection.
  const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(timeout_ms);
  for (auto pause = 1ms;; pause = std::min<std::chrono::milliseconds>(pause * 2, 50ms)) {
    if (std::optional<std::string> value = try_get(key)) return *value;
    if (std::chrono::steady_clock::now() > until) {
      throw pjrt::Error(
          PJRT_Error_Code_DEADLINE_EXCEEDED, "KeyValueStore::get",
          "no process has put '" + key + "' within " + std::to_string(timeout_ms) + " ms.");
    }
    std::this_thread::sleep_for(pause);
  }
}

void KeyValues::put(const std::string& key, const std::string& value) { store_->set(key, value); }

}  // namespace torch_tpu::distributed
