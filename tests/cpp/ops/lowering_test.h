// A call of one op without PyTorch above it and storage below: arguments by name go in, StableHLO
// comes out and is run.
#pragma once

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "csrc/ops/source.h"
#include "csrc/ops/table.h"
#include "csrc/ops/target.h"
#include "tests/cpp/stablehlo/run.h"

namespace torch_tpu::ops {

using stablehlo::Array;

class LoweringTest : public stablehlo::RunTest {
 protected:
  LoweringTest() {
    Target cpu;
    cpu.compiler = Compiler::kCpu;
    scope_.emplace(cpu);
  }

  void give_tensor(const char* name, const Array& data) {
    Argument argument;
    argument.name = name;
    argument.present = true;
    argument.tensors = {input(data)};
    argument.infos = {{to_scalar_type(data.type.dtype), data.type.rank(), false, true}};
    source_.arguments.push_back(std::move(argument));
  }
  void give_none(const char* name) {
    source_.arguments.emplace_back();
    source_.arguments.back().name = name;
  }
  void give(const char* name, c10::IValue value) {
    Argument argument;
    argument.name = name;
    argument.present = true;
    argument.value = std::move(value);
    source_.arguments.push_back(std::move(argument));
  }
  // A number that the program must know.
  void give_known(const char* name, double value, c10::ScalarType type) {
    give(name, {});
    source_.arguments.back().known = value;
    source_.arguments.back().scalar_types = {type};
  }
  // One that it gets when it runs.
  void give_runtime(const char* name, float value) {
    give(name, {});
    source_.arguments.back().scalars = {input(stablehlo::f32({}, {value}))};
    source_.arguments.back().scalar_types = {c10::ScalarType::Double};
  }
  void give_state(uint64_t seed, uint64_t offset) {
    source_.rng_state =
        input(stablehlo::array<uint64_t>(DType::kU64, {2}, std::vector<uint64_t>{seed, offset}));
  }

  Values lower(std::string_view name, std::vector<Type> outputs) {
    const auto& all = table();
    const auto at =
        std::find_if(all.begin(), all.end(), [&](const Entry& e) { return e.name == name; });
    TORCH_CHECK(at != all.end(), "no entry ", std::string(name));
    Call call(b, source_, std::move(outputs));
    return at->lower(call);
  }
  const Source& source() const { return source_; }

 private:
  Source source_;
  std::optional<TargetScope> scope_;
};

}  // namespace torch_tpu::ops
