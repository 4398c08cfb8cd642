// Prints a Graph as MLIR text. Internal to csrc/stablehlo.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "csrc/stablehlo/graph.h"

namespace torch_tpu::stablehlo {

// @main and the module around it, apart from the instructions.
struct Function {
  std::string_view module_name;
  std::string prologue;
  int64_t replicas = 1, partitions = 1;
  std::vector<std::string> parameter_attributes;  // one per parameter, may be empty
  std::vector<std::string> result_attributes;     // one per result, may be empty
  std::vector<int32_t> results;                   // values
};

class Printer {
 public:
  explicit Printer(const Graph& graph) : graph_(graph) {}
  std::string print(const Function& function);
  // For what else of csrc/stablehlo works on the instructions.
  static Graph& graph_of(Builder& builder);

 private:
  void mark_live(const std::vector<int32_t>& results);
  void print_block(const Block& block, int indent);
  void print_region(const Block& block, int indent);
  void print_instruction(const Instruction& instruction, int indent);
  void print_operands(const std::vector<int32_t>& operands);
  void print_types(const std::vector<int32_t>& values);
  void print_result_types(const Instruction& instruction);
  void print_type(const Type& type);

  const Graph& graph_;
  std::vector<bool> live_;          // by instruction
  std::vector<std::string> names_;  // by value; empty until defined
  int64_t next_ = 0;
  std::string out_;
};

}  // namespace torch_tpu::stablehlo
