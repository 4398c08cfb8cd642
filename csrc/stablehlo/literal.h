// Text of numbers inside dense<...> attributes; exact, NaN and infinity as bit patterns.
#pragma once

#include <complex>
#include <string>

#include "csrc/base/number.h"
#include "csrc/stablehlo/type.h"

namespace torch_tpu::stablehlo {

// `dtype` must be a real float type; the value is rounded to it.
void append_float(std::string& out, double value, DType dtype);
void append_complex(std::string& out, std::complex<double> value, DType dtype);
// Two's complement for unsigned types; throws when the value does not fit. Takes bool and integers.
void append_int(std::string& out, int64_t value, DType dtype);
// Throws unless the value is integral and in range; bool takes any number.
int64_t to_int(const base::Number& value, DType dtype);
// The number as a float or complex type has it. An integer is rounded once, not to a double first.
double to_float(const base::Number& value, DType dtype);
// The largest and smallest values of an integer type, as append_int takes them.
int64_t int_lowest(DType dtype);
int64_t int_highest(DType dtype);

}  // namespace torch_tpu::stablehlo
