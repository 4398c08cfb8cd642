// What a process needs before a plugin library is loaded into it: variables the
// library reads at start, and the shared libraries it depends on.
#pragma once

#include <string>
#include <vector>

#include "csrc/pjrt/plugin.h"

namespace torch_tpu::pjrt {

// Lives while a plugin is loaded and initialized, with the loader's lock held.
// Never changes a variable the user has set. Other threads may read the
// environment meanwhile: see csrc/base/variables.h.
class ProcessPreparation {
 public:
  ProcessPreparation(PlatformKind kind, const std::vector<std::string>& search_dirs);
  // Takes back what was only needed during the load.
  ~ProcessPreparation();
  ProcessPreparation(const ProcessPreparation&) = delete;
  ProcessPreparation& operator=(const ProcessPreparation&) = delete;

 private:
  bool log_level_set_ = false;
};

// Takes back what the first compilation has read.
void after_compilation();

}  // namespace torch_tpu::pjrt
