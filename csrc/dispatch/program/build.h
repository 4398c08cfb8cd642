// The miss path: from a call to a compiled program.
#pragma once

#include <string>
#include <vector>

#include "csrc/dispatch/call/frame.h"
#include "csrc/dispatch/program/infer.h"
#include "csrc/trace/program.h"

namespace torch_tpu::dispatch {

// The steps, for whoever builds programs out of several calls.
//
// A function of the strides and of Frame::add_aliases, so a hit need not ask again.
void check_writable(const Frame& frame);
// out= tensors that the Meta kernel resized.
trace::Resizes find_resizes(const Frame& frame, const Inferred& inferred);
// Without the frame's leases.
void apply_resizes(const trace::Resizes& resizes, const Frame& frame, bool warn);
// Within a catch block: a builder that refuses its operands, or a lowering that says so, means "not
// for these arguments", or that they are bad, which the CPU is asked first. Other exceptions go on.
std::string refusal_of_lowering(const Frame& frame);
// Compiles a module; its name and fingerprint are for reports. `seconds` is how long it took.
// `quick`: it should rather compile soon than run fastest.
pjrt::LoadedExecutable compile(const std::string& name, uint64_t fingerprint,
                               const std::string& text, double& seconds, bool quick = false);

// Infers and lowers. The answer may instead be that out= tensors are to be resized first, or why
// there is no program. Nothing is compiled.
trace::Answer build_program(const Frame& frame);
// Before a program runs: compiles it, loads its code, or waits for the thread that does. Throws
// what the compiler says; the next call tries again. Thread-safe.
void ensure_compiled(trace::Runnable& program);
// Gives a program from disk its node.
void add_node(const Frame& frame, trace::Program& program);
// The same call with some written tensors' memory given to the results, one bit each; the program
// itself where that cannot be had.
trace::ProgramPtr donating(const trace::ProgramPtr& program, const std::vector<uint64_t>& mask);
// Compiles all single-op programs that were only described so far, and those that give the memory
// of everything they write: what a run in any mode may need. Returns which failed, and why.
std::vector<std::string> compile_all();

}  // namespace torch_tpu::dispatch
