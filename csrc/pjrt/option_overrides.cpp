#include "csrc/pjrt/option_overrides.h"

#include <sstream>
#include <stdexcept>

namespace torch_tpu::pjrt {
namespace {

constexpr std::string_view kHead = "// compile options:";

void check_word(const std::string& text, const char* what) {
  for (const char c : text) {
    if (static_cast<unsigned char>(c) > ' ' && c != 127) continue;
    throw std::invalid_argument(std::string("[compiler options] ") + what + " '" + text +
                                "' has a space or a control character");
  }
}

std::string to_text(const OptionOverride& value) {
  if (const auto* text = std::get_if<std::string>(&value)) return "s:" + *text;
  if (const auto* flag = std::get_if<bool>(&value)) return *flag ? "b:1" : "b:0";
  if (const auto* number = std::get_if<int64_t>(&value)) return "i:" + std::to_string(*number);
  std::ostringstream out;
  out.precision(17);
  out << "d:" << std::get<double>(value);
  return out.str();
}

OptionOverride to_value(std::string_view text) {
  const std::string rest(text.substr(2));
  switch (text[0]) {
    case 'b':
      return rest == "1";
    case 'i':
      return int64_t{std::stoll(rest)};
    case 'd':
      return std::stod(rest);
    default:
      return rest;
  }
}

}  // namespace

std::string to_line(const OptionOverrides& overrides) {
  if (overrides.empty()) return "";
  std::string out(kHead);
  for (const auto& [name, value] : overrides) {
    check_word(name, "the name");
    if (name.empty() || name.find('=') != name.npos) {
      throw std::invalid_argument("[compiler options] '" + name + "' is no name of an option");
    }
    const std::string text = to_text(value);
    check_word(text, "the value");
    out += " " + name + "=" + text;
  }
  return out + "\n";
}

OptionOverrides overrides_of(std::string_view module) {
  OptionOverrides out;
  if (module.substr(0, kHead.size()) != kHead) return out;
  std::istringstream words(
      std::string(module.substr(kHead.size(), module.find('\n') - kHead.size())));
  for (std::string word; words >> word;) {
    const size_t at = word.find('=');
    out[word.substr(0, at)] = to_value(std::string_view(word).substr(at + 1));
  }
  return out;
}

}  // namespace torch_tpu::pjrt
