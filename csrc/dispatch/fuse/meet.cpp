#include "csrc/dispatch/fuse/meet.h"

#include <c10/util/Exception.h>

#include "csrc/cache/compile_pool.h"
#include "csrc/cache/fused_cache.h"
#include "csrc/cache/program_store.h"
#include "csrc/dispatch/fuse/families.h"
#include "csrc/dispatch/program/build.h"

namespace torch_tpu::dispatch {
namespace {

using cache::FusedCache;
using trace::FusedProgram;

// May run on a thread of the pool; by who claimed the code.
void compile_fused(const trace::FusedPtr& program) noexcept {
  try {
    double seconds = 0;
    const std::string text = trace::lower_fused(*program);
    auto executable = compile(program->name, program->fingerprint, text, seconds);
    program->code.publish(std::move(executable), trace::Code::Origin::kCompiled, seconds);
    cache::ProgramStore::get().store_code(program->stable_key(), program->code);
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

// How many ops of the piece are new. An op is new in one piece only, whether that compiled it or
// not, so however much pieces differ there are no more pieces with new ops than there are ops for
// them. What is on disk or compiled by now does not count: processes that do the same shall have
// the same programs.
size_t count_new(const trace::Segment& segment) {
  size_t fresh = 0;
  for (const trace::TraceNode& node : segment.nodes) {
    fresh += static_cast<size_t>(!node.program->met.exchange(true, std::memory_order_relaxed));
  }
  return fresh;
}
constexpr size_t kManyOps = 12;

// Nearly all are: 2.5 nodes for each new op at most.
bool is_mostly_new(const trace::Segment& segment, size_t fresh) {
  return fresh >= kManyOps && segment.nodes.size() * 2 <= fresh * 5;
}

// One program for such a piece costs less than compiling its ops, which several threads do at once,
// only while it is small: a model's first piece with 35 ops takes 0.9 of the time, one with 56 as
// long. What is larger, a first training step or a prompt, seldom comes again as it is.
constexpr size_t kSmallPiece = 48;

}  // namespace

trace::FusedPtr meet(const trace::Segment& segment, const trace::Signature& signature,
                     base::CompileWhen when) {
  FusedCache& cache = FusedCache::get();
  trace::FusedPtr program = cache.find(signature);
  size_t fresh = 0;
  if (!program) {
    fresh = count_new(segment);
    program = c10::make_intrusive<FusedProgram>(segment, signature);
    if (when != base::CompileWhen::kNever) load_fused(*program);
    cache.insert(program);
  }
  program->sights.fetch_add(1);
  if (program->code.state() != trace::Code::State::kAbsent) return program;
  if (!program->lowerable()) {
    ask_for_nodes(*program);
    return program;
  }
  // Two devices may meet it at once: who claims the code compiles.
  const auto compile_now = [&] {
    if (program->code.claim()) compile_fused(program);
  };
  if (when == base::CompileWhen::kFirst) {
    compile_now();
  } else if (when == base::CompileWhen::kSecond &&
             meet_family(program, segment, signature, /*soon=*/fresh >= kManyOps)) {
    if (program->code.claim() &&
        !cache::CompilePool::get().submit([program] { compile_fused(program); })) {
      program->code.abandon();  // asked again when it is met next
    }
  } else if (when == base::CompileWhen::kSecond && is_mostly_new(segment, fresh) &&
             program->service() == nullptr && segment.nodes.size() <= kSmallPiece) {
    compile_now();
  }
  return program;
}

}  // namespace torch_tpu::dispatch
