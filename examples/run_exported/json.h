// A JSON reader, as much as a manifest and the header of a safetensors file need.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace run_exported {

// Every accessor throws std::runtime_error when the value is of another kind.
class Json {
 public:
  // Throws std::runtime_error naming the position.
  static Json parse(std::string_view text);

  const std::string& text() const;
  int64_t integer() const;
  std::vector<int64_t> integers() const;
  const std::vector<Json>& items() const;
  const std::vector<std::pair<std::string, Json>>& members() const;
  const Json& at(std::string_view name) const;
  const Json* find(std::string_view name) const;  // null when there is none

 private:
  friend class JsonReader;
  enum class Kind { kNull, kBool, kInteger, kNumber, kText, kList, kObject };

  Kind kind_ = Kind::kNull;
  int64_t integer_ = 0;
  std::string text_;
  std::vector<Json> items_;
  std::vector<std::pair<std::string, Json>> members_;
};

}  // namespace run_exported
