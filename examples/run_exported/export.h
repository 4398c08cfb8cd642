// A folder that torch_tpu.export wrote, and running it through PJRT.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "array.h"
#include "csrc/pjrt/buffer.h"
#include "csrc/pjrt/executable.h"
#include "csrc/pjrt/runtime.h"

namespace run_exported {

// An argument or a result of a module; docs/export.md says what the fields mean.
struct Value {
  std::string kind;
  std::string name;
  const DType* dtype;
  std::vector<int64_t> shape;
  int64_t index;
  std::string check;
};

struct Program {
  std::string module;
  uint64_t draws;
  std::vector<Value> arguments;
  std::vector<Value> results;

  std::vector<const Value*> inputs() const;
};

struct Export {
  std::filesystem::path folder;
  std::string name;
  std::string target;
  std::string weights;
  std::vector<Program> programs;

  // Throws std::runtime_error, naming the file.
  static Export read(const std::filesystem::path& folder);
};

using NamedArrays = std::vector<std::pair<std::string, Array>>;

// One program of an export on a device: compiled, with the weights uploaded.
class Session {
 public:
  Session(const Export& exported, const Program& program, uint64_t seed);

  void set_input(size_t index, const Array& array);
  // Calls the program once. Outputs, and inputs that the model writes to, by name. States go on
  // from call to call. Throws when a check fails, for example an index out of range.
  NamedArrays run();

 private:
  void check(const std::string& text) const;
  torch_tpu::pjrt::Buffer upload(const Array& array) const;
  Array download(const torch_tpu::pjrt::Buffer& buffer, const Value& value) const;

  const torch_tpu::pjrt::Runtime& runtime_;
  const Program& program_;
  torch_tpu::pjrt::LoadedExecutable executable_;
  std::vector<torch_tpu::pjrt::Buffer> arguments_;
  uint64_t random_[2];  // seed and offset
};

}  // namespace run_exported
