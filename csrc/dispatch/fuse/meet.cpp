#include "csrc/dispatch/fuse/meet.h"

#include <unordered_set>

#include <c10/util/Exception.h>

#include "csrc/cache/compile_costs.h"
#include "csrc/cache/compile_pool.h"
#include "csrc/cache/fused_cache.h"
#include "csrc/dispatch/fuse/compile_piece.h"
#include "csrc/dispatch/fuse/families.h"

namespace torch_tpu::dispatch {
namespace {

using cache::FusedCache;
using trace::FusedProgram;

// May run on a thread of the pool; by who claimed the code.
void compile_or_warn(const trace::FusedPtr& program, Haste haste) noexcept {
  try {
    compile_piece(*program, haste);
  } catch (const std::exception& error) {
    if (program->code.ready()) return;  // it was only not kept
    FusedCache::get().count_failure();
    program->code.fail(error.what());
    TORCH_WARN("Fused Eager could not compile ", program->name, " (", program->nodes.size(),
               " ops, the first ", program->nodes.front()->name,
               "); its ops run one by one instead. The compiler said: ", error.what());
  }
}

// Programs from disk do not know their call; they will once it comes again.
void ask_for_nodes(const FusedProgram& program) {
  for (const trace::ProgramPtr& node : program.nodes) {
    if (!node->has_node()) node->wants_node.store(true);
  }
}

// The ops of a new piece that have no code. An op that many pieces need is worth compiling once for
// all of them, so in each further piece it counts for less: pieces that never come again are not
// compiled whole forever.
struct Missing {
  size_t programs = 0;
  double worth = 0;
};

Missing find_missing(const trace::Segment& segment) {
  Missing out;
  std::unordered_set<const trace::Program*> known;
  for (const trace::TraceNode& node : segment.nodes) {
    const trace::Program& program = *node.program;
    if (program.code.ready() || program.found) continue;
    if (!known.insert(&program).second) continue;
    ++out.programs;
    out.worth += 1.0 / (1.0 + program.pieces.fetch_add(1, std::memory_order_relaxed));
  }
  return out;
}

// Fewer are compiled one by one in hardly any time, and small pieces differ more often than not.
constexpr size_t kManyOps = 12;

bool is_cheaper_whole(const trace::Segment& segment, const Missing& missing) {
  if (missing.programs < kManyOps) return false;
  return cache::CompileCosts::get().piece_is_cheaper(segment.nodes.size(), missing.worth,
                                                     1 + cache::CompilePool::get().max_threads());
}

// How often quick code must have run before better code is compiled, by how likely something else
// takes its place.
constexpr uint64_t kRunsOfChain = 4;

}  // namespace

trace::FusedPtr meet(const trace::Segment& segment, const trace::Signature& signature,
                     base::CompileWhen when, Part part) {
  FusedCache& cache = FusedCache::get();
  trace::FusedPtr program = cache.find(signature);
  Missing missing;
  if (!program) {
    if (part != Part::kWithChain) missing = find_missing(segment);
    program = c10::make_intrusive<FusedProgram>(segment, signature);
    if (when != base::CompileWhen::kNever) load_piece(*program);
    cache.insert(program);
  }
  const uint64_t sights = program->sights.fetch_add(1) + 1;
  if (program->code.state() != trace::Code::State::kAbsent) {
    const bool often = part == Part::kChain ? sights > kRunsOfChain : sights > 1;
    if (often && program->code.quick()) {
      if (program->lowerable()) {
        improve_later(program);
      } else {
        ask_for_nodes(*program);
      }
    }
    return program;
  }
  if (!program->lowerable()) {
    ask_for_nodes(*program);
    return program;
  }
  // Two devices may meet it at once: who claims the code compiles.
  const auto compile_now = [&](Haste haste) {
    if (program->code.claim()) compile_or_warn(program, haste);
  };
  if (when == base::CompileWhen::kFirst) {
    compile_now(Haste::kNone);
  } else if (when == base::CompileWhen::kSecond && part == Part::kChain) {
    compile_now(Haste::kSoon);
  } else if (when == base::CompileWhen::kSecond) {
    const bool many = missing.programs >= kManyOps;
    if (meet_family(program, segment, signature, {.soon = many, .serves = part == Part::kWhole})) {
      if (program->code.claim() && !cache::CompilePool::get().submit(
                                       [program] { compile_or_warn(program, Haste::kNone); })) {
        program->code.abandon();  // asked again when it is met next
      }
    } else if (program->service() == nullptr && is_cheaper_whole(segment, missing)) {
      compile_now(Haste::kSoon);
    }
  }
  return program;
}

}  // namespace torch_tpu::dispatch
