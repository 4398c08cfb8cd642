#include "csrc/dispatch/program/keep.h"

#include "csrc/cache/program_store.h"
#include "csrc/ops/foreign.h"

namespace torch_tpu::dispatch {

bool has_lasting_meaning(const std::string& op) { return op.rfind("aten::", 0) == 0; }

bool is_lasting(const trace::Node& node) {
  return ops::as_foreign(*node.entry) != nullptr || has_lasting_meaning(node.name);
}

void keep_compiled(const trace::Runnable& program) {
  const auto* call = dynamic_cast<const trace::Program*>(&program);
  if (call != nullptr && program.key.size() > 0) {
    cache::ProgramStore::get().store(program.key, *call);
  }
}

}  // namespace torch_tpu::dispatch
