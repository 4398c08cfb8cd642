#include "csrc/dispatch/fuse/launch.h"

#include <bit>
#include <exception>

#include <c10/util/Exception.h>

#include "csrc/base/journal.h"
#include "csrc/cache/compile_pool.h"
#include "csrc/cache/fused_cache.h"
#include "csrc/cache/program_store.h"
#include "csrc/device/checks.h"
#include "csrc/dispatch/fuse/compile_ahead.h"
#include "csrc/dispatch/fuse/families.h"
#include "csrc/dispatch/fuse/padding.h"
#include "csrc/dispatch/fuse/pending.h"
#include "csrc/dispatch/program/build.h"
#include "csrc/dispatch/run/execute.h"
#include "csrc/dispatch/run/scalar_pool.h"
#include "csrc/pjrt/runtime.h"
#include "csrc/trace/bounded.h"

namespace torch_tpu::dispatch {
namespace {

using base::journal::Kind;
using base::journal::Span;
using cache::FusedCache;
using stablehlo::DType;
using trace::FusedProgram;
using State = FusedProgram::State;

std::string issued_by(const trace::Segment& segment, size_t node) {
  return segment.nodes[node].program->name + device::line_text(segment.nodes[node].line);
}

// Within a catch block: errors of the device say which call they belong to. PyTorch's own (out of
// memory, what an earlier call failed with) pass unchanged.
std::exception_ptr named_error(const std::string& call) {
  try {
    throw;
  } catch (const pjrt::Error& error) {
    return std::make_exception_ptr(c10::Error({__func__, __FILE__, static_cast<uint32_t>(__LINE__)},
                                              call + " could not run: " + error.what()));
  } catch (...) {
    return std::current_exception();
  }
}

// May run on a thread of the pool.
void compile_fused(const trace::FusedPtr& program) noexcept {
  try {
    const std::string text = trace::lower_fused(*program);
    program->executable =
        compile(program->name, program->fingerprint, text, program->compile_seconds);
    program->temp_bytes = program->executable.executable().temp_bytes();
    cache::ProgramStore::get().store(*program);
    program->state.store(State::kReady, std::memory_order_release);
  } catch (const std::exception& error) {
    program->failure = error.what();
    FusedCache::get().count_failure();
    program->state.store(State::kFailed, std::memory_order_release);
    TORCH_WARN("Fused Eager could not compile ", program->name, " (", program->nodes.size(),
               " ops, the first ", program->nodes.front()->name,
               "); its ops run one by one instead. The compiler said: ", program->failure);
  }
}

// Programs from disk do not know their call; they will once it comes again.
void ask_for_nodes(const FusedProgram& program) {
  for (const trace::ProgramPtr& node : program.nodes) {
    if (!node->has_node.load(std::memory_order_acquire)) node->wants_node.store(true);
  }
}

// Whether nearly all ops of the piece are new. An op is new in one piece only, whether that
// compiled it or not, so however much pieces differ there are no more such pieces than there are
// new ops for them. What is on disk or compiled by now does not count: processes that do the same
// shall have the same programs.
bool mostly_new(const trace::Segment& segment) {
  constexpr size_t kManyOps = 12;
  constexpr size_t kUsesOfAnOp = 5, kPer = 2;  // 2.5 nodes for each new op at most
  size_t fresh = 0;
  for (const trace::TraceNode& node : segment.nodes) {
    fresh += static_cast<size_t>(!node.program->met.exchange(true, std::memory_order_relaxed));
  }
  return fresh >= kManyOps && segment.nodes.size() * kPer <= fresh * kUsesOfAnOp;
}

// One program for such a piece costs less than compiling its ops, which several threads do at once,
// only while it is small: a model's first piece with 35 ops takes 0.9 of the time, one with 56 as
// long. What is larger, a first training step or a prompt, seldom comes again as it is.
constexpr size_t kSmallPiece = 48;

// The program of this signature, compiled by now or not.
trace::FusedPtr meet(const trace::Segment& segment, const trace::Signature& signature,
                     base::CompileWhen when) {
  FusedCache& cache = FusedCache::get();
  trace::FusedPtr program = cache.find(signature);
  bool is_new = false;
  if (!program) {
    is_new = mostly_new(segment);
    program = c10::make_intrusive<FusedProgram>(segment, signature);
    if (when != base::CompileWhen::kNever && cache::ProgramStore::get().load(*program)) {
      program->state.store(State::kReady, std::memory_order_release);
    }
    cache.insert(program);
  }
  program->sights.fetch_add(1);
  if (program->state.load(std::memory_order_acquire) != State::kSeen) return program;
  if (!program->lowerable()) {
    ask_for_nodes(*program);
    return program;
  }
  if (when == base::CompileWhen::kFirst) {
    compile_fused(program);
  } else if (when == base::CompileWhen::kSecond &&
             meet_family(program, segment, signature, is_new)) {
    program->state.store(State::kCompiling);
    if (!cache::CompilePool::get().submit([program] { compile_fused(program); })) {
      program->state.store(State::kSeen);  // asked again when it is met next
    }
  } else if (when == base::CompileWhen::kSecond && is_new && !program->bounded &&
             segment.nodes.size() <= kSmallPiece) {
    compile_fused(program);
  }
  return program;
}

// Where the results do not fit together the ops run one by one: only those fail that find no room,
// and what they would have written in place elsewhere is not lost with them.
bool fits(const FusedProgram& program, int device) {
  trace::Ledger& ledger = trace::Ledger::of(device);
  const int64_t limit = ledger.limit();
  return limit == 0 || ledger.counts().current_bytes + program.new_bytes <= limit;
}

}  // namespace

void Launcher::run(trace::Segment& segment, int device) {
  signature_.build(segment);
  if (segment.nodes.size() == 1) {
    run_singly(segment, device);
    return;
  }
  const base::CompileWhen when = compile_when();
  const trace::FusedPtr program = meet(segment, signature_, when);
  if (when != base::CompileWhen::kNever &&
      program->state.load(std::memory_order_acquire) == State::kReady && fits(*program, device)) {
    run_fused(program, program, segment, device);
    return;
  }
  if (when == base::CompileWhen::kSecond && program->bounded && fits(*program->bounded, device)) {
    run_fused(program->bounded, program, segment, device);
    return;
  }
  const Span span(Kind::kReplay, program->name, program->fingerprint,
                  static_cast<int64_t>(segment.nodes.size()));
  run_in_pieces(segment, device);
}

namespace {

// An op over lists of tensors compiles a kernel for each of them. Several in a row share these
// kernels when they are compiled together, so that costs less than compiling each.
struct Chain {
  size_t begin = 0;
  size_t end = 0;
};

Chain find_chain(const trace::Segment& segment) {
  constexpr size_t kManyResults = 8;
  Chain chain;
  size_t missing = 0;
  for (size_t n = 0; n < segment.nodes.size(); ++n) {
    const trace::Program& program = *segment.nodes[n].program;
    if (program.outputs.size() >= kManyResults) {
      if (chain.end != n) {
        chain.begin = n;
        missing = 0;
      }
      chain.end = n + 1;
      missing += static_cast<size_t>(!program.compiled.load(std::memory_order_acquire));
    } else if (chain.end == n && missing > 1) {
      return chain;
    }
  }
  return missing > 1 ? chain : Chain();
}

}  // namespace

// Takes the signature of the whole segment to be built already.
void Launcher::run_in_pieces(trace::Segment& segment, int device) {
  std::exception_ptr first_error;
  const auto guarded = [&](auto&& run) {
    try {
      run();
    } catch (...) {  // what does not depend on it still runs
      if (!first_error) first_error = std::current_exception();
    }
  };
  const bool may_fuse = compile_when() != base::CompileWhen::kNever;
  for (Chain chain; may_fuse && (chain = find_chain(segment)).end > 0;) {
    trace::Segment head = segment.split(chain.begin);
    trace::Segment piece = segment.split(chain.end - chain.begin);
    if (!head.nodes.empty()) {
      signature_.build(head);
      guarded([&] { run_singly(head, device); });
      head.clear();
    }
    guarded([&] { run_chain(piece, device); });
    piece.clear();
    signature_.build(segment);
  }
  guarded([&] { run_singly(segment, device); });
  if (first_error) std::rethrow_exception(first_error);
}

void Launcher::run_chain(trace::Segment& chain, int device) {
  signature_.build(chain);
  const trace::FusedPtr program = meet(chain, signature_, base::CompileWhen::kFirst);
  if (program->state.load(std::memory_order_acquire) == State::kReady && fits(*program, device)) {
    run_fused(program, program, chain, device);
  } else {
    run_singly(chain, device);
  }
}

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

}  // namespace

void Launcher::run_fused(const trace::FusedPtr& owner, const trace::FusedPtr& piece,
                         trace::Segment& segment, int device) {
  FusedProgram& program = *owner;
  const trace::Bounds* bounds = program.bounds.get();
  const Span span(Kind::kLaunch, program.name, program.fingerprint,
                  static_cast<int64_t>(segment.nodes.size()), program.new_bytes);
  c10::SmallVector<PJRT_Buffer*, 64> args;
  std::vector<trace::ValuePtr> results;
  for (uint32_t k : program.alive) results.push_back(std::move(segment.outputs[k]));
  device::FlagSources sources;
  for (const auto& check : piece->checks) {
    sources.push_back(
        {check.what, &piece->nodes[check.node]->name, segment.nodes[check.node].line});
  }
  c10::SmallVector<PJRT_Buffer*, 64> outs;
  try {
    for (size_t i = 0; i < signature_.externals.size(); ++i) {
      trace::DeviceValue* value = signature_.externals[i];
      const bool pads = bounds != nullptr && !bounds->externals[i].empty();
      args.push_back(pads ? padded_to(*value, bounds->externals[i])->raw() : value->raw());
    }
    c10::SmallVector<trace::ValuePtr, 2> packs;
    std::vector<uint32_t> words = pack_words(segment);
    if (bounds != nullptr) words.push_back(static_cast<uint32_t>(piece->size));
    if (!words.empty())
      packs.push_back(upload_pack(DType::kU32, words.data(), words.size(), device));
    if (!segment.f64.empty()) {
      packs.push_back(upload_pack(DType::kF64, segment.f64.data(), segment.f64.size(), device));
    }
    for (const trace::ValuePtr& pack : packs) args.push_back(pack->raw());
    run_executable(
        program.executable, args, outs, device, {program.new_bytes, program.temp_bytes}, [&] {
          return program.name + ", which ends with " + issued_by(segment, segment.nodes.size() - 1);
        });
  } catch (...) {
    for (const trace::ValuePtr& result : results) result->fail(std::current_exception());
    throw;
  }
  program.runs.fetch_add(1, std::memory_order_relaxed);
  segment.inputs.clear();  // donated memory is counted once, as the result's
  segment.outputs.clear();
  for (size_t i = 0; i < results.size(); ++i) {
    if (bounds == nullptr || bounds->results[i].empty()) {
      results[i]->settle(outs[i]);
    } else {
      const trace::Shape& room = bounds->results[i];
      results[i]->settle_padded(c10::make_intrusive<trace::DeviceValue>(
          outs[i], results[i]->dtype(), room, trace::contiguous_strides(room), device));
    }
  }
  if (bounds != nullptr) FusedCache::get().count_bounded_run();
  if (!sources.empty()) {
    const int64_t count[] = {static_cast<int64_t>(sources.size())};
    const int64_t step[] = {1};
    device::queue_flags(
        c10::make_intrusive<trace::DeviceValue>(outs.back(), DType::kS64, count, step, device),
        std::move(sources), piece);
  }
}

// A written value that nobody needs after the call gives its memory to the result, as it would had
// the call run at once.
void Launcher::plan_donations(const trace::Segment& segment) {
  const size_t first_output = signature_.externals.size();
  last_use_.assign(first_output + segment.outputs.size(), 0);
  const auto place = [&](uint32_t ref) {
    return trace::is_internal(ref) ? first_output + trace::index_of(ref) : trace::index_of(ref);
  };
  for (size_t n = 0; n < segment.nodes.size(); ++n) {
    for (uint32_t i = 0; i < segment.num_inputs(n); ++i) {
      last_use_[place(segment.inputs[segment.nodes[n].input + i]->mark.index)] =
          static_cast<uint32_t>(n);
    }
  }
  programs_.clear();
  std::vector<uint64_t> mask;
  for (size_t n = 0; n < segment.nodes.size(); ++n) {
    const trace::TraceNode& node = segment.nodes[n];
    const trace::Program& program = *node.program;
    mask.assign(program.num_tensors / 64 + 1, 0);
    bool any = false;
    for (const trace::Program::Output& output : program.outputs) {
      if (!output.defined || output.input < 0) continue;
      const trace::ValuePtr& value = segment.inputs[node.input + static_cast<size_t>(output.input)];
      uint32_t times = 0;
      for (uint32_t i = 0; i < segment.num_inputs(n); ++i) {
        times += static_cast<uint32_t>(segment.inputs[node.input + i] == value);
      }
      if (times > 1 || !value->donatable() || value.use_count() > value->mark.refs ||
          last_use_[place(value->mark.index)] != n) {
        continue;
      }
      mask[static_cast<size_t>(output.write) / 64] |= uint64_t{1} << (output.write % 64);
      any = true;
    }
    programs_.push_back(any ? donating(node.program, mask) : node.program);
  }
}

void Launcher::run_singly(trace::Segment& segment, int device) {
  plan_donations(segment);
  CompileAhead ahead(programs_);
  std::exception_ptr first_error;
  for (size_t n = 0; n < segment.nodes.size(); ++n) {
    const trace::TraceNode& node = segment.nodes[n];
    trace::Program& program = *programs_[n];
    const uint32_t num_outputs = segment.num_outputs(n);
    Execution run;
    try {
      for (uint32_t i = 0; i < segment.num_inputs(n); ++i) {
        run.args.push_back(segment.inputs[node.input + i]->raw());
      }
      const auto part = [&](const auto& numbers, int carrier) {
        return std::span(numbers).subspan(node.packs[carrier],
                                          static_cast<size_t>(program.pack_sizes[carrier]));
      };
      run.f32 = part(segment.f32, 0);
      run.f64 = part(segment.f64, 1);
      run.s64 = part(segment.s64, 2);
      if (program.draws > 0) {
        run.rng[0] = segment.rng[node.rng];
        run.rng[1] = segment.rng[node.rng + 1];
      }
      ahead.help_until_compiled(program);
      execute(program, run, device, node.line);
    } catch (...) {
      const std::exception_ptr error = named_error(issued_by(segment, n));
      if (!first_error) first_error = error;
      for (uint32_t k = 0; k < num_outputs; ++k) segment.outputs[node.output + k]->fail(error);
      continue;
    }
    for (uint32_t i = 0; i < segment.num_inputs(n); ++i) segment.inputs[node.input + i].reset();
    for (uint32_t k = 0; k < num_outputs; ++k) {
      segment.outputs[node.output + k]->settle(run.outs[k]);
      segment.outputs[node.output + k].reset();
    }
    for (size_t i = 0; i < program.checks.size(); ++i) {
      device::queue_flags(
          c10::make_intrusive<trace::DeviceValue>(run.outs[num_outputs + i], DType::kS64,
                                                  trace::ShapeRef{}, trace::ShapeRef{}, device),
          {{&program.checks[i], &program.name, node.line}}, programs_[n]);
    }
  }
  programs_.clear();
  if (first_error) std::rethrow_exception(first_error);
}

}  // namespace torch_tpu::dispatch
