// Loops and branches for a caller that learns what they carry only while building their bodies:
// how many checks the ops inside have, or what shape a stacked result gets. Builder::while_loop and
// if_else want to know beforehand.
#pragma once

#include <functional>

#include "csrc/stablehlo/builder.h"

namespace torch_tpu::stablehlo {

// One more value that the loop carries. It starts as `fill` in each element. May be called from
// regions inside the body, too.
using AddCarry = std::function<Value(const Type& type, int64_t fill)>;
// Takes the carried values and returns the next ones, those of added carries last.
using LoopBody = std::function<Values(const Values& arguments, const AddCarry& add)>;

// The condition is built after the body and sees all carried values. So does the result.
Values growing_loop(Builder& b, const Values& inits, const Region& condition, const LoopBody& body);

struct Arm {
  Values results;  // of the same types in both arms
  Values own;      // what only this arm has
};
using ArmBody = std::function<Arm()>;

// The common results, then what on_true alone has, then what on_false alone has. The other arm
// gives for them `absent` of outside, which all of them must have the type of.
Values if_else(Builder& b, const Value& pred, const ArmBody& on_true, const ArmBody& on_false,
               const Value& absent);

}  // namespace torch_tpu::stablehlo
