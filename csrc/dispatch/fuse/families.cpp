#include "csrc/dispatch/fuse/families.h"

#include <bit>
#include <cstdio>

#include <c10/util/Exception.h>

#include "csrc/cache/fused_cache.h"
#include "csrc/cache/program_store.h"
#include "csrc/dispatch/program/build.h"
#include "csrc/stablehlo/axis.h"
#include "csrc/trace/bounded.h"
#include "csrc/trace/family.h"

namespace torch_tpu::dispatch {
namespace {

using trace::FusedProgram;
using State = FusedProgram::State;

// True when it was not in one before.
bool join_family(FusedProgram& piece) {
  if (piece.family) return false;
  trace::Key structure;
  trace::Numbers numbers;
  if (!trace::describe(piece, structure, numbers)) return false;
  piece.family = cache::FusedCache::get().family(std::move(structure));
  piece.family->add(std::move(numbers));
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

// Null, and the family knows why, when it cannot be had.
trace::FusedPtr make_bounded(const FusedProgram& piece, const trace::Segment& segment,
                             const trace::Signature& signature,
                             std::unique_ptr<trace::Bounds> bounds) {
  auto program = c10::make_intrusive<FusedProgram>(segment, signature);
  const std::shared_ptr<const trace::Forms> forms = bounds->forms;
  program->new_bytes = bytes_of(*bounds, piece, segment);
  program->bounds = std::move(bounds);
  program->scalars.sizes = 1;
  program->donated.clear();
  program->fingerprint = program->stable_key().hash();
  char name[32];
  std::snprintf(name, sizeof name, "bounded_%016llx",
                static_cast<unsigned long long>(program->fingerprint));
  program->name = name;
  if (!cache::ProgramStore::get().load(*program)) {
    std::string text;
    try {
      text = trace::lower_bounded(*program);
    } catch (const stablehlo::Unproven& error) {
      piece.family->refuse(forms, error.what());
      return {};
    } catch (const std::exception& error) {
      // A lowering that takes other sizes than these; the piece runs as it is.
      piece.family->refuse(forms, error.what());
      return {};
    }
    try {
      program->executable = compile(program->name, program->fingerprint, text,
                                    program->compile_seconds, /*quick=*/true);
    } catch (const std::exception& error) {
      piece.family->refuse(forms, error.what());
      cache::FusedCache::get().count_failure();
      TORCH_WARN(
          "Fused Eager could not compile ", program->name, " (", program->nodes.size(),
          " ops, sizes up to ", program->bounds->bound,
          "); there will be programs for single sizes instead. The compiler said: ", error.what());
      return {};
    }
    program->temp_bytes = program->executable.executable().temp_bytes();
    cache::ProgramStore::get().store(*program);
  }
  program->state.store(State::kReady, std::memory_order_release);
  cache::FusedCache::get().insert_bounded(program);
  piece.family->keep(program);
  return program;
}

}  // namespace

bool meet_family(const trace::FusedPtr& piece, const trace::Segment& segment,
                 const trace::Signature& signature, bool soon) {
  const bool fresh = join_family(*piece);
  const uint64_t sights = piece->sights.load();
  if (!piece->family) return sights > 1;
  // Not every time: what did not help the last time rarely does now.
  if (!piece->bounded && (fresh || std::has_single_bit(sights))) {
    trace::Family::Service service = piece->family->serve(*piece, fresh, soon);
    if (service.bounds) {
      service.program = make_bounded(*piece, segment, signature, std::move(service.bounds));
    }
    if (service.program) {
      piece->size = service.n;
      piece->bounded = std::move(service.program);
    }
  }
  if (piece->bounded) piece->bounded->sights.fetch_add(1);
  return sights >= piece->family->sights_needed(static_cast<bool>(piece->bounded));
}

}  // namespace torch_tpu::dispatch
