#include "array.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <fstream>
#include <iterator>
#include <sstream>
#include <stdexcept>

#include "json.h"

namespace run_exported {
namespace {

static_assert(std::endian::native == std::endian::little, "the files are little-endian");
namespace fs = std::filesystem;

constexpr DType kDTypes[] = {
    {"bool", "BOOL", "b1", "i1", PJRT_Buffer_Type_PRED, 1},
    {"int8", "I8", "i1", "i8", PJRT_Buffer_Type_S8, 1},
    {"int16", "I16", "i2", "i16", PJRT_Buffer_Type_S16, 2},
    {"int32", "I32", "i4", "i32", PJRT_Buffer_Type_S32, 4},
    {"int64", "I64", "i8", "i64", PJRT_Buffer_Type_S64, 8},
    {"uint8", "U8", "u1", "ui8", PJRT_Buffer_Type_U8, 1},
    {"uint16", "U16", "u2", "ui16", PJRT_Buffer_Type_U16, 2},
    {"uint32", "U32", "u4", "ui32", PJRT_Buffer_Type_U32, 4},
    {"uint64", "U64", "u8", "ui64", PJRT_Buffer_Type_U64, 8},
    {"float16", "F16", "f2", "f16", PJRT_Buffer_Type_F16, 2},
    {"bfloat16", "BF16", "V2", "bf16", PJRT_Buffer_Type_BF16, 2},
    {"float32", "F32", "f4", "f32", PJRT_Buffer_Type_F32, 4},
    {"float64", "F64", "f8", "f64", PJRT_Buffer_Type_F64, 8},
    {"float8_e4m3fn", "F8_E4M3", "V1", "f8E4M3FN", PJRT_Buffer_Type_F8E4M3FN, 1},
    {"float8_e5m2", "F8_E5M2", "V1", "f8E5M2", PJRT_Buffer_Type_F8E5M2, 1},
    {"complex64", "C64", "c8", "complex<f32>", PJRT_Buffer_Type_C64, 8},
    {"complex128", nullptr, "c16", "complex<f64>", PJRT_Buffer_Type_C128, 16},
};

[[noreturn]] void fail(const fs::path& path, const std::string& what) {
  throw std::runtime_error(path.string() + ": " + what);
}

int64_t count_of(const std::vector<int64_t>& shape) {
  int64_t count = 1;
  for (const int64_t size : shape) {
    if (size < 0 || __builtin_mul_overflow(count, size, &count)) {
      throw std::runtime_error("a shape that cannot be");
    }
  }
  return count;
}

template <typename T>
T load(const char* from) {
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}

float half_to_float(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000) << 16;
  const uint32_t exponent = half >> 10 & 0x1F;
  const uint32_t fraction = half & 0x3FF;
  if (exponent == 0) {  // zero and subnormals
    const float value = static_cast<float>(fraction) * 0x1p-24f;
    return sign != 0 ? -value : value;
  }
  const uint32_t wide = exponent == 31 ? 0x7F800000 : (exponent + 112) << 23;
  return std::bit_cast<float>(sign | wide | fraction << 13);
}

void print_element(std::ostream& out, const DType& dtype, const char* at) {
  switch (dtype.type) {
    case PJRT_Buffer_Type_PRED:
      out << (*at != 0 ? "true" : "false");
      break;
    case PJRT_Buffer_Type_S8:
      out << static_cast<int>(load<int8_t>(at));
      break;
    case PJRT_Buffer_Type_S16:
      out << load<int16_t>(at);
      break;
    case PJRT_Buffer_Type_S32:
      out << load<int32_t>(at);
      break;
    case PJRT_Buffer_Type_S64:
      out << load<int64_t>(at);
      break;
    case PJRT_Buffer_Type_F16:
      out << half_to_float(load<uint16_t>(at));
      break;
    case PJRT_Buffer_Type_BF16:
      out << std::bit_cast<float>(static_cast<uint32_t>(load<uint16_t>(at)) << 16);
      break;
    case PJRT_Buffer_Type_F32:
      out << load<float>(at);
      break;
    case PJRT_Buffer_Type_F64:
      out << load<double>(at);
      break;
    case PJRT_Buffer_Type_C64:
      out << load<float>(at) << "+" << load<float>(at + 4) << "i";
      break;
    default: {  // unsigned and the rest: as they lie in memory
      uint64_t bits = 0;
      std::memcpy(&bits, at, static_cast<size_t>(std::min(dtype.bytes, 8)));
      out << bits;
    }
  }
}

// The text of a .npy header holds a Python dict: what follows the key, up to its end.
std::string npy_field(const fs::path& path, const std::string& header, const std::string& key) {
  const size_t at = header.find("'" + key + "':");
  if (at == header.npos) fail(path, "its header has no " + key);
  const size_t start = header.find_first_not_of(' ', at + key.size() + 3);
  const char open = start == header.npos ? '\0' : header[start];
  const char close = open == '(' ? ')' : open == '\'' ? '\'' : ',';
  const size_t end = header.find(close, start + 1);
  if (end == header.npos) fail(path, "its header is damaged");
  return header.substr(start, end - start + (close == ',' ? 0 : 1));
}

Array parse_npy(const fs::path& path, const std::string& raw, const DType& wanted) {
  const auto major = static_cast<unsigned char>(raw[6]);
  const size_t start = major == 1 ? 10 : 12;
  if (raw.size() < start) fail(path, "is cut off");
  const size_t length = major == 1 ? load<uint16_t>(&raw[8]) : load<uint32_t>(&raw[8]);
  if (raw.size() - start < length) fail(path, "is cut off");
  const std::string header = raw.substr(start, length);
  const std::string descr = npy_field(path, header, "descr");
  if (descr.size() < 4 || descr[1] == '>' || descr.substr(2, descr.size() - 3) != wanted.numpy) {
    fail(path, "holds " + descr + ", wanted is " + wanted.name);
  }
  if (npy_field(path, header, "fortran_order") != "False") {
    fail(path, "is in Fortran order; save numpy.ascontiguousarray(x)");
  }
  Array array;
  array.dtype = &wanted;
  std::istringstream sizes(npy_field(path, header, "shape").substr(1));
  for (std::string size; std::getline(sizes, size, ',');) {
    const size_t digit = size.find_first_of("0123456789");
    if (digit != size.npos) array.shape.push_back(std::stoll(size.substr(digit)));
  }
  array.bytes.assign(raw.begin() + static_cast<ptrdiff_t>(start + length), raw.end());
  if (static_cast<int64_t>(array.bytes.size()) != array.count() * wanted.bytes) {
    fail(path, "is cut off: it has " + std::to_string(array.bytes.size()) + " bytes of elements");
  }
  return array;
}

std::string shape_list(const std::vector<int64_t>& shape) {
  std::string out;
  for (const int64_t size : shape) out += (out.empty() ? "" : ",") + std::to_string(size);
  return out;
}

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out + "\"";
}

std::ofstream open_for_writing(const fs::path& path) {
  std::ofstream file(path, std::ios::binary);
  if (!file) fail(path, "cannot be written");
  return file;
}

}  // namespace

const DType& dtype_by_name(const std::string& name) {
  for (const DType& dtype : kDTypes) {
    if (name == dtype.name) return dtype;
  }
  throw std::runtime_error("the element type " + name + " is not known here");
}

const DType* dtype_by_type(PJRT_Buffer_Type type) {
  for (const DType& dtype : kDTypes) {
    if (dtype.type == type) return &dtype;
  }
  return nullptr;
}

const DType* dtype_by_mlir(std::string_view name) {
  for (const DType& dtype : kDTypes) {
    if (dtype.mlir == name) return &dtype;
  }
  return nullptr;
}

int64_t Array::count() const { return count_of(shape); }

std::string type_text(const DType& dtype, const std::vector<int64_t>& shape) {
  return std::string(dtype.name) + "[" + shape_list(shape) + "]";
}

std::string Array::type_text() const { return run_exported::type_text(*dtype, shape); }

std::string Array::values_text(int64_t limit) const {
  std::ostringstream out;
  for (int64_t i = 0; i < std::min(count(), limit); ++i) {
    if (i > 0) out << ", ";
    print_element(out, *dtype, bytes.data() + i * dtype->bytes);
  }
  if (count() > limit) out << ", ...";
  return out.str();
}

std::string read_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file || fs::is_directory(path)) fail(path, "cannot be read");
  return {std::istreambuf_iterator<char>(file), {}};
}

Array read_array(const fs::path& path, const DType& dtype, const std::vector<int64_t>& shape) {
  const std::string raw = read_file(path);
  if (raw.starts_with("\x93NUMPY") && raw.size() > 12) return parse_npy(path, raw, dtype);
  Array array{&dtype, shape, {raw.begin(), raw.end()}};
  const int64_t expected = array.count() * dtype.bytes;
  if (static_cast<int64_t>(raw.size()) != expected) {
    fail(path, "has " + std::to_string(raw.size()) + " bytes; " + array.type_text() + " takes " +
                   std::to_string(expected));
  }
  return array;
}

void write_npy(const fs::path& path, const Array& array) {
  std::string header = std::string("{'descr': '") + (array.dtype->bytes == 1 ? "|" : "<") +
                       array.dtype->numpy + "', 'fortran_order': False, 'shape': (" +
                       shape_list(array.shape) + (array.shape.size() == 1 ? "," : "") + "), }";
  header.append(63 - (10 + header.size()) % 64, ' ');
  header += '\n';
  std::ofstream file = open_for_writing(path);
  const auto length = static_cast<uint16_t>(header.size());
  file.write("\x93NUMPY\x01\x00", 8);
  file.write(reinterpret_cast<const char*>(&length), 2);
  file << header;
  file.write(array.bytes.data(), static_cast<std::streamsize>(array.bytes.size()));
  if (!file.flush()) fail(path, "cannot be written");
}

void write_safetensors(const fs::path& path,
                       const std::vector<std::pair<std::string, Array>>& arrays) {
  std::string header = "{";
  size_t offset = 0;
  for (const auto& [name, array] : arrays) {
    if (array.dtype->safetensors == nullptr) fail(path, std::string("no ") + array.dtype->name);
    const size_t end = offset + array.bytes.size();
    header += (header.size() > 1 ? "," : "") + quoted(name) + ":{\"dtype\":\"" +
              array.dtype->safetensors + "\",\"shape\":[" + shape_list(array.shape) +
              "],\"data_offsets\":[" + std::to_string(offset) + "," + std::to_string(end) + "]}";
    offset = end;
  }
  header += "}";
  header.append((8 - header.size() % 8) % 8, ' ');
  std::ofstream file = open_for_writing(path);
  const uint64_t length = header.size();
  file.write(reinterpret_cast<const char*>(&length), 8);
  file << header;
  for (const auto& [name, array] : arrays) {
    file.write(array.bytes.data(), static_cast<std::streamsize>(array.bytes.size()));
  }
  if (!file.flush()) fail(path, "cannot be written");
}

Safetensors::Safetensors(fs::path path) : path_(std::move(path)) {
  if (!fs::is_regular_file(path_)) fail(path_, "cannot be read: it is no file");
  std::ifstream file(path_, std::ios::binary);
  if (!file) fail(path_, "cannot be read");
  const uint64_t size = fs::file_size(path_);
  uint64_t length = 0;
  if (!file.read(reinterpret_cast<char*>(&length), 8) || length > size - 8) {
    fail(path_, "is damaged or no safetensors file");
  }
  std::string header(length, '\0');
  if (!file.read(header.data(), static_cast<std::streamsize>(length))) fail(path_, "is cut off");
  try {
    const Json json = Json::parse(header);
    for (const auto& [name, facts] : json.members()) {
      if (name == "__metadata__") continue;
      const DType* dtype = nullptr;
      for (const DType& known : kDTypes) {
        if (known.safetensors != nullptr && facts.at("dtype").text() == known.safetensors) {
          dtype = &known;
        }
      }
      if (dtype == nullptr) continue;  // an error for whoever asks for it
      Entry entry{dtype, facts.at("shape").integers(), 0};
      const std::vector<int64_t> offsets = facts.at("data_offsets").integers();
      const int64_t bytes = count_of(entry.shape) * dtype->bytes;
      if (offsets.size() != 2 || offsets[0] < 0 || offsets[1] - offsets[0] != bytes ||
          static_cast<uint64_t>(offsets[1]) > size - 8 - length) {
        throw std::runtime_error("the tensor '" + name + "' does not fit; the file may be cut off");
      }
      entry.start = 8 + length + static_cast<uint64_t>(offsets[0]);
      entries_.emplace(name, std::move(entry));
    }
  } catch (const std::runtime_error& error) {
    fail(path_, error.what());
  }
}

Array Safetensors::read(const std::string& name) const {
  const auto found = entries_.find(name);
  if (found == entries_.end()) fail(path_, "has no tensor '" + name + "'");
  const Entry& entry = found->second;
  Array array{entry.dtype, entry.shape, {}};
  array.bytes.resize(static_cast<size_t>(array.count() * entry.dtype->bytes));
  std::ifstream file(path_, std::ios::binary);
  file.seekg(static_cast<std::streamoff>(entry.start));
  if (!file.read(array.bytes.data(), static_cast<std::streamsize>(array.bytes.size()))) {
    fail(path_, "is cut off");
  }
  return array;
}

}  // namespace run_exported
