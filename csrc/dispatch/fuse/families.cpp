#include "csrc/dispatch/fuse/families.h"

#include <algorithm>
#include <bit>
#include <cstdio>
#include <mutex>

#include <c10/util/Exception.h>

#include "csrc/base/gil.h"
#include "csrc/cache/compile_pool.h"
#include "csrc/cache/fused_cache.h"
#include "csrc/dispatch/fuse/compile_piece.h"
#include "csrc/pjrt/error.h"
#include "csrc/pjrt/runtime.h"
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

// By who claimed the code, in any thread. False, and why, where the program cannot be had.
bool compile_bounded(const trace::FusedPtr& program, Haste haste, std::string& refusal) noexcept {
  try {
    compile_piece(*program, haste);
    return true;
  } catch (const stablehlo::Unproven& error) {
    refusal = error.what();
  } catch (const pjrt::Error& error) {
    refusal = error.what();
    cache::FusedCache::get().count_failure();
    try {
      TORCH_WARN("Fused Eager could not compile ", program->name, " (", program->nodes.size(),
                 " ops, sizes up to ", program->bounds->high[0],
                 "); other programs serve these sizes. The compiler said: ", error.what());
    } catch (...) {  // warnings are errors here
    }
  } catch (const std::exception& error) {
    refusal = error.what();  // a lowering that takes other sizes than these
  }
  if (program->code.ready()) return true;  // it was only not kept
  program->code.fail(refusal);
  return false;
}

// The first that can be had. Null, and the family knows why, when none can: the piece runs as it
// is.
trace::FusedPtr make_bounded(const FusedProgram& piece, trace::Family& family,
                             const trace::Segment& segment, const trace::Signature& signature,
                             std::vector<trace::Bounds> choices, const trace::Point& n) {
  // What holds for all sizes up to a bound holds for small ones too. If not, for the upper half.
  trace::Bounds upper = choices.back();
  for (size_t s = 0; s < upper.symbols; ++s) {
    const int64_t half = upper.high[s] - upper.bound[s] / 2 + 1;
    if (n[s] >= half) upper.low[s] = std::max(upper.low[s], half);
  }
  if (upper.low != choices.back().low) choices.push_back(upper);
  std::string refusal;
  for (const trace::Bounds& bounds : choices) {
    trace::FusedPtr program = bounded_program(piece, segment, signature, bounds);
    const bool there = load_piece(*program) ||
                       (program->code.claim() && compile_bounded(program, Haste::kSoon, refusal));
    if (!there) continue;
    cache::FusedCache::get().insert_bounded(program);
    family.keep(program);
    return program;
  }
  family.refuse(choices.front().forms, refusal);
  return {};
}

// A program that would serve the piece better, made in the background.
void make_ahead(const FusedProgram& piece, trace::Family& family, const trace::Segment& segment,
                const trace::Signature& signature, const trace::Bounds& bounds, Haste haste) {
  trace::FusedPtr program = bounded_program(piece, segment, signature, bounds);
  if (!load_piece(*program) && !cache::CompilePool::get().submit([program, haste] {
        std::string refusal;
        // Somebody who needs it at once may have come first.
        if (program->code.claim()) compile_bounded(program, haste, refusal);
      })) {
    return;  // asked again when the piece is met next
  }
  cache::FusedCache::get().insert_bounded(program);
  family.keep(program);
}

// Waits for a program that is being compiled, or compiles it; false: it cannot be had.
bool have_code(const trace::FusedPtr& program) {
  if (program->code.claim()) {
    std::string refusal;
    const base::WithoutGil released;
    return compile_bounded(program, Haste::kSoon, refusal);
  }
  program->code.wait();
  return program->code.ready();
}

// All results of the piece, which are an upper bound of what it needs at once, with four times the
// room in each of two dimensions, in a part of the device's memory.
bool has_room_to_grow(const trace::Segment& segment, int64_t memory) {
  int64_t bytes = 0;
  for (const trace::ValuePtr& output : segment.outputs) bytes += output->bytes();
  return memory == 0 || bytes * 16 < memory / 4;
}

}  // namespace

bool meet_family(const trace::FusedPtr& piece, const trace::Segment& segment,
                 const trace::Signature& signature, MeetFamily how) {
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
  if (!how.serves) return sights >= family->sights_needed(false);
  const FusedProgram::Service* served = piece->service();
  // Not every time: what did not help the last time rarely does now.
  if (served == nullptr && (fresh || std::has_single_bit(sights))) {
    const int64_t memory = pjrt::Runtime::get().device_memory(segment.outputs.front()->device());
    trace::Family::Service service =
        family->serve(*piece, how.soon, has_room_to_grow(segment, memory));
    if (!service.bounds.empty()) {
      service.program =
          make_bounded(*piece, *family, segment, signature, std::move(service.bounds), service.n);
    } else if (service.program && !service.program->code.ready() && !have_code(service.program)) {
      service.program = nullptr;
    }
    if (service.program) piece->serve({std::move(service.program), service.n});
  } else if (served != nullptr) {
    trace::FusedPtr best = family->best(*served);
    if (best != served->program) piece->serve({std::move(best), served->sizes});
  }
  served = piece->service();
  if (served == nullptr) return sights >= family->sights_needed(false);
  served->program->sights.fetch_add(1);
  if (served->program->code.quick()) improve_later(served->program);
  if (const auto bounds = family->plan_ahead(*piece, *served, sights)) {
    const trace::Point& had = served->program->bounds->bound;
    const trace::Point& bound = bounds->bound;
    const bool much =
        bound[0] * bound[1] > had[0] * had[1] || bound[0] * bound[1] <= had[0] * had[1] / 2;
    make_ahead(*piece, *family, segment, signature, *bounds, much ? Haste::kSoon : Haste::kNone);
  }
  return sights >= family->sights_needed(true);
}

}  // namespace torch_tpu::dispatch
