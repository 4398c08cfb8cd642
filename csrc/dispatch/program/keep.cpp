#include "csrc/dispatch/program/keep.h"

#include "csrc/cache/program_store.h"
#include "csrc/ops/foreign.h"

namespace torch_tpu::dispatch {

bool has_lasting_meaning(const std::string& op) { return op.rfind("aten::", 0) == 0; }

void keep_compiled(const trace::Program& program) {
  const bool foreign = program.node && ops::as_foreign(*program.node->entry) != nullptr;
  if (program.key.size() > 0 && (foreign || has_lasting_meaning(program.name))) {
    cache::ProgramStore::get().store(program.key, program);
  }
}

}  // namespace torch_tpu::dispatch
