// Writing and reading little-endian records. The reader trusts nothing: every length is checked
// against what is left before it is used.
#pragma once

#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>

namespace torch_tpu::cache {

class BadBytes : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class ByteWriter {
 public:
  template <typename T>
  void add(std::type_identity_t<T> value) {
    static_assert(std::is_arithmetic_v<T>);
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof(T));
  }
  void add_bytes(std::string_view bytes) { bytes_.append(bytes); }
  // With its length.
  void add_text(std::string_view text) {
    add<uint64_t>(text.size());
    add_bytes(text);
  }
  std::string take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

class ByteReader {
 public:
  explicit ByteReader(std::string_view bytes) : left_(bytes) {}

  template <typename T>
  T get() {
    static_assert(std::is_arithmetic_v<T> && !std::is_same_v<T, bool>);
    T value;
    std::memcpy(&value, bytes(sizeof(T)).data(), sizeof(T));
    return value;
  }
  std::string_view bytes(uint64_t size) {
    if (size > left_.size()) throw BadBytes("it ends too early");
    const std::string_view out = left_.substr(0, size);
    left_.remove_prefix(size);
    return out;
  }
  std::string_view text() { return bytes(get<uint64_t>()); }
  bool flag() {
    const auto value = get<uint8_t>();
    if (value > 1) throw BadBytes("a flag that is neither 0 nor 1");
    return value == 1;
  }
  // A number of things that take `each` bytes at least: what follows must have room for them.
  template <typename T>
  T count(uint64_t each) {
    const T n = get<T>();
    if (n > left_.size() / each) throw BadBytes("a count larger than what follows");
    return n;
  }
  bool done() const { return left_.empty(); }
  size_t left() const { return left_.size(); }

 private:
  std::string_view left_;
};

}  // namespace torch_tpu::cache
