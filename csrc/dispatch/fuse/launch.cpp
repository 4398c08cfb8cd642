#include "csrc/dispatch/fuse/launch.h"

#include <bit>

#include <c10/util/Exception.h>

#include "csrc/base/journal.h"
#include "csrc/cache/fused_cache.h"
#include "csrc/device/checks.h"
#include "csrc/dispatch/fuse/meet.h"
#include "csrc/dispatch/fuse/padding.h"
#include "csrc/dispatch/fuse/pending.h"
#include "csrc/dispatch/report/waits.h"
#include "csrc/dispatch/run/execute.h"
#include "csrc/dispatch/run/scalar_pool.h"
#include "csrc/trace/bounded.h"

namespace torch_tpu::dispatch {
namespace {

using base::journal::Kind;
using base::journal::Span;
using cache::FusedCache;
using stablehlo::DType;
using trace::FusedProgram;

// Where a program finds no room the ops run one by one: only those fail that find none either, and
// what they would have written in place elsewhere is not lost with them.
bool fits(const FusedProgram& program, int device) {
  trace::Ledger& ledger = trace::Ledger::of(device);
  const int64_t limit = ledger.limit();
  return limit == 0 ||
         ledger.counts().current_bytes + program.new_bytes + program.code.temp_bytes() <= limit;
}

// When the first of the calls was issued; later ones stop where it stops.
uint64_t reports_of(const trace::Segment& segment) {
  uint64_t reports = UINT64_MAX;
  for (const trace::TraceNode& node : segment.nodes) reports = std::min(reports, node.reports);
  return reports;
}

// Whether all of the program's arguments can be used by it: an external that waits for memory
// cannot, nor one that a bad index spoiled where the piece writes what was there before. Waits for
// the flags in that case; those of fresh results go on with them.
bool takes(const FusedProgram& program, const trace::Signature& signature,
           const trace::Segment& segment) {
  for (const trace::DeviceValue* external : signature.externals) {
    if (external->pending()) return false;
    if (!external->guards() || !program.dependencies.replaces_external) continue;
    const uint64_t reports = reports_of(segment);
    for (const trace::Guard& guard : external->guards()->all) {
      if (guard.raises(reports)) return false;
    }
  }
  return true;
}

// An op over lists of tensors compiles a kernel for each of them. Several in a row share these
// kernels when they are compiled together, so that costs less than compiling each.
constexpr size_t kManyResults = 8;

Launcher::Chain find_chain(const trace::Segment& segment) {
  Launcher::Chain chain;
  size_t missing = 0;
  for (size_t n = 0; n < segment.nodes.size(); ++n) {
    const trace::Program& program = *segment.nodes[n].program;
    if (program.outputs.size() >= kManyResults) {
      if (chain.end != n) {
        chain.begin = n;
        missing = 0;
      }
      chain.end = n + 1;
      missing += static_cast<size_t>(!program.code.ready());
    } else if (chain.end == n && missing > 1) {
      return chain;
    }
  }
  return missing > 1 ? chain : Launcher::Chain();
}

// A call alone has its program, which serves no other size: without its code, it may be one of a
// family.
bool may_be_served(const trace::Program& call, base::CompileWhen when) {
  return when == base::CompileWhen::kSecond && !call.code.ready() && !call.found;
}

}  // namespace

void Launcher::run(trace::Segment& segment, int device) {
  const uint32_t thread = segment.nodes.back().thread;
  const Launching launching(segment);
  try {
    run_best(segment, device);
  } catch (...) {  // none is expected: nobody may be left waiting even so
    const std::exception_ptr error = std::current_exception();
    fail(thread, error);
    for (const trace::ValuePtr& output : segment.outputs) {
      if (output && output->pending()) output->fail(error);
    }
  }
}

void Launcher::run_best(trace::Segment& segment, int device) {
  signature_.build(segment);
  const base::CompileWhen when = compile_when();
  if (segment.nodes.size() == 1 && !may_be_served(*segment.nodes[0].program, when)) {
    run_singly(segment, device);
    return;
  }
  const Chain chain = when == base::CompileWhen::kSecond ? find_chain(segment) : Chain();
  const bool is_chain = chain.begin == 0 && chain.end == segment.nodes.size();
  const Part part = is_chain ? Part::kChain : chain.end == 0 ? Part::kWhole : Part::kWithChain;
  const trace::FusedPtr program = meet(segment, signature_, when, part);
  const FusedProgram::Service* service = program->service();
  const bool own = when != base::CompileWhen::kNever && program->code.ready();
  const bool shared = when == base::CompileWhen::kSecond && service != nullptr;
  // Quick code for these sizes takes longer than good code for all.
  const bool shared_first =
      own && shared && program->code.quick() && !service->program->code.quick();
  if (takes(*program, signature_, segment)) {
    const auto run_own = [&] {
      return own && fits(*program, device) && run_fused(program, program, segment, device);
    };
    const auto run_shared = [&] {
      return shared && fits(*service->program, device) &&
             run_fused(service->program, program, segment, device);
    };
    if (shared_first ? run_shared() || run_own() : run_own() || run_shared()) return;
  }
  const Span span(Kind::kReplay, program->name, program->fingerprint,
                  static_cast<int64_t>(segment.nodes.size()));
  if (part == Part::kWithChain) {
    run_parts(segment, chain, device);
  } else {
    run_singly(segment, device);
  }
}

// An optimizer's ops apart from what comes before and after them: these have programs of their own,
// which are there when the optimizer does something else in its next step, or a size changes.
void Launcher::run_parts(trace::Segment& segment, const Chain& chain, int device) {
  // In its first step its states are made of nothing right before.
  size_t states_begin = chain.begin;
  while (states_begin > 0 && segment.num_inputs(states_begin - 1) == 0) --states_begin;
  trace::Segment head = segment.split(states_begin);
  trace::Segment states = segment.split(chain.begin - states_begin);
  trace::Segment middle = segment.split(chain.end - chain.begin);
  for (trace::Segment* part : {&head, &states, &middle, &segment}) {
    if (part->nodes.empty()) continue;
    run_best(*part, device);
    part->clear();
  }
}

void Launcher::retry(int device) {
  if (unfinished_.nodes.empty()) return;
  trace::Segment again;
  std::swap(again, unfinished_);
  no_room_ = nullptr;
  drop_unneeded(again);
  if (again.nodes.empty()) return;
  retrying_ = true;
  signature_.build(again);
  run_singly(again, device);
  retrying_ = false;
}

// What nobody holds any more need not be computed.
void Launcher::drop_unneeded(trace::Segment& segment) {
  signature_.build(segment);
  std::vector<bool> needed(segment.outputs.size(), false);
  for (uint32_t k : signature_.alive) needed[k] = true;
  std::vector<bool> kept(segment.nodes.size(), false);
  for (size_t n = segment.nodes.size(); n-- > 0;) {
    const trace::TraceNode& node = segment.nodes[n];
    for (uint32_t k = 0; k < segment.num_outputs(n); ++k) {
      kept[n] = kept[n] || needed[node.output + k];
    }
    for (uint32_t i = 0; kept[n] && i < segment.num_inputs(n); ++i) {
      const uint32_t ref = segment.inputs[node.input + i]->mark.index;
      if (trace::is_internal(ref)) needed[trace::index_of(ref)] = true;
    }
  }
  trace::Segment rest;
  for (size_t n = 0; n < segment.nodes.size(); ++n) {
    if (kept[n]) rest.append(segment, n);
  }
  segment = std::move(rest);
}

std::vector<Launcher::Failure> Launcher::take_failures() { return std::exchange(failures_, {}); }

namespace {

// All scalars and random states of the segment in one array; see trace::ScalarLayout.
std::vector<uint32_t> pack_words(const trace::Segment& segment) {
  std::vector<uint32_t> words;
  words.reserve(segment.f32.size() + 2 * (segment.s64.size() + segment.rng.size()));
  for (float number : segment.f32) words.push_back(std::bit_cast<uint32_t>(number));
  const auto add = [&](uint64_t number) {
    words.push_back(static_cast<uint32_t>(number));
    words.push_back(static_cast<uint32_t>(number >> 32));
  };
  for (int64_t number : segment.s64) add(static_cast<uint64_t>(number));
  for (uint64_t number : segment.rng) add(number);
  return words;
}

// What a result of the piece depends on, of all that its arguments and its own checks say.
trace::GuardsPtr guards_of(const trace::Dependencies::Result& result,
                           const std::vector<trace::GuardsPtr>& externals,
                           const trace::FlagsPtr& flags, uint64_t reports) {
  trace::GuardUnion all(reports);
  if (!externals.empty()) {
    result.externals.for_each([&](size_t external) { all.add(externals[external]); });
  }
  if (flags) {
    result.spoiled_by.for_each(
        [&](size_t check) { all.add(flags, static_cast<uint32_t>(check), true); });
    result.tells_of.for_each(
        [&](size_t check) { all.add(flags, static_cast<uint32_t>(check), false); });
  }
  return all.take();
}

}  // namespace

bool Launcher::run_fused(const trace::FusedPtr& owner, const trace::FusedPtr& piece,
                         trace::Segment& segment, int device) {
  FusedProgram& program = *owner;
  const trace::Bounds* bounds = program.bounds.get();
  const Span span(Kind::kLaunch, program.name, program.fingerprint,
                  static_cast<int64_t>(segment.nodes.size()), program.new_bytes);
  c10::SmallVector<PJRT_Buffer*, 64> args;
  std::vector<trace::GuardsPtr> guards;  // per external; empty: none has any
  const size_t last = segment.nodes.size() - 1;
  Outputs outs;
  try {
    for (size_t i = 0; i < signature_.externals.size(); ++i) {
      trace::DeviceValue* value = signature_.externals[i];
      const bool pads = bounds != nullptr && !bounds->externals[i].empty();
      args.push_back(pads ? padded_to(*value, bounds->externals[i])->obtain_raw()
                          : value->obtain_raw());
      if (!value->guards()) continue;
      guards.resize(signature_.externals.size());
      guards[i] = value->guards();
    }
    c10::SmallVector<trace::ValuePtr, 2> packs;
    std::vector<uint32_t> words = pack_words(segment);
    for (size_t s = 0; bounds != nullptr && s < bounds->symbols; ++s) {
      words.push_back(static_cast<uint32_t>(piece->service()->sizes[s]));
    }
    if (!words.empty())
      packs.push_back(upload_pack(DType::kU32, words.data(), words.size(), device));
    if (!segment.f64.empty()) {
      packs.push_back(upload_pack(DType::kF64, segment.f64.data(), segment.f64.size(), device));
    }
    for (const trace::ValuePtr& pack : packs) args.push_back(pack->obtain_raw());
    run_executable(program.code.executable(), args, outs, device,
                   {program.new_bytes, program.code.temp_bytes()},
                   [&] { return program.name + ", which ends with " + issued_by(segment, last); });
  } catch (const c10::OutOfMemoryError&) {
    return false;  // op by op there may be room
  } catch (...) {
    const std::exception_ptr error = std::current_exception();
    fail(segment.nodes[last].thread, error);
    for (uint32_t k : program.alive) segment.outputs[k]->fail(error);
    return true;
  }
  std::vector<trace::ValuePtr> results;
  for (uint32_t k : program.alive) results.push_back(std::move(segment.outputs[k]));
  trace::FlagsPtr flags;
  if (!piece->checks.empty()) {
    trace::Flags::Places places;
    for (const auto& check : piece->checks) {
      const trace::TraceNode& node = segment.nodes[check.node];
      places.push_back({check.what, &piece->nodes[check.node]->name, node.line, node.thread});
    }
    flags = device::make_flags(outs.take_from(outs.size() - 1), std::move(places), piece);
  }
  program.runs.fetch_add(1, std::memory_order_relaxed);
  segment.inputs.clear();  // donated memory is counted once, as the result's
  segment.outputs.clear();
  const bool guarded = flags || !guards.empty();
  const uint64_t reports = guarded ? reports_of(segment) : 0;
  for (size_t i = 0; i < results.size(); ++i) {
    trace::GuardsPtr depends;
    if (guarded) {
      depends = guards_of(piece->dependencies.results[piece->alive[i]], guards, flags, reports);
    }
    if (bounds == nullptr || bounds->results[i].empty()) {
      results[i]->settle(outs.take(i), std::move(depends));
    } else {
      const trace::Shape& room = bounds->results[i];
      results[i]->settle_padded(
          c10::make_intrusive<trace::DeviceValue>(outs.take(i), results[i]->dtype(), room,
                                                  trace::contiguous_strides(room), device),
          std::move(depends));
    }
  }
  if (bounds != nullptr) FusedCache::get().count_bounded_run();
  return true;
}

}  // namespace torch_tpu::dispatch
