#include "csrc/stablehlo/literal.h"

#include <charconv>
#include <cmath>
#include <cstdio>
#include <limits>

#include "csrc/stablehlo/graph.h"

namespace torch_tpu::stablehlo {
namespace {

struct FloatBits {
  int digits;  // hex digits
  uint64_t nan, infinity, sign;
  double overflow;  // from this magnitude on, rounding gives infinity (f8E4M3FN: NaN)
};

FloatBits float_bits(DType dtype) {
  switch (dtype) {
    case DType::kF8E4M3FN:
      return {2, 0x7F, 0x7F, 0x80, std::nextafter(464.0, 465.0)};
    case DType::kF8E5M2:
      return {2, 0x7E, 0x7C, 0x80, 61440.0};
    case DType::kF8E4M3FNUZ:
      return {2, 0x80, 0x80, 0, 248.0};
    case DType::kF8E5M2FNUZ:
      return {2, 0x80, 0x80, 0, 61440.0};
    case DType::kBF16:
      return {4, 0x7FC0, 0x7F80, 0x8000, 0x1.FFp127};
    case DType::kF16:
      return {4, 0x7E00, 0x7C00, 0x8000, 65520.0};
    case DType::kF32:
      return {8, 0x7FC00000, 0x7F800000, 0x80000000, 0x1.FFFFFFp127};
    default:
      return {16, 0x7FF8000000000000, 0x7FF0000000000000, 0x8000000000000000,
              std::numeric_limits<double>::infinity()};
  }
}

void append_hex(std::string& out, uint64_t bits, int digits) {
  char text[24];
  std::snprintf(text, sizeof(text), "0x%0*llX", digits, static_cast<unsigned long long>(bits));
  out += text;
}

}  // namespace

void append_float(std::string& out, double value, DType dtype) {
  FloatBits bits = float_bits(dtype);
  if (std::isnan(value)) return append_hex(out, bits.nan, bits.digits);
  if (std::abs(value) >= bits.overflow) {
    return append_hex(out, bits.infinity | (value < 0 ? bits.sign : 0), bits.digits);
  }
  char text[40];
  char* end = nullptr;
  if (dtype == DType::kF32) {
    // The shortest text that reads back as this float; it must survive a parser that goes through
    // double, so fall back to the longer text when that rounds twice.
    float narrow = static_cast<float>(value);
    end = std::to_chars(text, text + sizeof(text), narrow).ptr;
    double back = 0;
    std::from_chars(text, end, back);
    if (static_cast<float>(back) != narrow) {
      end = std::to_chars(text, text + sizeof(text), static_cast<double>(narrow)).ptr;
    }
  } else {
    end = std::to_chars(text, text + sizeof(text), value).ptr;
  }
  std::string_view number(text, end - text);
  size_t exponent = number.find('e');
  std::string_view mantissa = number.substr(0, exponent);
  out += mantissa;
  if (mantissa.find('.') == std::string_view::npos) out += ".0";  // MLIR wants the point
  if (exponent != std::string_view::npos) out += number.substr(exponent);
}

void append_complex(std::string& out, std::complex<double> value, DType dtype) {
  out += '(';
  append_float(out, value.real(), real_of(dtype));
  out += ", ";
  append_float(out, value.imag(), real_of(dtype));
  out += ')';
}

int64_t int_lowest(DType dtype) {
  if (is_unsigned(dtype)) return 0;
  return std::numeric_limits<int64_t>::min() >> (64 - 8 * dtype_bytes(dtype));
}

int64_t int_highest(DType dtype) {
  if (dtype == DType::kBool) return 1;
  if (dtype == DType::kU64) return -1;
  int64_t bits = 8 * dtype_bytes(dtype) - (is_unsigned(dtype) ? 0 : 1);
  return static_cast<int64_t>((uint64_t{1} << bits) - 1);
}

void append_int(std::string& out, int64_t value, DType dtype) {
  if (dtype == DType::kBool) {
    out += value != 0 ? "true" : "false";
  } else if (dtype == DType::kU64) {
    out += std::to_string(static_cast<uint64_t>(value));
  } else if (value < int_lowest(dtype) || value > int_highest(dtype)) {
    fail("constant", "a value that fits in " + std::string(dtype_name(dtype)),
         std::to_string(value));
  } else {
    out += std::to_string(value);
  }
}

int64_t to_int(const base::Number& value, DType dtype) {
  using Kind = base::Number::Kind;
  if (dtype == DType::kBool) return !(value == 0);
  const auto refuse = [&]() {
    fail("constant", "an integer that fits in " + std::string(dtype_name(dtype)),
         base::to_string(value));
  };
  if (value.is_integer()) {
    const bool large = value.kind() == Kind::kUInt;
    const bool fits = dtype == DType::kU64 ? large || value.integer() >= 0
                                           : !large && value.integer() >= int_lowest(dtype) &&
                                                 value.integer() <= int_highest(dtype);
    if (!fits) refuse();
    return value.integer();
  }
  const double real = value.to_double();
  const double limit =
      std::ldexp(1.0, 8 * static_cast<int>(dtype_bytes(dtype)) - (is_unsigned(dtype) ? 0 : 1));
  const double low = is_unsigned(dtype) ? 0 : -limit;
  if (!(real >= low && real < limit) || real != std::trunc(real)) refuse();
  return dtype == DType::kU64 ? static_cast<int64_t>(static_cast<uint64_t>(real))
                              : static_cast<int64_t>(real);
}

double to_float(const base::Number& value, DType dtype) {
  const bool narrow = value.is_integer() && real_of(dtype) != DType::kF64;
  return narrow ? value.to_float() : value.to_double();
}

}  // namespace torch_tpu::stablehlo
