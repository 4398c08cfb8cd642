// The miss path: from a call to a compiled program.
#pragma once

#include <string>

#include "csrc/dispatch/frame.h"
#include "csrc/dispatch/infer.h"
#include "csrc/ops/target.h"
#include "csrc/trace/program.h"

namespace torch_tpu::dispatch {

// The steps, for whoever builds programs out of several calls.
//
// A function of the strides and of Frame::add_aliases, so a hit need not ask again.
void check_writable(const Frame& frame);
// out= tensors that the Meta kernel resized.
std::vector<trace::Program::Resize> find_resizes(const Frame& frame, const Inferred& inferred);
void apply_resizes(const std::vector<trace::Program::Resize>& resizes, const Frame& frame);
// What lowerings may know about the compiler; for an ops::TargetScope around them.
ops::Target lowering_target();
// Within a catch block: a builder that refuses its operands, or a lowering that says so, means "not
// for these arguments", or that they are bad, which the CPU is asked first. Other exceptions go on.
std::string refusal_of_lowering(const Frame& frame);
void compile(trace::Program& program, const std::string& text);

// Infers, lowers and compiles. The result may instead ask for out= tensors to be resized first, or
// say why there is no program.
trace::ProgramPtr build_program(const Frame& frame);

}  // namespace torch_tpu::dispatch
