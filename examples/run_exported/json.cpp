#include "json.h"

#include <charconv>
#include <stdexcept>

namespace run_exported {

class JsonReader {
 public:
  explicit JsonReader(std::string_view text) : text_(text) {}

  Json document() {
    Json value = read(0);
    skip_space();
    if (at_ != text_.size()) fail("something after the end");
    return value;
  }

 private:
  using Kind = Json::Kind;
  static constexpr int kMaxDepth = 200;

  [[noreturn]] void fail(const std::string& what) const {
    throw std::runtime_error("not JSON: " + what + " at byte " + std::to_string(at_));
  }

  char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }

  void skip_space() {
    while (peek() == ' ' || peek() == '\t' || peek() == '\r' || peek() == '\n') ++at_;
  }

  bool take(std::string_view word) {
    if (text_.substr(at_, word.size()) != word) return false;
    at_ += word.size();
    return true;
  }

  void expect(std::string_view word) {
    skip_space();
    if (!take(word)) fail("expected '" + std::string(word) + "'");
  }

  Json read(int depth) {
    if (depth > kMaxDepth) fail("too deep");
    skip_space();
    Json value;
    if (peek() == '{') {
      read_object(value, depth);
    } else if (peek() == '[') {
      read_list(value, depth);
    } else if (peek() == '"') {
      value.kind_ = Kind::kText;
      value.text_ = read_text();
    } else if (take("true") || take("false")) {
      value.kind_ = Kind::kBool;
    } else if (!take("null")) {
      read_number(value);
    }
    return value;
  }

  void read_object(Json& value, int depth) {
    value.kind_ = Kind::kObject;
    expect("{");
    skip_space();
    if (take("}")) return;
    do {
      skip_space();
      std::string name = read_text();
      expect(":");
      value.members_.emplace_back(std::move(name), read(depth + 1));
      skip_space();
    } while (take(","));
    expect("}");
  }

  void read_list(Json& value, int depth) {
    value.kind_ = Kind::kList;
    expect("[");
    skip_space();
    if (take("]")) return;
    do {
      value.items_.push_back(read(depth + 1));
      skip_space();
    } while (take(","));
    expect("]");
  }

  // Numbers that are no integers are only skipped: nobody here asks for them.
  void read_number(Json& value) {
    const size_t end = text_.find_first_not_of("+-.0123456789eEINaftyn", at_);
    const std::string_view word = text_.substr(at_, end == text_.npos ? end : end - at_);
    if (word.empty()) fail("expected a value");
    const char* last = word.data() + word.size();
    const auto [stop, error] = std::from_chars(word.data(), last, value.integer_);
    value.kind_ = error == std::errc() && stop == last ? Kind::kInteger : Kind::kNumber;
    at_ += word.size();
  }

  unsigned read_hex() {
    unsigned code = 0;
    const std::string_view digits = text_.substr(at_, 4);
    const auto [stop, error] =
        std::from_chars(digits.data(), digits.data() + digits.size(), code, 16);
    if (error != std::errc() || stop != digits.data() + 4) fail("a bad \\u");
    at_ += 4;
    return code;
  }

  static void append_utf8(std::string& out, unsigned code) {
    if (code < 0x80) {
      out += static_cast<char>(code);
    } else if (code < 0x800) {
      out += static_cast<char>(0xC0 | code >> 6);
      out += static_cast<char>(0x80 | (code & 0x3F));
    } else if (code < 0x10000) {
      out += static_cast<char>(0xE0 | code >> 12);
      out += static_cast<char>(0x80 | (code >> 6 & 0x3F));
      out += static_cast<char>(0x80 | (code & 0x3F));
    } else {
      out += static_cast<char>(0xF0 | code >> 18);
      out += static_cast<char>(0x80 | (code >> 12 & 0x3F));
      out += static_cast<char>(0x80 | (code >> 6 & 0x3F));
      out += static_cast<char>(0x80 | (code & 0x3F));
    }
  }

  std::string read_text() {
    expect("\"");
    std::string out;
    while (at_ < text_.size()) {
      const char c = text_[at_++];
      if (c == '"') return out;
      if (c != '\\') {
        out += c;
        continue;
      }
      const char escaped = peek();
      ++at_;
      switch (escaped) {
        case 'n':
          out += '\n';
          break;
        case 't':
          out += '\t';
          break;
        case 'r':
          out += '\r';
          break;
        case 'b':
          out += '\b';
          break;
        case 'f':
          out += '\f';
          break;
        case 'u': {
          unsigned code = read_hex();
          if (code >= 0xD800 && code < 0xDC00 && take("\\u")) {  // the first of a pair
            code = 0x10000 + ((code - 0xD800) << 10) + (read_hex() - 0xDC00);
          }
          append_utf8(out, code);
          break;
        }
        default:
          out += escaped;
      }
    }
    fail("text without an end");
  }

  std::string_view text_;
  size_t at_ = 0;
};

namespace {

void check(bool right, const char* wanted) {
  if (!right) throw std::runtime_error(std::string("expected ") + wanted);
}

}  // namespace

Json Json::parse(std::string_view text) { return JsonReader(text).document(); }

const std::string& Json::text() const {
  check(kind_ == Kind::kText, "text");
  return text_;
}

int64_t Json::integer() const {
  check(kind_ == Kind::kInteger, "an integer");
  return integer_;
}

std::vector<int64_t> Json::integers() const {
  std::vector<int64_t> out;
  for (const Json& item : items()) out.push_back(item.integer());
  return out;
}

const std::vector<Json>& Json::items() const {
  check(kind_ == Kind::kList, "a list");
  return items_;
}

const std::vector<std::pair<std::string, Json>>& Json::members() const {
  check(kind_ == Kind::kObject, "an object");
  return members_;
}

const Json* Json::find(std::string_view name) const {
  for (const auto& [key, value] : members()) {
    if (key == name) return &value;
  }
  return nullptr;
}

const Json& Json::at(std::string_view name) const {
  if (const Json* value = find(name)) return *value;
  throw std::runtime_error("there is no \"" + std::string(name) + "\"");
}

}  // namespace run_exported
