#include "csrc/stablehlo/printer.h"

#include <charconv>

namespace torch_tpu::stablehlo {

// Values are numbered over the live instructions, so that dead code leaves the text as it was.
void Printer::mark_live(const std::vector<int32_t>& results) {
  live_.assign(graph_.instructions.size(), false);
  std::vector<int32_t> work;  // instructions whose operands are still to be looked at
  auto need = [&](int32_t instruction) {
    if (instruction < 0 || live_[instruction]) return;
    live_[instruction] = true;
    work.push_back(instruction);
  };
  for (int32_t id : results) need(graph_.definition[id]);
  for (int32_t index : graph_.side_effects) {
    // A region whose construct was never appended (its builder call threw) has no parent.
    std::vector<int32_t> chain = {index};
    int32_t block = graph_.instructions[index].block;
    while (block != 0 && graph_.blocks[block].parent >= 0) {
      chain.push_back(graph_.blocks[block].parent);
      block = graph_.instructions[chain.back()].block;
    }
    if (block != 0) continue;
    for (int32_t i : chain) need(i);
  }
  while (!work.empty()) {
    const Instruction& instruction = graph_.instructions[work.back()];
    work.pop_back();
    for (int32_t id : instruction.operands) need(graph_.definition[id]);
    for (int32_t region : instruction.regions) {
      for (int32_t id : graph_.blocks[region].results) need(graph_.definition[id]);
    }
  }
}

std::string Printer::print(const Function& function) {
  mark_live(function.results);
  names_.resize(graph_.types.size());
  out_.reserve(graph_.instructions.size() * 96 + 512);

  out_ += "module @";
  bool plain = !function.module_name.empty();
  for (size_t i = 0; i < function.module_name.size(); ++i) {
    char c = function.module_name[i];
    bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
    plain = plain && (letter || (i > 0 && c >= '0' && c <= '9'));
  }
  out_ += plain ? std::string(function.module_name) : quoted(function.module_name);
  if (function.replicas != 1 || function.partitions != 1) {
    out_ += " attributes {mhlo.num_partitions = " + std::to_string(function.partitions) +
            " : i32, mhlo.num_replicas = " + std::to_string(function.replicas) + " : i32}";
  }
  out_ += " {\n";
  out_ += function.prologue;
  out_ += "  func.func public @main(";
  const Block& main = graph_.blocks[0];
  for (size_t i = 0; i < main.arguments.size(); ++i) {
    int32_t id = main.arguments[i];
    names_[id] = "%arg" + std::to_string(i);
    if (i > 0) out_ += ", ";
    out_ += names_[id];
    out_ += ": ";
    print_type(graph_.types[id]);
    if (!function.parameter_attributes[i].empty()) {
      out_ += " {" + function.parameter_attributes[i] + "}";
    }
  }
  out_ += ") -> (";
  for (size_t i = 0; i < function.results.size(); ++i) {
    if (i > 0) out_ += ", ";
    print_type(graph_.types[function.results[i]]);
    if (!function.result_attributes[i].empty()) {
      out_ += " {" + function.result_attributes[i] + "}";
    }
  }
  out_ += ") {\n";
  print_block(main, 4);
  out_ += "    return";
  if (!function.results.empty()) {
    out_ += ' ';
    print_operands(function.results);
    out_ += " : ";
    print_types(function.results);
  }
  out_ += "\n  }\n}\n";
  return std::move(out_);
}

void Printer::print_block(const Block& block, int indent) {
  for (int32_t index : block.instructions) {
    if (!live_[index]) continue;
    const Instruction& instruction = graph_.instructions[index];
    if (instruction.form == Form::kAlias) {
      names_[instruction.first_result] = names_[instruction.operands[0]];
      continue;
    }
    out_.append(indent, ' ');
    print_instruction(instruction, indent);
    if (instruction.label) out_.append(" loc(").append(quoted(*instruction.label)).append(")");
    out_ += '\n';
  }
}

void Printer::print_region(const Block& block, int indent) {
  out_ += "{\n";
  if (!block.arguments.empty()) {
    out_.append(indent, ' ');
    out_ += "^bb0(";
    for (size_t i = 0; i < block.arguments.size(); ++i) {
      int32_t id = block.arguments[i];
      names_[id] = "%" + std::to_string(next_++);
      if (i > 0) out_ += ", ";
      out_ += names_[id];
      out_ += ": ";
      print_type(graph_.types[id]);
    }
    out_ += "):\n";
  }
  print_block(block, indent + 2);
  out_.append(indent + 2, ' ');
  out_ += "stablehlo.return";
  if (!block.results.empty()) {
    out_ += ' ';
    print_operands(block.results);
    out_ += " : ";
    print_types(block.results);
  }
  out_ += '\n';
  out_.append(indent, ' ');
  out_ += '}';
}

void Printer::print_instruction(const Instruction& instruction, int indent) {
  if (instruction.num_results > 0) {
    std::string name = "%" + std::to_string(next_++);
    out_ += name;
    if (instruction.num_results > 1) out_ += ":" + std::to_string(instruction.num_results);
    out_ += " = ";
    for (int32_t i = 0; i < instruction.num_results; ++i) {
      names_[instruction.first_result + i] =
          instruction.num_results == 1 ? name : name + "#" + std::to_string(i);
    }
  }
  const Type* result =
      instruction.num_results > 0 ? &graph_.types[instruction.first_result] : nullptr;
  switch (instruction.form) {
    case Form::kConstant:
      out_.append(instruction.name).append(" ").append(instruction.attributes).append(" : ");
      print_type(*result);
      return;
    case Form::kSameType:
      out_.append(instruction.name).append(" ");
      print_operands(instruction.operands);
      out_ += " : ";
      print_type(*result);
      return;
    case Form::kFunctional:
      out_.append(instruction.name).append(" ");
      print_operands(instruction.operands);
      out_.append(instruction.attributes).append(" : (");
      print_types(instruction.operands);
      out_ += ") -> ";
      print_type(*result);
      return;
    case Form::kGeneric:
    case Form::kAlias:
      break;
  }
  out_.append("\"").append(instruction.name).append("\"(");
  print_operands(instruction.operands);
  out_ += ')';
  if (!instruction.attributes.empty())
    out_.append(" <{").append(instruction.attributes).append("}>");
  if (!instruction.regions.empty()) {
    out_ += " (";
    for (size_t i = 0; i < instruction.regions.size(); ++i) {
      if (i > 0) out_ += ", ";
      print_region(graph_.blocks[instruction.regions[i]], indent);
    }
    out_ += ')';
  }
  if (!instruction.annotation.empty()) out_.append(" {").append(instruction.annotation).append("}");
  out_ += " : (";
  print_types(instruction.operands);
  out_ += ") -> ";
  print_result_types(instruction);
}

void Printer::print_operands(const std::vector<int32_t>& operands) {
  for (size_t i = 0; i < operands.size(); ++i) {
    if (i > 0) out_ += ", ";
    out_ += names_[operands[i]];
  }
}

void Printer::print_types(const std::vector<int32_t>& values) {
  for (size_t i = 0; i < values.size(); ++i) {
    if (i > 0) out_ += ", ";
    print_type(graph_.types[values[i]]);
  }
}

void Printer::print_result_types(const Instruction& instruction) {
  if (instruction.num_results == 1) return print_type(graph_.types[instruction.first_result]);
  out_ += '(';
  for (int32_t i = 0; i < instruction.num_results; ++i) {
    if (i > 0) out_ += ", ";
    print_type(graph_.types[instruction.first_result + i]);
  }
  out_ += ')';
}

void Printer::print_type(const Type& type) {
  out_ += "tensor<";
  char text[24];
  for (int64_t d : type.dims) {
    out_.append(text, std::to_chars(text, text + sizeof(text), d).ptr);
    out_ += 'x';
  }
  out_ += dtype_name(type.dtype);
  out_ += '>';
}

}  // namespace torch_tpu::stablehlo
