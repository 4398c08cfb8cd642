#include "csrc/stablehlo/signature.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <stdexcept>
#include <string>

namespace torch_tpu::stablehlo {
namespace {

[[noreturn]] void refuse(const std::string& why) {
  throw std::invalid_argument("the module's function @main cannot be read: " + why);
}

bool is_word(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
         c == '.' || c == '$';
}

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// Walks over the text by MLIR's rules for comments, strings and names.
class Reader {
 public:
  explicit Reader(std::string_view text) : text_(text) {}

  // Goes behind the next `func.func`; false when there is no more.
  bool next_function() {
    for (skip_space(); at_ < text_.size(); skip_space()) {
      if (text_[at_] == '"') {
        string();
      } else if (is_word(text_[at_])) {
        if (word() == "func.func") return true;
      } else {
        ++at_;
      }
    }
    return false;
  }

  // The function's name, behind which its arguments begin. MLIR allows quotes around any name.
  std::string_view name() {
    skip_space();
    if (at_ < text_.size() && is_word(text_[at_])) word();  // public, private
    if (!take('@')) return {};
    skip_space();
    return at_ < text_.size() && text_[at_] == '"' ? string() : word();
  }

  Signature signature() {
    Signature out;
    expect('(');
    while (!take(')')) {
      if (!out.arguments.empty()) expect(',');
      expect('%');
      word();
      expect(':');
      out.arguments.push_back(type());
      skip_attributes();
    }
    if (!take('-')) return out;
    expect('>');
    if (!take('(')) {
      out.results.push_back(type());
      return out;
    }
    while (!take(')')) {
      if (!out.results.empty()) expect(',');
      out.results.push_back(type());
      skip_attributes();
    }
    return out;
  }

 private:
  void skip_space() {
    while (at_ < text_.size()) {
      const char c = text_[at_];
      if (c == '/' && text_.substr(at_).starts_with("//")) {
        at_ = std::min(text_.find('\n', at_), text_.size());
      } else if (c == ' ' || c == '\n' || c == '\t' || c == '\r') {
        ++at_;
      } else {
        return;
      }
    }
  }

  bool take(char c) {
    skip_space();
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }

  void expect(char c) {
    if (take(c)) return;
    refuse(std::string("expected '") + c + "', got '" +
           std::string(text_.substr(std::min(at_, text_.size()), 20)) + "'");
  }

  std::string_view word() {
    const size_t start = at_;
    while (at_ < text_.size() && is_word(text_[at_])) ++at_;
    return text_.substr(start, at_ - start);
  }

  std::string_view string() {
    const size_t start = ++at_;
    while (at_ < text_.size() && text_[at_] != '"') at_ += text_[at_] == '\\' ? 2 : 1;
    if (at_ >= text_.size()) refuse("a string has no end");
    return text_.substr(start, at_++ - start);
  }

  // {...} and loc(...), whatever is in them.
  void skip_attributes() {
    skip_space();
    while (at_ < text_.size() && (text_[at_] == '{' || text_.substr(at_).starts_with("loc("))) {
      if (text_[at_] != '{') word();
      int depth = 0;
      do {
        skip_space();
        if (at_ >= text_.size()) refuse("an attribute has no end");
        if (text_[at_] == '"') {
          string();
          continue;
        }
        const char c = text_[at_++];
        depth += c == '{' || c == '(' ? 1 : c == '}' || c == ')' ? -1 : 0;
      } while (depth > 0);
      skip_space();
    }
  }

  Type type() {
    skip_space();
    const std::string_view rest = text_.substr(at_);
    constexpr std::string_view kStart = "tensor<";
    size_t end = kStart.size();
    for (int depth = 1; depth > 0 && end < rest.size(); ++end) {
      depth += rest[end] == '<' ? 1 : rest[end] == '>' ? -1 : 0;
    }
    if (!rest.starts_with(kStart) || rest[end - 1] != '>') {
      refuse("expected a tensor, got '" + std::string(rest.substr(0, 20)) + "'");
    }
    at_ += end;
    return parse(rest.substr(0, end), rest.substr(kStart.size(), end - kStart.size() - 1));
  }

  static Type parse(std::string_view shown, std::string_view inside) {
    Type out;
    while (!inside.empty() && is_digit(inside[0])) {
      int64_t dim = 0;
      const auto [stop, error] = std::from_chars(inside.data(), inside.data() + inside.size(), dim);
      const auto length = static_cast<size_t>(stop - inside.data());
      if (error != std::errc() || length == inside.size() || inside[length] != 'x') {
        refuse("the type " + std::string(shown));
      }
      out.dims.push_back(dim);
      inside.remove_prefix(length + 1);
    }
    for (int i = 0; i <= static_cast<int>(DType::kC128); ++i) {
      out.dtype = static_cast<DType>(i);
      if (dtype_name(out.dtype) == inside) return out;
    }
    refuse("the type " + std::string(shown));
  }

  std::string_view text_;
  size_t at_ = 0;
};

}  // namespace

Signature main_signature(std::string_view text) {
  Reader reader(text);
  std::optional<Signature> found;
  while (reader.next_function()) {
    if (reader.name() != "main") continue;
    if (found) refuse("there are two");
    found = reader.signature();
  }
  if (!found) refuse("there is none");
  return *std::move(found);
}

}  // namespace torch_tpu::stablehlo
