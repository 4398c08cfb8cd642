// Builder: constants and iota.
#include <limits>

#include "csrc/stablehlo/builder_impl.h"
#include "csrc/stablehlo/literal.h"

namespace torch_tpu::stablehlo {
namespace {

void check_constant_type(const Type& type) { check_type("constant", type); }

Value emit_constant(Graph& graph, const std::string& elements, const Type& type) {
  return graph.emit1("stablehlo.constant", {}, type,
                     product(type.dims) == 0 ? "dense<>" : "dense<" + elements + ">",
                     Form::kConstant);
}

// Nested brackets by the shape; `append` writes one element.
template <typename T, typename Append>
std::string nested(const std::vector<T>& values, const Dims& dims, const Append& append) {
  std::string out;
  size_t rank = dims.size();
  for (size_t i = 0; i < values.size(); ++i) {
    // How many dimensions begin (and, after the element, end) here.
    size_t opened = 0, closed = 0;
    int64_t block = 1;
    for (size_t d = rank; d-- > 0;) {
      block *= dims[d];
      opened += static_cast<int64_t>(i) % block == 0;
      closed += static_cast<int64_t>(i + 1) % block == 0;
    }
    if (i > 0) out += ", ";
    out.append(opened, '[');
    append(out, values[i]);
    out.append(closed, ']');
  }
  return out;
}

}  // namespace

Value Builder::splat(const Number& value, const Type& type) {
  if (is_complex(type.dtype)) return splat_complex(to_float(value, type.dtype), type);
  if (!is_float(type.dtype)) return splat_int(to_int(value, type.dtype), type);
  check_constant_type(type);
  std::string text;
  append_float(text, to_float(value, type.dtype), type.dtype);
  return emit_constant(impl_->graph, text, type);
}

Value Builder::splat_int(int64_t value, const Type& type) {
  if (is_complex(type.dtype) || is_float(type.dtype)) {
    return splat(value, type);
  }
  check_constant_type(type);
  std::string text;
  append_int(text, value, type.dtype);
  Value out = emit_constant(impl_->graph, text, type);
  if (type.rank() == 0) impl_->graph.scalar_ints.emplace(out.id(), value);
  return out;
}

Value Builder::splat_complex(std::complex<double> value, const Type& type) {
  if (!is_complex(type.dtype)) fail("constant", "a complex type", type);
  check_constant_type(type);
  std::string text;
  append_complex(text, value, type.dtype);
  return emit_constant(impl_->graph, text, type);
}

Value Builder::ints(const std::vector<int64_t>& values, const Type& type) {
  check_constant_type(type);
  check_count("constant", "elements for " + type.str(), product(type.dims), values.size());
  if (is_float(type.dtype) || is_complex(type.dtype)) {
    std::vector<double> rounded;
    rounded.reserve(values.size());
    for (const int64_t value : values) rounded.push_back(to_float(value, type.dtype));
    return floats(rounded, type);
  }
  if (type.rank() == 0) return splat_int(values[0], type);
  return emit_constant(impl_->graph,
                       nested(values, type.dims,
                              [&](std::string& out, int64_t v) { append_int(out, v, type.dtype); }),
                       type);
}

Value Builder::floats(const std::vector<double>& values, const Type& type) {
  check_constant_type(type);
  check_count("constant", "elements for " + type.str(), product(type.dims), values.size());
  if (!is_float(type.dtype) && !is_complex(type.dtype)) fail("constant", "a float type", type);
  return emit_constant(impl_->graph,
                       nested(values, type.dims,
                              [&](std::string& out, double v) {
                                if (is_complex(type.dtype))
                                  append_complex(out, v, type.dtype);
                                else
                                  append_float(out, v, type.dtype);
                              }),
                       type);
}

Value Builder::lowest(DType dtype) {
  if (is_complex(dtype)) fail("lowest", "an ordered dtype", dtype_name(dtype));
  if (!is_float(dtype)) return splat_int(int_lowest(dtype), Type(dtype, {}));
  if (dtype == DType::kF8E4M3FN) return scalar(-448, dtype);  // has no infinity
  if (dtype == DType::kF8E4M3FNUZ) return scalar(-240, dtype);
  if (dtype == DType::kF8E5M2FNUZ) return scalar(-57344, dtype);
  return scalar(-std::numeric_limits<double>::infinity(), dtype);
}

Value Builder::highest(DType dtype) {
  if (is_complex(dtype)) fail("highest", "an ordered dtype", dtype_name(dtype));
  if (!is_float(dtype)) return splat_int(int_highest(dtype), Type(dtype, {}));
  if (dtype == DType::kF8E4M3FN) return scalar(448, dtype);
  if (dtype == DType::kF8E4M3FNUZ) return scalar(240, dtype);
  if (dtype == DType::kF8E5M2FNUZ) return scalar(57344, dtype);
  return scalar(std::numeric_limits<double>::infinity(), dtype);
}

Value Builder::iota(const Type& type, int64_t dim) {
  check_type("iota", type);
  if (type.dtype == DType::kBool) fail("iota", "a number type", type);
  check_dim("iota", dim, type.rank());
  return impl_->graph.emit1("stablehlo.iota", {}, type, "iota_dimension = " + int_attribute(dim));
}

}  // namespace torch_tpu::stablehlo
