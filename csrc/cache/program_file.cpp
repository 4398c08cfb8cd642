#include "csrc/cache/program_file.h"

#include "csrc/cache/bytes.h"
#include "csrc/pjrt/runtime.h"
#include "csrc/trace/bounded.h"
#include "csrc/trace/buffer_type.h"

namespace torch_tpu::cache {
namespace {

using trace::Program;
using trace::Shape;

constexpr uint32_t kVersion = 2;

#if defined(__x86_64__) && defined(__GLIBCXX__)
// A new field must be stored too (and this number changed).
static_assert(sizeof(Program) == 912, "store the new field of Program below");
static_assert(sizeof(Program::Output) == 376, "store the new field of Output below");
#endif

enum class Number : uint8_t { kNone, kInt, kDouble, kBool };

void write(ByteWriter& out, const Shape& shape) {
  out.add<uint32_t>(static_cast<uint32_t>(shape.size()));
  for (const int64_t dim : shape) out.add<int64_t>(dim);
}

Shape read_shape(ByteReader& in) {
  const auto rank = in.count<uint32_t>(sizeof(int64_t));
  Shape shape;
  for (uint32_t i = 0; i < rank; ++i) shape.push_back(in.get<int64_t>());
  return shape;
}

template <typename Enum>
Enum read_enum(ByteReader& in, Enum last) {
  const auto value = in.get<uint8_t>();
  if (value > static_cast<uint8_t>(last)) throw BadBytes("an unknown choice");
  return static_cast<Enum>(value);
}

void write(ByteWriter& out, const Program::Output& output) {
  out.add<uint8_t>(output.defined);
  out.add<uint8_t>(static_cast<uint8_t>(output.value_dtype));
  out.add<uint8_t>(static_cast<uint8_t>(output.dtype));
  for (const Shape* shape :
       {&output.sizes, &output.strides, &output.base_sizes, &output.base_strides}) {
    write(out, *shape);
  }
  out.add<int64_t>(output.bytes);
  out.add<int32_t>(output.write);
  out.add<int32_t>(output.input);
  out.add<uint8_t>(output.extent.has_value());
  if (output.extent) {
    out.add<int32_t>(output.extent->count);
    write(out, output.extent->sizes);
    write(out, output.extent->order);
  }
}

Program::Output read_output(ByteReader& in) {
  Program::Output output;
  output.defined = in.flag();
  output.value_dtype = read_enum(in, stablehlo::DType::kC128);
  output.dtype = read_enum(in, c10::ScalarType::Undefined);
  for (Shape* shape : {&output.sizes, &output.strides, &output.base_sizes, &output.base_strides}) {
    *shape = read_shape(in);
  }
  output.bytes = in.get<int64_t>();
  output.write = in.get<int32_t>();
  output.input = in.get<int32_t>();
  if (in.flag()) {
    trace::Extent extent;
    extent.count = in.get<int32_t>();
    extent.sizes = read_shape(in);
    extent.order = read_shape(in);
    output.extent = std::move(extent);
  }
  if (output.sizes.size() != output.strides.size() ||
      output.base_sizes.size() != output.base_strides.size() || output.write < -1 ||
      output.input < -1) {
    throw BadBytes("an output that cannot be");
  }
  return output;
}

bool write(ByteWriter& out, const c10::IValue& number) {
  if (number.isNone()) {
    out.add<uint8_t>(static_cast<uint8_t>(Number::kNone));
  } else if (number.isInt()) {
    out.add<uint8_t>(static_cast<uint8_t>(Number::kInt));
    out.add<int64_t>(number.toInt());
  } else if (number.isDouble()) {
    out.add<uint8_t>(static_cast<uint8_t>(Number::kDouble));
    out.add<double>(number.toDouble());
  } else if (number.isBool()) {
    out.add<uint8_t>(static_cast<uint8_t>(Number::kBool));
    out.add<uint8_t>(number.toBool());
  } else {
    return false;
  }
  return true;
}

c10::IValue read_number(ByteReader& in) {
  switch (read_enum(in, Number::kBool)) {
    case Number::kInt:
      return in.get<int64_t>();
    case Number::kDouble:
      return in.get<double>();
    case Number::kBool:
      return in.flag();
    case Number::kNone:
      break;
  }
  return {};
}

// Everything but the executable. False: it cannot be stored.
bool write(ByteWriter& out, const Program& program) {
  out.add_text(program.name);
  out.add<uint32_t>(static_cast<uint32_t>(program.outputs.size()));
  for (const Program::Output& output : program.outputs) write(out, output);
  out.add<uint32_t>(static_cast<uint32_t>(program.numbers.size()));
  for (const c10::IValue& number : program.numbers) {
    if (!write(out, number)) return false;
  }
  out.add<uint32_t>(static_cast<uint32_t>(program.checks.size()));
  for (const ops::ValueCheck& check : program.checks) {
    out.add_text(check.message);
    out.add<uint8_t>(static_cast<uint8_t>(check.kind));
  }
  out.add<uint32_t>(static_cast<uint32_t>(program.extra_inputs.size()));
  for (const trace::ValuePtr& kept : program.extra_inputs) {
    if (kept) return false;
    out.add<uint8_t>(0);
  }
  out.add<uint64_t>(program.draws);
  out.add<int32_t>(program.num_counts);
  out.add<int64_t>(program.new_bytes);
  for (const int size : program.pack_sizes) out.add<int32_t>(size);
  out.add<uint32_t>(static_cast<uint32_t>(program.resizes.size()));
  for (const Program::Resize& resize : program.resizes) {
    out.add<int32_t>(resize.tensor);
    write(out, resize.sizes);
    write(out, resize.strides);
  }
  out.add_text(program.refusal);
  out.add<double>(program.compile_seconds);
  out.add<uint64_t>(program.donations_at);
  out.add<uint64_t>(program.num_tensors);
  out.add<int32_t>(program.num_inputs);
  out.add<uint8_t>(program.fusible);
  out.add<uint64_t>(program.flavor);
  out.add<int64_t>(program.output_bytes);
  out.add<uint64_t>(program.fingerprint);
  out.add_text(program.text);
  return true;
}

void read(ByteReader& in, Program& program) {
  program.name = in.text();
  program.outputs.resize(in.count<uint32_t>(32));
  for (Program::Output& output : program.outputs) output = read_output(in);
  program.numbers.resize(in.count<uint32_t>(1));
  for (c10::IValue& number : program.numbers) number = read_number(in);
  program.checks.resize(in.count<uint32_t>(9));
  for (ops::ValueCheck& check : program.checks) {
    check.message = in.text();
    check.kind = read_enum(in, ops::ValueCheck::Kind::kBatch);
  }
  program.extra_inputs.resize(in.count<uint32_t>(1));
  for (size_t i = 0; i < program.extra_inputs.size(); ++i) {
    if (in.get<uint8_t>() != 0) throw BadBytes("an unknown input");
  }
  program.draws = in.get<uint64_t>();
  program.num_counts = in.get<int32_t>();
  program.new_bytes = in.get<int64_t>();
  for (int& size : program.pack_sizes) size = in.get<int32_t>();
  const auto num_resizes = in.count<uint32_t>(12);
  for (uint32_t i = 0; i < num_resizes; ++i) {
    Program::Resize resize;
    resize.tensor = in.get<int32_t>();
    resize.sizes = read_shape(in);
    resize.strides = read_shape(in);
    program.resizes.push_back(std::move(resize));
  }
  program.refusal = in.text();
  program.compile_seconds = in.get<double>();
  program.donations_at = in.get<uint64_t>();
  program.num_tensors = in.get<uint64_t>();
  program.num_inputs = in.get<int32_t>();
  program.fusible = in.flag();
  program.flavor = in.get<uint64_t>();
  program.output_bytes = in.get<int64_t>();
  program.fingerprint = in.get<uint64_t>();
  program.text = in.text();
  for (const Program::Output& output : program.outputs) {
    if (output.input >= program.num_inputs) throw BadBytes("an output that cannot be");
  }
}

// A buffer that the executable gives back, by what we know of it.
struct Result {
  PJRT_Buffer_Type type;  // PJRT_Buffer_Type_INVALID: not known here
  trace::ShapeRef dims;
};

Result result_of(const Program::Output& output) {
  // Of a program over several devices only the number is known here.
  const bool known = output.dtype != c10::ScalarType::Undefined;
  return {known ? trace::buffer_type(output.value_dtype) : PJRT_Buffer_Type_INVALID,
          output.base_sizes};
}

// That code and description are of the same program: the description says how much memory is read.
void check_results(const pjrt::LoadedExecutable& loaded, const std::vector<Result>& expected) {
  if (loaded.num_outputs() != expected.size()) {
    throw BadBytes("code with another number of results");
  }
  const std::vector<PJRT_Buffer_Type> types = loaded.executable().output_types();
  const std::vector<std::vector<int64_t>> dims = loaded.executable().output_dims();
  for (size_t i = 0; i < expected.size(); ++i) {
    if (expected[i].type == PJRT_Buffer_Type_INVALID) continue;
    if (i >= types.size() || types[i] != expected[i].type || i >= dims.size() ||
        trace::ShapeRef(dims[i]) != expected[i].dims) {
      throw BadBytes("code whose result " + std::to_string(i) + " is of another type");
    }
  }
}

}  // namespace

std::optional<std::string> encode_program(const Program& program) {
  ByteWriter out;
  out.add<uint32_t>(kVersion);
  if (!write(out, program)) return std::nullopt;
  out.add_text(program.executable ? program.executable.executable().serialize() : program.code);
  return out.take();
}

trace::ProgramPtr decode_program(std::string_view bytes) {
  ByteReader in(bytes);
  if (in.get<uint32_t>() != kVersion) throw BadBytes("another version of programs");
  auto program = c10::make_intrusive<Program>();
  read(in, *program);
  program->code = in.text();
  if (!in.done()) throw BadBytes("more than a program");
  if (program->runnable() && program->code.empty() && program->text.empty()) {
    throw BadBytes("a program without code");
  }
  return program;
}

void load_code(Program& program) {
  pjrt::LoadedExecutable loaded = pjrt::Runtime::get().client().deserialize(program.code);
  std::vector<Result> expected;
  for (const Program::Output& output : program.outputs) {
    if (output.defined) expected.push_back(result_of(output));
  }
  const int64_t counts = program.num_counts;
  if (counts > 0) expected.push_back({PJRT_Buffer_Type_S64, counts});
  for (size_t i = 0; i < program.checks.size(); ++i) {
    expected.push_back({PJRT_Buffer_Type_S64, {}});
  }
  check_results(loaded, expected);
  program.executable = std::move(loaded);
}

std::string encode_fused(const trace::FusedProgram& program) {
  ByteWriter out;
  out.add<uint32_t>(kVersion);
  out.add<double>(program.compile_seconds);
  out.add_text(program.executable.executable().serialize());
  return out.take();
}

void decode_fused(std::string_view bytes, trace::FusedProgram& program) {
  ByteReader in(bytes);
  if (in.get<uint32_t>() != kVersion) throw BadBytes("another version of programs");
  const double seconds = in.get<double>();
  pjrt::LoadedExecutable loaded = pjrt::Runtime::get().client().deserialize(in.text());
  std::vector<Result> all;
  for (const trace::ProgramPtr& node : program.nodes) {
    for (const Program::Output& output : node->outputs) {
      if (output.defined) all.push_back(result_of(output));
    }
  }
  std::vector<Result> expected;
  for (size_t i = 0; i < program.alive.size(); ++i) {
    expected.push_back(all.at(program.alive[i]));
    if (!program.bounds || program.bounds->results.at(i).empty()) continue;
    expected.back().dims = program.bounds->results[i];
  }
  const auto flags = static_cast<int64_t>(program.checks.size());
  if (flags > 0) expected.push_back({PJRT_Buffer_Type_S64, flags});
  check_results(loaded, expected);
  program.executable = std::move(loaded);
  program.temp_bytes = program.executable.executable().temp_bytes();
  program.compile_seconds = seconds;
}

}  // namespace torch_tpu::cache
