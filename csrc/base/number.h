// A number that keeps its kind and all its bits. A double holds 53 bits of an integer, so where a
// number may be either (arguments, keys, constants of a program) it is one of these, and whoever
// wants a double says so.
#pragma once

#include <bit>
#include <cmath>
#include <concepts>
#include <cstdint>
#include <limits>
#include <string>

namespace torch_tpu::base {

class Number {
 public:
  enum class Kind : uint8_t {
    kBool,
    kInt,
    kUInt,  // only above the largest int64_t, so that a value has one form
    kDouble,
  };

  constexpr Number() = default;
  // Implicit: every C++ number is one.
  template <std::integral T>
  constexpr Number(T value)
      : bits_(static_cast<uint64_t>(value)),
        kind_(std::same_as<T, bool>                                       ? Kind::kBool
              : std::unsigned_integral<T> && (uint64_t(value) >> 63 != 0) ? Kind::kUInt
                                                                          : Kind::kInt) {}
  template <std::floating_point T>
  constexpr Number(T value)
      : bits_(std::bit_cast<uint64_t>(static_cast<double>(value))), kind_(Kind::kDouble) {}

  constexpr Kind kind() const { return kind_; }
  constexpr bool is_integer() const { return kind_ != Kind::kDouble; }  // bool too
  // An integer in two's complement, or the bits of the double. Says all beside the kind.
  constexpr uint64_t bits() const { return bits_; }
  // Of an integer: the value, modulo 2^64.
  constexpr int64_t integer() const { return static_cast<int64_t>(bits_); }

  // The nearest; rounded once, as C++ converts.
  constexpr double to_double() const { return to<double>(); }
  constexpr float to_float() const { return to<float>(); }

  bool is_whole() const {
    return is_integer() || (std::isfinite(to_double()) && std::trunc(to_double()) == to_double());
  }
  // The integer a cast gives: doubles lose their fraction, and those out of range stop at its ends.
  constexpr int64_t truncated() const {
    if (is_integer()) return integer();
    const double value = to_double();
    if (value != value) return 0;
    if (value >= 0x1p63) return std::numeric_limits<int64_t>::max();
    if (value < -0x1p63) return std::numeric_limits<int64_t>::min();
    return static_cast<int64_t>(value);
  }

  // By value, exactly: 1, 1.0 and true are equal, 2^53 + 1 and 2^53 as a double are not.
  friend constexpr bool operator==(const Number& a, const Number& b) {
    if (a.is_integer() == b.is_integer()) {
      if (!a.is_integer()) return a.to_double() == b.to_double();
      return a.bits_ == b.bits_ && (a.kind_ == Kind::kUInt) == (b.kind_ == Kind::kUInt);
    }
    return a.is_integer() ? same_value(a, b.to_double()) : same_value(b, a.to_double());
  }

 private:
  template <typename T>
  constexpr T to() const {
    switch (kind_) {
      case Kind::kDouble:
        return static_cast<T>(std::bit_cast<double>(bits_));
      case Kind::kUInt:
        return static_cast<T>(bits_);
      default:
        return static_cast<T>(static_cast<int64_t>(bits_));
    }
  }

  static constexpr bool same_value(const Number& integer, double real) {
    if (integer.kind_ == Kind::kUInt) {
      return real >= 0x1p63 && real < 0x1p64 && static_cast<uint64_t>(real) == integer.bits_ &&
             static_cast<double>(integer.bits_) == real;
    }
    return real >= -0x1p63 && real < 0x1p63 && static_cast<int64_t>(real) == integer.integer() &&
           static_cast<double>(integer.integer()) == real;
  }

  uint64_t bits_ = 0;
  Kind kind_ = Kind::kInt;
};

// As Python would write it, but for bools, which are 0 and 1; reads back as the same number.
std::string to_string(const Number& number);

}  // namespace torch_tpu::base
