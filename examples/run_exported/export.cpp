#include "export.h"

#include <algorithm>
#include <initializer_list>
#include <stdexcept>

#include "csrc/pjrt/client.h"
#include "csrc/stablehlo/signature.h"
#include "json.h"

namespace run_exported {
namespace {

namespace pjrt = torch_tpu::pjrt;
namespace stablehlo = torch_tpu::stablehlo;
constexpr int64_t kVersion = 1;
constexpr int64_t kNoViolation = INT64_MIN;

// A name, and no way out of the folder.
std::string file_name(const Json& json) {
  const std::string& name = json.text();
  if (name.empty() || name == "." || name == ".." || name.find('/') != name.npos) {
    throw std::runtime_error("names a file outside the folder: '" + name + "'");
  }
  return name;
}

Value read_value(const Json& json, std::initializer_list<const char*> kinds) {
  const Json* index = json.find("index");
  const Json* check = json.find("check");
  const std::string& kind = json.at("kind").text();
  if (std::find(kinds.begin(), kinds.end(), kind) == kinds.end()) {
    throw std::runtime_error("has a value of the unknown kind '" + kind + "'");
  }
  return {kind,
          json.at("name").text(),
          &dtype_by_name(json.at("dtype").text()),
          json.at("shape").integers(),
          index != nullptr ? index->integer() : -1,
          check != nullptr ? check->text() : ""};
}

Program read_program(const Json& json) {
  Program program;
  program.module = file_name(json.at("module"));
  program.draws = static_cast<uint64_t>(json.at("draws").integer());
  for (const Json& value : json.at("arguments").items()) {
    program.arguments.push_back(read_value(value, {"weight", "state", "input", "random"}));
  }
  for (const Json& value : json.at("results").items()) {
    program.results.push_back(read_value(value, {"state", "output", "input", "check"}));
    const Value& result = program.results.back();
    if (result.kind != "state" && result.kind != "input") continue;
    const auto index = static_cast<uint64_t>(result.index);
    if (index >= program.arguments.size() || program.arguments[index].kind != result.kind ||
        program.arguments[index].dtype != result.dtype ||
        program.arguments[index].shape != result.shape) {
      throw std::runtime_error("has a result that is written to no argument: '" + result.name +
                               "'");
    }
  }
  int64_t next = 0;
  for (const Value* input : program.inputs()) {
    if (input->index != next++) throw std::runtime_error("does not count the inputs in order");
  }
  return program;
}

std::string type_text(const DType* dtype, const std::vector<int64_t>& shape) {
  return dtype != nullptr ? run_exported::type_text(*dtype, shape) : "an unknown type";
}

// What the manifest says of a module must be true of it: arrays are made and read by it.
void expect(const Program& program, const Value& value, const DType* dtype,
            const std::vector<int64_t>& shape) {
  if (value.dtype == dtype && value.shape == shape) return;
  throw std::runtime_error("manifest.json has the " + value.kind + " '" + value.name + "' of " +
                           program.module + " as " + type_text(value.dtype, value.shape) +
                           "; in the module it is " + type_text(dtype, shape));
}

void expect_count(const Program& program, const char* what, size_t told, size_t found) {
  if (told == found) return;
  throw std::runtime_error("manifest.json has " + std::to_string(told) + " " + what + " of " +
                           program.module + "; the module has " + std::to_string(found));
}

std::string check_text(const Value& check, int64_t value) {
  std::string text = check.name;
  if (check.check == "matrix" || check.check == "batch") {
    return text + ": the matrix is singular or does not converge";
  }
  if (const size_t at = text.find("{}"); at != text.npos) {
    text.replace(at, 2, std::to_string(value));
  }
  return text;
}

}  // namespace

std::vector<const Value*> Program::inputs() const {
  std::vector<const Value*> out;
  for (const Value& value : arguments) {
    if (value.kind == "input") out.push_back(&value);
  }
  return out;
}

Export Export::read(const std::filesystem::path& folder) {
  const std::filesystem::path path = folder / "manifest.json";
  const std::string text = read_file(path);
  try {
    const Json json = Json::parse(text);
    if (json.at("format").text() != "torch_tpu.export") {
      throw std::runtime_error("is no manifest of torch_tpu.export");
    }
    if (json.at("version").integer() > kVersion) {
      throw std::runtime_error("is of a newer version than this program reads");
    }
    Export out{folder,
               json.at("name").text(),
               json.at("target").text(),
               file_name(json.at("weights")),
               {}};
    for (const Json& program : json.at("programs").items()) {
      out.programs.push_back(read_program(program));
    }
    if (out.programs.empty()) throw std::runtime_error("has no programs");
    return out;
  } catch (const std::runtime_error& error) {
    throw std::runtime_error(path.string() + ": " + error.what());
  }
}

Session::Session(const Export& exported, const Program& program, uint64_t seed)
    : runtime_(pjrt::Runtime::get()), program_(program), random_{seed, 0} {
  if (exported.target != "any" && exported.target != pjrt::to_string(runtime_.kind())) {
    throw std::runtime_error("this was exported for the target '" + exported.target +
                             "'; the plugin here is '" + pjrt::to_string(runtime_.kind()) + "'");
  }
  const std::string text = read_file(exported.folder / program.module);
  executable_ = runtime_.client().compile_with(text, runtime_.compile_options());
  check(text);
  const Safetensors weights(exported.folder / exported.weights);
  for (const Value& value : program.arguments) {
    arguments_.emplace_back();
    if (value.kind != "weight" && value.kind != "state") continue;
    const Array array = weights.read(value.name);
    if (array.dtype != value.dtype || array.shape != value.shape) {
      throw std::runtime_error(exported.weights + " has '" + value.name + "' as " +
                               array.type_text() + "; the module needs " +
                               type_text(*value.dtype, value.shape));
    }
    arguments_.back() = upload(array);
  }
}

void Session::check(const std::string& text) const {
  const stablehlo::Signature signature = stablehlo::main_signature(text);
  expect_count(program_, "arguments", program_.arguments.size(), signature.arguments.size());
  for (size_t i = 0; i < program_.arguments.size(); ++i) {
    const Value& value = program_.arguments[i];
    const stablehlo::Type& type = signature.arguments[i];
    expect(program_, value, dtype_by_mlir(stablehlo::dtype_name(type.dtype)), type.dims);
    if (value.kind == "random") expect(program_, value, &dtype_by_name("uint64"), {2});
  }
  const std::vector<PJRT_Buffer_Type> types = executable_.executable().output_types();
  const std::vector<std::vector<int64_t>> dims = executable_.executable().output_dims();
  expect_count(program_, "results", program_.results.size(), executable_.num_outputs());
  for (size_t i = 0; i < program_.results.size(); ++i) {
    const Value& value = program_.results[i];
    expect(program_, value, dtype_by_type(types.at(i)), dims.at(i));
    if (value.kind == "check") expect(program_, value, &dtype_by_name("int64"), {});
  }
}

pjrt::Buffer Session::upload(const Array& array) const {
  return runtime_.client().from_host(array.bytes.data(), array.dtype->type, array.shape, {},
                                     pjrt::HostSemantics::kOnlyDuringCall, runtime_.device(0));
}

Array Session::download(const pjrt::Buffer& buffer, const Value& value) const {
  Array array{value.dtype, value.shape, {}};
  array.bytes.resize(static_cast<size_t>(array.count() * value.dtype->bytes));
  if (!array.bytes.empty()) buffer.copy_to_host(array.bytes.data(), array.bytes.size()).await();
  return array;
}

void Session::set_input(size_t index, const Array& array) {
  for (size_t i = 0; i < arguments_.size(); ++i) {
    const Value& value = program_.arguments[i];
    if (value.kind == "input" && value.index == static_cast<int64_t>(index)) {
      arguments_[i] = upload(array);
    }
  }
}

NamedArrays Session::run() {
  std::vector<PJRT_Buffer*> raw;
  for (size_t i = 0; i < arguments_.size(); ++i) {
    if (program_.arguments[i].kind == "random") {
      Array state{&dtype_by_name("uint64"), {2}, {}};
      const auto* bytes = reinterpret_cast<const char*>(random_);
      state.bytes.assign(bytes, bytes + sizeof(random_));
      arguments_[i] = upload(state);
    }
    if (!arguments_[i]) {
      throw std::runtime_error("the input '" + program_.arguments[i].name + "' was not set");
    }
    raw.push_back(arguments_[i].raw());
  }
  random_[1] += program_.draws;
  std::vector<PJRT_Buffer*> outs(executable_.num_outputs());
  executable_.execute(raw.data(), raw.size(), outs.data(), runtime_.device(0));
  std::vector<pjrt::Buffer> results;
  for (PJRT_Buffer* out : outs) results.emplace_back(runtime_.api(), out);

  NamedArrays named;
  for (size_t i = 0; i < results.size(); ++i) {
    const Value& value = program_.results[i];
    if (value.kind == "check") {
      int64_t flag = 0;
      results[i].copy_to_host(&flag, sizeof(flag)).await();
      if (flag != kNoViolation) throw std::runtime_error(check_text(value, flag));
      continue;
    }
    if (value.kind != "state") named.emplace_back(value.name, download(results[i], value));
    if (value.kind != "output") {
      arguments_[static_cast<size_t>(value.index)] = std::move(results[i]);
    }
  }
  return named;
}

}  // namespace run_exported
