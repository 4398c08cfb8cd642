#include "csrc/dispatch/find_program.h"

#include <mutex>
#include <unordered_map>

#include "csrc/base/digest.h"
#include "csrc/base/fork.h"
#include "csrc/cache/program_cache.h"
#include "csrc/cache/program_store.h"
#include "csrc/dispatch/call/mode.h"
#include "csrc/dispatch/program/build.h"
#include "csrc/dispatch/program/keep.h"
#include "csrc/dispatch/report/misses.h"
#include "csrc/dispatch/tiers/decompose.h"
#include "csrc/ops/foreign.h"

namespace torch_tpu::dispatch {
namespace {

// Programs from disk do not know their call, which costs a little to find out. Where an op comes
// with several sizes, Fused Eager will ask: pieces whose sizes change are compared by their nodes.
bool sizes_change(const trace::Program& program) {
  static std::mutex mutex;
  static auto* counts = new std::unordered_map<uint64_t, int>();
  const std::lock_guard lock(mutex);
  return ++(*counts)[program.flavor] > 1;
}

// A decomposition may have failed for reasons that lie in this process.
bool worth_keeping(const Op& op, const trace::Answer& answer) {
  return op.entry->lower != nullptr || std::holds_alternative<trace::ProgramPtr>(answer);
}

// A kernel of the user's may change while its name and key stay: its programs are known by their
// text, too.
void add_text(trace::Key& key, const std::string& text) {
  const base::Digest digest = base::digest(text);
  key.add(digest.high);
  key.add(digest.low);
}

void find_code(trace::Program& program) {
  const trace::Answer stored = cache::ProgramStore::get().load(program.key);
  if (const auto* known = std::get_if<trace::ProgramPtr>(&stored)) {
    program.stored = std::move((*known)->stored);
  }
}

}  // namespace

trace::Answer load_or_build(const Frame& frame, uint64_t hash, bool& built) {
  // Before anything is locked or made once: another thread may have been at it when this process
  // was forked.
  if (base::in_bad_fork()) base::throw_bad_fork();
  note_miss(frame);
  cache::ProgramCache& memory = cache::ProgramCache::get();
  cache::ProgramStore& store = cache::ProgramStore::get();
  const bool lasting = has_lasting_meaning(frame.op.name);
  if (lasting) {
    trace::Answer stored = store.load(frame.key);
    if (trace::is_known(stored)) {
      if (frame.op.entry->lower == nullptr) add_decomposed_op(frame.op.name);
      if (auto* program = std::get_if<trace::ProgramPtr>(&stored)) {
        (*program)->lasting = true;
        if (mode() == base::Mode::kFused && (*program)->fusible && sizes_change(**program)) {
          add_node(frame, **program);
        }
      }
      return memory.insert(frame.key, hash, std::move(stored));
    }
  }
  built = true;
  trace::Answer made =
      frame.op.entry->lower == nullptr ? build_decomposed(frame) : build_program(frame);
  if (auto* program = std::get_if<trace::ProgramPtr>(&made)) {
    (*program)->key = frame.key;
    if (ops::as_foreign(*frame.op.entry) != nullptr) {
      add_text((*program)->key, (*program)->text);
      find_code(**program);
    }
  }
  if (lasting && worth_keeping(frame.op, made)) store.store(frame.key, made);
  return memory.insert(frame.key, hash, std::move(made));
}

}  // namespace torch_tpu::dispatch
