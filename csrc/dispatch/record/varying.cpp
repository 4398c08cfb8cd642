#include "csrc/dispatch/record/varying.h"

#include <atomic>
#include <limits>

#include <ATen/ops/zeros.h>

#include "csrc/device/cell.h"
#include "csrc/device/tensor.h"
#include "csrc/dispatch/record/recorder.h"
#include "csrc/ops/helpers.h"

namespace torch_tpu::dispatch {
namespace {

using stablehlo::Builder;
using stablehlo::Dims;
using stablehlo::DType;
using stablehlo::Size;
using stablehlo::Type;
using stablehlo::Value;
using stablehlo::Values;

std::atomic<bool> poison{false};

Recorder& recorder() {
  Recorder* current = Recorder::current();
  TORCH_CHECK(current != nullptr, "no recording");
  return *current;
}

}  // namespace

VaryingScope::VaryingScope(int integers, int floats) {
  Builder& b = recorder().builder();
  // In the order of the scalar packs: see execute().
  if (floats > 0) {
    const Value all = b.parameter(Type(DType::kF32, {floats}));
    for (int i = 0; i < floats; ++i) {
      floats_.push_back(b.reshape(b.slice(all, {i}, {i + 1}), {}));
    }
  }
  const Value all = b.parameter(Type(DType::kS64, {integers}));
  for (int i = 0; i < integers; ++i) {
    values_.push_back(b.reshape(b.slice(all, {i}, {i + 1}), {}));
    numbers_.push_back(b.new_size(b.convert(values_.back(), DType::kS32)));
  }
}

Size VaryingScope::size_of(const Extents& extents) const {
  Size out(extents.constant);
  for (const auto& [index, factor] : extents.terms) {
    out = out + numbers_.at(static_cast<size_t>(index)) * factor;
  }
  return out;
}

at::Tensor VaryingScope::vary(const at::Tensor& tensor, int64_t dim, const Extents& size) {
  Recorder& r = recorder();
  const Value x = r.read(tensor);
  const Value varied = r.builder().vary(x, dim, size_of(size));
  return varied.id() == x.id() ? tensor : r.make(varied, tensor.scalar_type());
}

at::Tensor VaryingScope::trust(const at::Tensor& tensor, int64_t dim) {
  Recorder& r = recorder();
  return r.make(r.builder().trust(r.read(tensor), dim), tensor.scalar_type());
}

std::vector<Varying> VaryingScope::look(const at::Tensor& tensor,
                                        const std::vector<std::vector<int64_t>>& samples) {
  Recorder& r = recorder();
  const Builder& b = r.builder();
  const Value value = r.read(tensor);
  std::vector<Varying> out(static_cast<size_t>(value.rank()));
  for (int64_t d = 0; d < value.rank(); ++d) {
    if (!value.type().varies(d)) continue;
    const stablehlo::Axis& axis = b.axis(value, d);
    Varying& varying = out[static_cast<size_t>(d)];
    varying.factors = axis.size();
    for (const std::vector<int64_t>& numbers : samples) {
      int64_t count = 1;
      for (const stablehlo::Factor& factor : axis) {
        count *= factor.varies ? b.evaluate(factor.size, numbers) : factor.extent;
      }
      varying.counts.push_back(count);
    }
  }
  return out;
}

at::Tensor VaryingScope::number(int index) {
  return recorder().make(values_.at(static_cast<size_t>(index)), at::kLong);
}

at::Tensor VaryingScope::float_number(int index) {
  return recorder().make(floats_.at(static_cast<size_t>(index)), at::kFloat);
}

at::Tensor VaryingScope::select(const at::Tensor& tensor, int64_t dim, const Extents& at) {
  Recorder& r = recorder();
  Builder& b = r.builder();
  const Value x = r.read(tensor);
  Dims sizes = x.dims();
  sizes.at(static_cast<size_t>(dim)) = 1;
  Values starts(static_cast<size_t>(x.rank()), b.scalar(0, DType::kS32));
  starts[static_cast<size_t>(dim)] = b.size_value(size_of(at));
  const Value one = b.dynamic_slice(x, starts, sizes);
  return r.make(b.reshape(one, ops::without(x.dims(), {dim})), tensor.scalar_type());
}

at::Tensor VaryingScope::slice(const at::Tensor& tensor, int64_t dim, const Extents& at,
                               int64_t length) {
  Recorder& r = recorder();
  Builder& b = r.builder();
  const Value x = b.trust(r.read(tensor), dim);
  const auto d = static_cast<size_t>(dim);
  Dims none(static_cast<size_t>(x.rank()), 0), high = none, sizes = x.dims();
  high[d] = length;  // the slice may end beyond what is there, with what does not count
  sizes[d] = length;
  const Value longer = b.pad(x, b.scalar(0, x.dtype()), none, high);
  Values starts(static_cast<size_t>(x.rank()), b.scalar(0, DType::kS32));
  starts[d] = b.size_value(size_of(at));
  return r.make(b.dynamic_slice(longer, starts, sizes), tensor.scalar_type());
}

at::Tensor VaryingScope::unslice(const at::Tensor& tensor, int64_t dim, const Extents& at,
                                 int64_t length) {
  Recorder& r = recorder();
  Builder& b = r.builder();
  const auto d = static_cast<size_t>(dim);
  const Value read = r.read(tensor);
  const Value x = b.fill_rest(read, b.scalar(0, read.dtype()), {dim});
  Dims dims = x.dims();
  dims[d] += length;  // the last zeros may lie beyond the end
  Values starts(static_cast<size_t>(x.rank()), b.scalar(0, DType::kS32));
  starts[d] = b.size_value(size_of(at));
  const Value longer = b.dynamic_update_slice(b.splat(0, Type(x.dtype(), dims)), x, starts);
  return r.make(b.slice_dim(longer, dim, 0, length), tensor.scalar_type());
}

namespace {

// Row after row, each over what did not count of the one before.
Value pack_rows(const Value& x, int64_t rows, const Value& step) {
  Builder& b = x.builder();
  const Type scalar(DType::kS32, {});
  const int64_t row = x.numel() / rows;
  const Value matrix = b.reshape(x, {rows, row});
  const Values done = b.while_loop(
      {b.splat_int(0, scalar), b.reshape(x, {x.numel()})},
      [&](const Values& v) -> Values { return {b.lt(v[0], b.splat_int(rows, scalar))}; },
      [&](const Values& v) -> Values {
        const Value line =
            b.reshape(b.dynamic_slice(matrix, {v[0], b.splat_int(0, scalar)}, {1, row}), {row});
        const Value out = b.dynamic_update_slice(v[1], line, {b.multiply(v[0], step)});
        return {b.add(v[0], b.splat_int(1, scalar)), out};
      });
  return done[1];
}

Size true_size(const stablehlo::Factor& factor) {
  return factor.varies ? factor.size : Size(factor.extent);
}

// The dimensions of x as factors, and x with no claims about what counts.
stablehlo::Axis take_factors(Value& x) {
  Builder& b = x.builder();
  stablehlo::Axis factors;
  for (int64_t d = 0; d < x.rank(); ++d) {
    if (x.type().varies(d)) {
      const stablehlo::Axis& axis = b.axis(x, d);
      factors.insert(factors.end(), axis.begin(), axis.end());
    } else {
      factors.push_back({x.dims()[static_cast<size_t>(d)], false, {}});
    }
    x = b.trust(x, d);
  }
  return factors;
}

int64_t extents(const stablehlo::Axis& factors) {
  int64_t product = 1;
  for (const stablehlo::Factor& factor : factors) product *= factor.extent;
  return product;
}

// x[places of from] as places of `to`: element i of one in row-major order, counting only what
// counts, is element i of the other. Rows of `inner` elements move together.
Value gather_rows(const Value& x, const stablehlo::Axis& from, const stablehlo::Axis& to,
                  int64_t inner) {
  Builder& b = x.builder();
  const int64_t rows = extents(to);
  const Type type(DType::kS32, {rows});
  const auto constant = [&](int64_t value) { return b.splat_int(value, type); };
  const auto size = [&](const stablehlo::Factor& factor) {
    return b.broadcast_to(b.size_value(true_size(factor)), {rows});
  };
  // Which element in the true order stands at each place of the result ...
  Value place = b.iota(type, 0), order = constant(0), step = constant(1);
  for (size_t i = to.size(); i-- > 0;) {
    const Value here = b.remainder(place, constant(to[i].extent));
    place = b.divide(place, constant(to[i].extent));
    order = b.add(order, b.multiply(here, step));
    step = b.multiply(step, size(to[i]));
  }
  // ... and where that is in x.
  Value at = constant(0);
  int64_t stride = 1;
  for (size_t i = from.size(); i-- > 0;) {
    const Value n = size(from[i]);
    at = b.add(at, b.multiply(b.remainder(order, n), constant(stride)));
    order = b.divide(order, n);
    stride *= from[i].extent;
  }
  stablehlo::GatherDims dims;
  dims.offset_dims = {1};
  dims.collapsed_slice_dims = dims.start_index_map = {0};
  dims.index_vector_dim = 1;
  const Value lines = b.reshape(x, {x.numel() / inner, inner});
  return b.reshape(b.gather(lines, b.reshape(at, {rows, 1}), dims, {1, inner}), {rows * inner});
}

}  // namespace

at::Tensor VaryingScope::pack(const at::Tensor& tensor) {
  Recorder& r = recorder();
  Builder& b = r.builder();
  Value x = r.read(tensor);
  stablehlo::Axis factors = take_factors(x);
  int64_t inner = 1;
  while (!factors.empty() && !factors.back().varies) {
    inner *= factors.back().extent;
    factors.pop_back();
  }
  if (factors.empty() || x.numel() == 0) {
    return r.make(b.reshape(x, {x.numel()}), tensor.scalar_type());
  }
  int64_t rows = 1;
  bool several = false;
  for (size_t i = 0; i + 1 < factors.size(); ++i) {
    several = several || factors[i].varies;
    rows *= factors[i].extent;
  }
  if (several) {
    // As a prefix of one dimension: the true order is the place.
    const stablehlo::Axis flat = {{extents(factors), false, {}}};
    return r.make(gather_rows(x, factors, flat, inner), tensor.scalar_type());
  }
  if (rows == 1) return r.make(b.reshape(x, {x.numel()}), tensor.scalar_type());
  const Value step = b.size_value(factors.back().size * inner);
  return r.make(pack_rows(x, rows, step), tensor.scalar_type());
}

at::Tensor VaryingScope::reshape(const at::Tensor& tensor, const std::vector<int64_t>& dims,
                                 const std::vector<Extents>& sizes) {
  Recorder& r = recorder();
  Builder& b = r.builder();
  Value x = r.read(tensor);
  stablehlo::Axis from = take_factors(x), to;
  for (size_t d = 0; d < dims.size(); ++d) {
    const Size size = size_of(sizes[d]);
    to.push_back({dims[d], size != Size(dims[d]), size});
  }
  int64_t inner = 1;
  while (!from.empty() && !to.empty() && !from.back().varies && !to.back().varies &&
         from.back().extent == to.back().extent) {
    inner *= from.back().extent;
    from.pop_back();
    to.pop_back();
  }
  Value out = b.reshape(gather_rows(x, from, to, inner), dims);
  for (size_t d = 0; d < to.size(); ++d) {
    if (to[d].varies) out = b.vary(out, static_cast<int64_t>(d), to[d].size);
  }
  return r.make(out, tensor.scalar_type());
}

void set_poison(bool on) { poison = on; }

trace::ValuePtr padded_value(const at::Tensor& tensor, trace::ShapeRef sizes) {
  const c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  const trace::ValuePtr value = device::cell_of(impl)->load();
  const bool plain = !impl.is_conj() && !impl.is_neg() && !poison.load();
  if (value && plain && impl.storage_offset() == 0 && value->contiguous() &&
      value->dtype() == ops::to_dtype(tensor.scalar_type()) && value->dims() == sizes) {
    // Strides of dimensions of one element say nothing.
    bool same = true;
    for (size_t d = 0; d < sizes.size(); ++d) {
      same = same && (impl.sizes()[d] == 1 || impl.strides()[d] == value->strides()[d]);
    }
    if (same) return value;
  }
  const at::Tensor host = device::host_view(tensor);
  at::Tensor padded = at::zeros(sizes, host.options());
  if (poison.load()) {
    if (padded.is_floating_point() || padded.is_complex()) {
      padded.fill_(std::numeric_limits<double>::quiet_NaN());
    } else {
      padded.fill_(padded.scalar_type() == at::kBool ? 1 : 113);
    }
  }
  at::Tensor part = padded;
  for (size_t d = 0; d < sizes.size(); ++d) {
    part = part.narrow(static_cast<int64_t>(d), 0, impl.sizes()[d]);
  }
  part.copy_(host);
  return device::upload(padded, tensor.device().index(), /*keep_alive_zero_copy=*/true);
}

}  // namespace torch_tpu::dispatch
