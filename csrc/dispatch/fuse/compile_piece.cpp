#include "csrc/dispatch/fuse/compile_piece.h"

#include <stdexcept>

#include "csrc/base/hash.h"
#include "csrc/cache/compile_costs.h"
#include "csrc/cache/compile_pool.h"
#include "csrc/cache/program_store.h"
#include "csrc/dispatch/call/compiler_options.h"
#include "csrc/dispatch/program/build.h"
#include "csrc/pjrt/runtime.h"
#include "csrc/trace/bounded.h"

namespace torch_tpu::dispatch {
namespace {

using trace::Code;
using trace::FusedProgram;

// Calls that other threads made while the options changed may be among others: such a piece has no
// options of its own, and its calls run one by one with theirs.
std::string options_of(const FusedProgram& program) {
  const std::string line = options_line(program.nodes.front()->key);
  for (const trace::ProgramPtr& node : program.nodes) {
    if (options_line(node->key) == line) continue;
    throw std::runtime_error("its ops were called with different compiler options");
  }
  return line;
}

std::string lower(const FusedProgram& program) {
  return options_of(program) +
         (program.bounds ? trace::lower_bounded(program) : trace::lower_fused(program));
}

// Quick code has a place of its own, so that better code is found first once it is there.
trace::Key quick_key(trace::Key key) {
  key.add(base::hash_bytes("quick"));
  return key;
}

bool load_from(const trace::Key& key, FusedProgram& program, bool quick) {
  cache::ProgramStore& store = cache::ProgramStore::get();
  const trace::Runnable::Stored stored = store.find_code(key);
  if (stored.code.empty() || !program.code.claim()) return false;
  pjrt::LoadedExecutable loaded =
      store.load_code(key, stored, cache::result_types(program), program.name, program.fingerprint);
  if (!loaded) {
    program.code.abandon();
    return false;
  }
  program.code.publish(std::move(loaded), stored.origin, stored.compile_seconds, quick);
  return true;
}

}  // namespace

bool load_piece(FusedProgram& program) {
  const trace::Key key = program.stable_key();
  if (load_from(key, program, /*quick=*/false)) return true;
  return pjrt::Runtime::get().compiles_quickly() && load_from(quick_key(key), program, true);
}

void compile_piece(FusedProgram& program, Haste haste) {
  const bool quick = haste == Haste::kSoon && pjrt::Runtime::get().compiles_quickly();
  double seconds = 0;
  const std::string text = lower(program);
  auto executable = compile(program.name, program.fingerprint, text, seconds, quick);
  if (haste == Haste::kSoon) cache::CompileCosts::get().note_piece(program.nodes.size(), seconds);
  program.code.publish(std::move(executable), Code::Origin::kCompiled, seconds, quick);
  const trace::Key key = program.stable_key();
  cache::ProgramStore::get().store_code(quick ? quick_key(key) : key, program.code);
}

void improve_later(const trace::FusedPtr& program) {
  if (!program->code.claim_better()) return;
  const bool taken = cache::CompilePool::get().submit([program] {
    try {
      double seconds = 0;
      auto executable = compile(program->name, program->fingerprint, lower(*program), seconds);
      program->code.improve(std::move(executable), seconds);
      cache::ProgramStore::get().store_code(program->stable_key(), program->code);
    } catch (const std::exception&) {
      program->code.leave_quick();  // the same program was compiled before: it goes on as it is
    }
  });
  if (!taken) program->code.stay_quick();  // asked again when it is met next
}

}  // namespace torch_tpu::dispatch
