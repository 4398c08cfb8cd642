#include "csrc/dispatch/fuse/families.h"

#include <bit>
#include <cstdio>
#include <mutex>

#include <c10/util/Exception.h>

#include "csrc/base/gil.h"
#include "csrc/cache/fused_cache.h"
#include "csrc/cache/program_store.h"
#include "csrc/dispatch/program/build.h"
#include "csrc/stablehlo/axis.h"
#include "csrc/trace/bounded.h"
#include "csrc/trace/family.h"

namespace torch_tpu::dispatch {
namespace {

using trace::FusedProgram;

// True when it was not in one before. Under the piece's mutex.
bool join_family(FusedProgram& piece, std::shared_ptr<trace::Family>& family) {
  if (family) return false;
  trace::Key structure;
  trace::Numbers numbers;
  if (!trace::describe(piece, structure, numbers)) return false;
  family = cache::FusedCache::get().family(std::move(structure));
  family->add(std::move(numbers));
  return true;
}

int64_t bytes_of(const trace::Bounds& bounds, const FusedProgram& piece,
                 const trace::Segment& segment) {
  int64_t bytes = 0;
  for (size_t i = 0; i < piece.alive.size(); ++i) {
    const trace::DeviceValue& value = *segment.outputs[piece.alive[i]];
    const trace::Shape& room = bounds.results[i];
    bytes +=
        room.empty() ? value.bytes() : trace::numel(room) * stablehlo::dtype_bytes(value.dtype());
  }
  return bytes;
}

// Not lowered yet.
trace::FusedPtr bounded_program(const FusedProgram& piece, const trace::Segment& segment,
                                const trace::Signature& signature, const trace::Bounds& bounds) {
  auto program = c10::make_intrusive<FusedProgram>(segment, signature);
  program->new_bytes = bytes_of(bounds, piece, segment);
  program->bounds = std::make_unique<trace::Bounds>(bounds);
  program->scalars.sizes = static_cast<uint32_t>(bounds.symbols);
  program->donated.clear();
  program->fingerprint = program->stable_key().hash();
  char name[32];
  std::snprintf(name, sizeof name, "bounded_%016llx",
                static_cast<unsigned long long>(program->fingerprint));
  program->name = name;
  return program;
}

// The program, from disk or with the text to compile; null, and why in `refusal`, when what counts
// is not proven for its sizes.
trace::FusedPtr load_or_lower(const FusedProgram& piece, const trace::Segment& segment,
                              const trace::Signature& signature, const trace::Bounds& bounds,
                              std::string& text, std::string& refusal) {
  trace::FusedPtr program = bounded_program(piece, segment, signature, bounds);
  if (load_fused(*program)) return program;
  program->code.claim();
  try {
    text = trace::lower_bounded(*program);
    return program;
  } catch (const std::exception& error) {
    // Not proven, or a lowering that takes other sizes than these.
    refusal = error.what();
    return {};
  }
}

// Null, and the family knows why, when it cannot be had: the piece runs as it is.
trace::FusedPtr make_bounded(const FusedProgram& piece, trace::Family& family,
                             const trace::Segment& segment, const trace::Signature& signature,
                             trace::Bounds bounds, const trace::Point& n) {
  std::string text, refusal;
  trace::FusedPtr program = load_or_lower(piece, segment, signature, bounds, text, refusal);
  // What holds for all sizes up to the bound holds for small ones too. If not, for the upper half.
  bool raised = false;
  for (size_t s = 0; !program && s < bounds.symbols; ++s) {
    const int64_t upper_half = bounds.high[s] - bounds.bound[s] / 2 + 1;
    if (upper_half <= bounds.low[s] || n[s] < upper_half) continue;
    bounds.low[s] = upper_half;
    raised = true;
  }
  if (raised) program = load_or_lower(piece, segment, signature, bounds, text, refusal);
  if (!program) {
    family.refuse(bounds.forms, refusal);
    return {};
  }
  if (!program->code.ready()) {
    try {
      double seconds = 0;
      auto executable = compile(program->name, program->fingerprint, text, seconds, /*quick=*/true);
      program->code.publish(std::move(executable), trace::Code::Origin::kCompiled, seconds);
    } catch (const std::exception& error) {
      family.refuse(bounds.forms, error.what());
      cache::FusedCache::get().count_failure();
      TORCH_WARN(
          "Fused Eager could not compile ", program->name, " (", program->nodes.size(),
          " ops, sizes up to ", program->bounds->bound[0],
          "); there will be programs for single sizes instead. The compiler said: ", error.what());
      return {};
    }
    cache::ProgramStore::get().store_code(program->stable_key(), program->code);
  }
  cache::FusedCache::get().insert_bounded(program);
  family.keep(program);
  return program;
}

}  // namespace

bool load_fused(FusedProgram& program) {
  cache::ProgramStore& store = cache::ProgramStore::get();
  const trace::Key key = program.stable_key();
  const trace::Runnable::Stored stored = store.find_code(key);
  if (stored.code.empty() || !program.code.claim()) return false;
  pjrt::LoadedExecutable loaded =
      store.load_code(key, stored, cache::result_types(program), program.name, program.fingerprint);
  if (!loaded) {
    program.code.abandon();
    return false;
  }
  program.code.publish(std::move(loaded), stored.origin, stored.compile_seconds);
  return true;
}

bool meet_family(const trace::FusedPtr& piece, const trace::Segment& segment,
                 const trace::Signature& signature, bool soon) {
  // Two devices may meet the same piece at once: one of them makes what serves it, without Python's
  // lock, which compiling may need.
  std::unique_lock lock(piece->family_mutex(), std::try_to_lock);
  if (!lock.owns_lock()) {
    const base::WithoutGil released;
    lock.lock();
  }
  std::shared_ptr<trace::Family> family = piece->joined();
  const bool fresh = join_family(*piece, family);
  if (fresh) piece->join(family);
  const uint64_t sights = piece->sights.load();
  if (!family) return sights > 1;
  // Not every time: what did not help the last time rarely does now.
  if (piece->service() == nullptr && (fresh || std::has_single_bit(sights))) {
    trace::Family::Service service = family->serve(*piece, soon);
    if (service.bounds) {
      service.program =
          make_bounded(*piece, *family, segment, signature, *service.bounds, service.n);
    }
    if (service.program) piece->serve({std::move(service.program), service.n});
  }
  const FusedProgram::Service* served = piece->service();
  if (served != nullptr) served->program->sights.fetch_add(1);
  return sights >= family->sights_needed(served != nullptr);
}

}  // namespace torch_tpu::dispatch
