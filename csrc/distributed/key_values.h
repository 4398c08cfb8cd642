// The store through which PJRT clients of several processes find each other, over c10d's. Plugins
// whose client spans processes (TPU, CUDA) ask it while they start.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "csrc/pjrt/key_value.h"

namespace torch_tpu::distributed {

class KeyValues final : public pjrt::KeyValueStore {
 public:
  explicit KeyValues(const c10::intrusive_ptr<c10d::Store>& store);
  std::string get(const std::string& key, int timeout_ms) override;
  std::optional<std::string> try_get(const std::string& key) override;
  void put(const std::string& key, const std::string& value) override;

 private:
  const c10::intrusive_ptr<c10d::Store> store_;
};

}  // namespace torch_tpu::distributed
