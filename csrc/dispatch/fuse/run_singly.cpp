// The ops of a piece one by one. An op that fails takes those that need its results with it, and no
// others; one that finds no room is kept, with those that need its results, until there is some.
#include <exception>
#include <span>

#include <c10/util/Exception.h>

#include "csrc/device/checks.h"
#include "csrc/dispatch/fuse/compile_ahead.h"
#include "csrc/dispatch/fuse/launch.h"
#include "csrc/dispatch/program/build.h"
#include "csrc/dispatch/run/execute.h"
#include "csrc/pjrt/error.h"

namespace torch_tpu::dispatch {
namespace {

// Within a catch block: errors of the device say which call they belong to. PyTorch's own (what an
// earlier call failed with) pass unchanged.
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

bool spoiled_by(const trace::DeviceValue& value, const trace::Guard& guard) {
  if (!value.guards()) return false;
  for (const trace::Guard& own : value.guards()->all) {
    if (own.spoils && own.flags == guard.flags && own.index == guard.index) return true;
  }
  return false;
}

// Whether the call replaces all elements of that input without reading them.
bool is_overwritten(const trace::Program& program, size_t input) {
  const trace::Program::Output* written = program.replacing(static_cast<int>(input));
  return written != nullptr && written->overwrites;
}

// The first violation that keeps a call from writing to `old`, which is sound; waits. A value that
// stayed as it was is not what the call was to be given, until somebody was told and goes on.
const trace::Guard* keeps_from_writing(const trace::DeviceValue& operand,
                                       const trace::DeviceValue& old, uint64_t reports) {
  if (!operand.guards()) return nullptr;
  for (const trace::Guard& guard : operand.guards()->all) {
    if (guard.raises(reports) && !spoiled_by(old, guard)) {
      return &guard;
    }
  }
  return nullptr;
}

}  // namespace

std::string issued_by(const trace::Segment& segment, size_t node) {
  return segment.nodes[node].program->name + line_text(segment.nodes[node].line);
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
      if (times > 1 || !value->held_only_by(value->mark.refs) ||
          last_use_[place(value->mark.index)] != n) {
        continue;
      }
      mask[static_cast<size_t>(output.write) / 64] |= uint64_t{1} << (output.write % 64);
      any = true;
    }
    programs_.push_back(any ? donating(node.program, mask) : node.program);
  }
}

// False where it found no room, and nothing has happened.
bool Launcher::run_node(trace::Segment& segment, size_t at, trace::Program& program, int device) {
  const trace::TraceNode& node = segment.nodes[at];
  const auto inputs = std::span(segment.inputs).subspan(node.input, segment.num_inputs(at));
  const auto outputs = std::span(segment.outputs).subspan(node.output, segment.num_outputs(at));
  for (size_t i = 0; i < inputs.size(); ++i) {
    const trace::ValuePtr& input = inputs[i];
    if (!input->failed()) continue;  // told when it failed
    for (const trace::ValuePtr& output : outputs) {
      output->guard(input->guards());
      output->fail(input->error());
    }
    return true;
  }
  Execution run;
  trace::GuardUnion guards(node.reports);
  try {
    for (size_t i = 0; i < inputs.size(); ++i) {
      run.args.push_back(inputs[i]->obtain_raw());
      if (!is_overwritten(program, i)) guards.add(inputs[i]->guards());
    }
    if (!guards.empty()) {
      for (const trace::Program::Output& output : program.outputs) {
        if (!output.defined || output.input < 0) continue;
        const trace::ValuePtr old = inputs[static_cast<size_t>(output.input)];
        const trace::Guard* stopped = nullptr;
        for (size_t i = 0; i < inputs.size() && stopped == nullptr; ++i) {
          if (program.replacing(static_cast<int>(i)) != nullptr) continue;
          stopped = keeps_from_writing(*inputs[i], *old, node.reports);
        }
        if (stopped == nullptr) continue;
        // The call would not have been made: what it writes stays as it is, and tells.
        const std::exception_ptr error = device::violation(*stopped->flags, stopped->index);
        // Who was told of it and uses it all the same is told again.
        if (stopped->flags->reported_by(stopped->index, node.reports)) fail(node.thread, error);
        size_t k = 0;
        const trace::GuardsPtr told = guards.take();
        for (const trace::Program::Output& each : program.outputs) {
          if (!each.defined) continue;
          trace::GuardUnion all(node.reports);
          if (each.input >= 0) {
            const trace::ValuePtr& kept = inputs[static_cast<size_t>(each.input)];
            all.add(kept->guards());
            all.add_without_spoiling(told);
            outputs[k]->settle_as(kept, all.take());
          } else {
            outputs[k]->guard(told);
            outputs[k]->fail(error);
          }
          ++k;
        }
        return true;
      }
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
    execute(program, run, device, node.line);
  } catch (const c10::OutOfMemoryError&) {
    if (!no_room_) no_room_ = std::current_exception();
    if (!retrying_) fail(node.thread, std::current_exception(), /*no_room=*/true);
    return false;
  } catch (...) {
    const std::exception_ptr error = named_error(issued_by(segment, at));
    fail(node.thread, error);
    for (const trace::ValuePtr& output : outputs) output->fail(error);
    return true;
  }
  const trace::FlagsPtr flags =
      take_flags(programs_[at], run.outs, outputs.size(), &program.name, node.line, node.thread);
  const trace::GuardsPtr inherited = guards.take();
  for (trace::ValuePtr& input : inputs) input.reset();
  size_t k = 0;
  for (const trace::Program::Output& output : program.outputs) {
    if (!output.defined) continue;
    trace::GuardsPtr depends;
    if (inherited || flags) {
      trace::GuardUnion all(node.reports);
      all.add(inherited);
      for (uint32_t i = 0; flags && i < flags->size(); ++i) all.add(flags, i, output.input < 0);
      depends = all.take();
    }
    outputs[k]->settle(run.outs.take(k), std::move(depends));
    outputs[k].reset();
    ++k;
  }
  return true;
}

// Takes the signature of the segment to be built already.
void Launcher::run_singly(trace::Segment& segment, int device) {
  plan_donations(segment);
  CompileAhead ahead(programs_);
  for (size_t n = 0; n < segment.nodes.size(); ++n) {
    const trace::TraceNode& node = segment.nodes[n];
    bool waits = false;  // for what found no room
    for (uint32_t i = 0; i < segment.num_inputs(n); ++i) {
      waits = waits || segment.inputs[node.input + i]->pending();
    }
    if (!waits) {
      ahead.help_until_compiled(*programs_[n]);
      waits = !run_node(segment, n, *programs_[n], device);
    }
    if (waits) unfinished_.append(segment, n);
  }
  programs_.clear();
}

}  // namespace torch_tpu::dispatch
