// Arrays on the host, and the files they come from and go to: .npy, safetensors, raw bytes.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "pjrt_c_api.h"

namespace run_exported {

// What an element is called where.
struct DType {
  const char* name;         // PyTorch's
  const char* safetensors;  // or null
  const char* numpy;        // without the byte order; "V2" and the like for what NumPy has not
  const char* mlir;
  PJRT_Buffer_Type type;
  int bytes;
};
const DType& dtype_by_name(const std::string& name);  // throws
const DType* dtype_by_type(PJRT_Buffer_Type type);    // or null
const DType* dtype_by_mlir(std::string_view name);    // or null

// Row-major.
struct Array {
  const DType* dtype = nullptr;
  std::vector<int64_t> shape;
  std::vector<char> bytes;

  int64_t count() const;
  std::string type_text() const;                 // "float32[2,3]"
  std::string values_text(int64_t limit) const;  // the first elements
};
std::string type_text(const DType& dtype, const std::vector<int64_t>& shape);

// All throw std::runtime_error, naming the file.
std::string read_file(const std::filesystem::path& path);
// A .npy file, or the bare elements of an array of the type wanted.
Array read_array(const std::filesystem::path& path, const DType& dtype,
                 const std::vector<int64_t>& shape);
void write_npy(const std::filesystem::path& path, const Array& array);
void write_safetensors(const std::filesystem::path& path,
                       const std::vector<std::pair<std::string, Array>>& arrays);

// Reads single tensors of a file, so that a large one need not fit into memory twice.
class Safetensors {
 public:
  explicit Safetensors(std::filesystem::path path);
  bool has(const std::string& name) const { return entries_.contains(name); }
  Array read(const std::string& name) const;

 private:
  struct Entry {
    const DType* dtype;
    std::vector<int64_t> shape;
    uint64_t start;
  };
  std::filesystem::path path_;
  std::map<std::string, Entry> entries_;
};

}  // namespace run_exported
