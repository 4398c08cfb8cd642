#include "csrc/cache/program_file.h"

#include "csrc/cache/bytes.h"
#include "csrc/pjrt/runtime.h"
#include "csrc/trace/bounded.h"
#include "csrc/trace/buffer_type.h"

namespace torch_tpu::cache {
namespace {

using trace::Program;
using trace::Shape;

constexpr uint32_t kVersion = 4;

#if defined(__x86_64__) && defined(__GLIBCXX__)
// A new field must be stored too (and this number changed).
static_assert(sizeof(Program) == 976, "store the new field of Program below");
static_assert(sizeof(Program::Output) == 384, "store the new field of Output below");
#endif

// What follows, after the version.
enum class Kind : uint8_t { kProgram, kResizes, kRefusal, kCode };

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
  out.add<uint8_t>(output.overwrites);
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
  output.value_dtype = read_enum(in, stablehlo::DType::kC32);
  output.dtype = read_enum(in, c10::ScalarType::Undefined);
  for (Shape* shape : {&output.sizes, &output.strides, &output.base_sizes, &output.base_strides}) {
    *shape = read_shape(in);
  }
  output.bytes = in.get<int64_t>();
  output.write = in.get<int32_t>();
  output.input = in.get<int32_t>();
  output.overwrites = in.flag();
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
  const bool compiled = program.code.ready();
  out.add<double>(compiled ? program.code.compile_seconds() : program.stored.compile_seconds);
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
  program.stored.compile_seconds = in.get<double>();
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

ResultType result_of(const trace::Runnable::Output& output) {
  // A write's tensor dtype may be unknown, but not its value's.
  return {trace::buffer_type(output.value_dtype), output.base_sizes};
}

void write(ByteWriter& out, const trace::Resizes& resizes) {
  out.add<uint32_t>(static_cast<uint32_t>(resizes.all.size()));
  for (const trace::Resizes::Resize& resize : resizes.all) {
    out.add<int32_t>(resize.tensor);
    write(out, resize.sizes);
    write(out, resize.strides);
  }
}

std::shared_ptr<const trace::Resizes> read_resizes(ByteReader& in) {
  auto out = std::make_shared<trace::Resizes>();
  const auto count = in.count<uint32_t>(12);
  for (uint32_t i = 0; i < count; ++i) {
    trace::Resizes::Resize resize;
    resize.tensor = in.get<int32_t>();
    resize.sizes = read_shape(in);
    resize.strides = read_shape(in);
    out->all.push_back(std::move(resize));
  }
  return out;
}

std::shared_ptr<const trace::Refusal> read_refusal(ByteReader& in) {
  auto out = std::make_shared<trace::Refusal>();
  out->op = in.text();
  out->why = in.text();
  return out;
}

trace::ProgramPtr read_program(ByteReader& in) {
  auto program = c10::make_intrusive<Program>();
  read(in, *program);
  program->stored.code = in.text();
  program->found = !program->stored.code.empty();
  if (program->stored.code.empty() && program->text.empty()) {
    throw BadBytes("a program without code");
  }
  return program;
}

ByteWriter begin(Kind kind) {
  ByteWriter out;
  out.add<uint32_t>(kVersion);
  out.add<uint8_t>(static_cast<uint8_t>(kind));
  return out;
}

Kind begin(ByteReader& in) {
  if (in.get<uint32_t>() != kVersion) throw BadBytes("another version of programs");
  return read_enum(in, Kind::kCode);
}

}  // namespace

std::optional<std::string> encode_program(const Program& program) {
  ByteWriter out = begin(Kind::kProgram);
  if (!write(out, program)) return std::nullopt;
  out.add_text(program.code.ready() ? program.code.executable().executable().serialize()
                                    : program.stored.code);
  return out.take();
}

std::optional<std::string> encode_answer(const trace::Answer& answer) {
  if (const auto* program = std::get_if<trace::ProgramPtr>(&answer)) {
    return encode_program(**program);
  }
  if (const auto* resizes = std::get_if<std::shared_ptr<const trace::Resizes>>(&answer)) {
    ByteWriter out = begin(Kind::kResizes);
    write(out, **resizes);
    return out.take();
  }
  if (const auto* refusal = std::get_if<std::shared_ptr<const trace::Refusal>>(&answer)) {
    ByteWriter out = begin(Kind::kRefusal);
    out.add_text((*refusal)->op);
    out.add_text((*refusal)->why);
    return out.take();
  }
  return std::nullopt;
}

trace::Answer decode_answer(std::string_view bytes) {
  ByteReader in(bytes);
  trace::Answer out;
  switch (begin(in)) {
    case Kind::kProgram:
      out = read_program(in);
      break;
    case Kind::kResizes:
      out = read_resizes(in);
      break;
    case Kind::kRefusal:
      out = read_refusal(in);
      break;
    case Kind::kCode:
      throw BadBytes("code where a call belongs");
  }
  if (!in.done()) throw BadBytes("more than a program");
  return out;
}

std::string encode_code(double compile_seconds, std::string_view executable) {
  ByteWriter out = begin(Kind::kCode);
  out.add<double>(compile_seconds);
  out.add_text(executable);
  return out.take();
}

std::string encode_code(const trace::Code& code) {
  return encode_code(code.compile_seconds(), code.executable().executable().serialize());
}

trace::Runnable::Stored decode_code(std::string_view bytes) {
  ByteReader in(bytes);
  if (begin(in) != Kind::kCode) throw BadBytes("a call where code belongs");
  trace::Runnable::Stored out;
  out.compile_seconds = in.get<double>();
  out.code = in.text();
  if (!in.done()) throw BadBytes("more than code");
  return out;
}

pjrt::LoadedExecutable load_executable(std::string_view code, const ResultTypes& results) {
  pjrt::LoadedExecutable loaded = pjrt::Runtime::get().client().deserialize(code);
  if (loaded.num_outputs() != results.size()) {
    throw BadBytes("code with another number of results");
  }
  const std::vector<PJRT_Buffer_Type> types = loaded.executable().output_types();
  const std::vector<std::vector<int64_t>> dims = loaded.executable().output_dims();
  for (size_t i = 0; i < results.size(); ++i) {
    if (results[i].type == PJRT_Buffer_Type_INVALID) continue;
    if (i >= types.size() || types[i] != results[i].type || i >= dims.size() ||
        trace::ShapeRef(dims[i]) != trace::ShapeRef(results[i].dims)) {
      throw BadBytes("code whose result " + std::to_string(i) + " is of another type");
    }
  }
  return loaded;
}

ResultTypes result_types(const trace::Runnable& program) {
  ResultTypes out;
  for (const trace::Runnable::Output& output : program.outputs) {
    if (output.defined) out.push_back(result_of(output));
  }
  if (program.num_counts > 0) {
    out.push_back({PJRT_Buffer_Type_S64, {int64_t{program.num_counts}}});
  }
  out.insert(out.end(), program.checks.size(), ResultType{PJRT_Buffer_Type_S64, {}});
  return out;
}

ResultTypes result_types(const trace::FusedProgram& program) {
  ResultTypes all;
  for (const trace::ProgramPtr& node : program.nodes) {
    for (const Program::Output& output : node->outputs) {
      if (output.defined) all.push_back(result_of(output));
    }
  }
  ResultTypes out;
  for (size_t i = 0; i < program.alive.size(); ++i) {
    out.push_back(all.at(program.alive[i]));
    if (!program.bounds || program.bounds->results.at(i).empty()) continue;
    out.back().dims = program.bounds->results[i];
  }
  const auto flags = static_cast<int64_t>(program.checks.size());
  if (flags > 0) out.push_back({PJRT_Buffer_Type_S64, {flags}});
  return out;
}

}  // namespace torch_tpu::cache
