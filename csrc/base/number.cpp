#include "csrc/base/number.h"

#include <charconv>
#include <iterator>

namespace torch_tpu::base {

std::string to_string(const Number& number) {
  char text[32];
  char* const end = std::end(text);
  switch (number.kind()) {
    case Number::Kind::kDouble:
      return {text, std::to_chars(text, end, number.to_double()).ptr};
    case Number::Kind::kUInt:
      return {text, std::to_chars(text, end, number.bits()).ptr};
    default:
      return {text, std::to_chars(text, end, number.integer()).ptr};
  }
}

}  // namespace torch_tpu::base
