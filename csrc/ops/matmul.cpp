// Matrix products: mm, bmm, addmm and kin, dot, linear with its backward, _trilinear. Products of
// half types accumulate in f32 and are rounded once, after bias and scaling; see Target for the
// exception.
#include <algorithm>
#include <cmath>

#include <c10/core/ScalarTypeToTypeMeta.h>
#include <c10/util/Exception.h>

#include "csrc/ops/helpers.h"
#include "csrc/ops/integer_dot.h"
#include "csrc/ops/low_bit.h"
#include "csrc/ops/matmul_precision.h"
#include "csrc/ops/table.h"
#include "csrc/ops/target.h"

namespace torch_tpu::ops {

void add_pdist(Entries& t);  // pdist.cpp

namespace {

using stablehlo::DotDims;

const DotDims kMatrices = {{}, {}, {1}, {0}};

Value dot(const Value& a, const Value& b, const DotDims& dims, DType result) {
  if (is_wide_integer(a.dtype())) return integer_dot(a, b, dims);
  return a.builder().dot_general(a, b, dims, result, matmul_precision(a.dtype()));
}

constexpr int64_t kAlignedRow = 8;
constexpr int64_t kLongRow = 512;             // padding costs little beside it
constexpr int64_t kLargeProduct = 1ll << 31;  // multiplications

bool is_odd_row(const Value& x, int64_t dim) {
  return x.dim(dim) >= kLongRow && x.dim(dim) % kAlignedRow != 0 && !x.type().varies(dim);
}

Value pad_row(const Value& x, int64_t dim) {
  Dims high(x.rank(), 0);
  high[dim] = (x.dim(dim) + kAlignedRow - 1) / kAlignedRow * kAlignedRow - x.dim(dim);
  return x.builder().pad(x, full(x.builder(), 0, x.dtype(), {}), Dims(x.rank(), 0), high);
}

// Of matrices; see Target::aligns_half_rows. The result's own rows stay as they are: what reads
// them would have to cut them.
Value aligned_dot(Value a, Value b, const DotDims& dims, DType result) {
  const int64_t summed = dims.lhs_contracting[0], others = dims.rhs_contracting[0];
  const int64_t rows = a.dim(1 - summed);
  if (is_odd_row(a, summed)) {
    a = pad_row(a, summed);
    b = pad_row(b, others);
  }
  const bool cut = summed == 0 && is_odd_row(a, 1);
  if (cut) a = pad_row(a, 1);
  const Value product = dot(a, b, dims, result);
  return cut ? a.builder().slice_dim(product, 0, 0, rows) : product;
}

bool aligns(const Value& a, const Value& b, const DotDims& dims) {
  if (!target().aligns_half_rows || (a.dtype() != DType::kBF16 && a.dtype() != DType::kF16)) {
    return false;
  }
  return a.rank() == 2 && b.rank() == 2 && dims.lhs_contracting.size() == 1 &&
         a.numel() * b.dim(1 - dims.rhs_contracting[0]) >= kLargeProduct;
}

// `wanted`: what the op gives in the end, after bias and scaling.
Value dot_for(DType wanted, const Value& a, const Value& b, const DotDims& dims) {
  const bool rounds = target().rounds_half_products && wanted == a.dtype();
  const DType result = rounds ? a.dtype() : opmath(a.dtype());
  return aligns(a, b, dims) ? aligned_dot(a, b, dims, result) : dot(a, b, dims, result);
}

Value dot(Call& c, const Value& a, const Value& b, const DotDims& dims) {
  return dot_for(c.out(0).dtype, a, b, dims);
}

// The first factor of a product of matrices as it lies in memory: a transposed view has its rows
// in the other dimension.
Value mm(Call& c, std::string_view first, const Value& b) {
  const Value a = c.tensor(first);
  if (!aligns(a, b, kMatrices) || c.contiguous(first)) return dot(c, a, b, kMatrices);
  return dot(c, c.b.transpose(a, {1, 0}), b, {{}, {}, {0}, {0}});
}

const DotDims kBatches = {{0}, {0}, {2}, {1}};

// Meta kernels do not compare dtypes here; the messages are those of the CPU kernels.
void check_factors(Call& c, std::string_view a, std::string_view b) {
  const auto name = [&](std::string_view x) {
    return c10::scalarTypeToTypeMeta(to_scalar_type(c.dtype(x))).name();
  };
  TORCH_CHECK(c.dtype(a) == c.dtype(b),
              "expected m1 and m2 to have the same dtype, but got: ", name(a), " != ", name(b));
}

void check_addend(Call& c, std::string_view factor) {
  TORCH_CHECK(c.dtype("self") == c.dtype(factor),
              "self and mat2 must have the same dtype, but got ",
              c10::toString(to_scalar_type(c.dtype("self"))), " and ",
              c10::toString(to_scalar_type(c.dtype(factor))));
}

bool is(Call& c, std::string_view name, const Number& value) { return c.known(name) == value; }

Value scaled(Call& c, std::string_view name, const Value& x) {
  if (is(c, name, 1)) return x;
  return x * c.b.broadcast_to(c.scalar(name, x.dtype()), x.dims());
}

// beta * self + alpha * product. As in BLAS, a zero beta does not read self.
Value add_scaled(Call& c, const Value& product) {
  const Value result = scaled(c, "alpha", product);
  if (is(c, "beta", 0)) return result;
  const Value self = cast(c.tensor("self"), result.dtype());
  return scaled(c, "beta", c.b.broadcast_to(self, result.dims())) + result;
}

Values lower_mm(Call& c) {
  check_factors(c, "self", "mat2");
  return {mm(c, "self", c.tensor("mat2"))};
}

Values lower_bmm(Call& c) { return {dot(c, c.tensor("self"), c.tensor("mat2"), kBatches)}; }

Value addmm(Call& c) {
  const Value mat1 = c.tensor("mat1");
  const Value mat2 = c.tensor("mat2");
  check_factors(c, "mat1", "mat2");
  // BLAS does not read the factors when alpha is zero.
  if (is(c, "alpha", 0)) {
    return add_scaled(c, full(c.b, 0, opmath(mat1.dtype()), {mat1.dim(0), mat2.dim(1)}));
  }
  return add_scaled(c, mm(c, "mat1", mat2));
}

Values lower_addmm(Call& c) {
  check_addend(c, "mat2");
  return {addmm(c)};
}

Values lower_addmm_dtype(Call& c) { return {addmm(c)}; }

Values lower_addmm_activation(Call& c) {
  check_addend(c, "mat2");
  Value x = addmm(c);
  if (c.flag("use_gelu")) {
    return {x * 0.5 * (c.b.erf(x * M_SQRT1_2) + 1.0)};
  }
  return {nan_maximum(x, zeros_like(x))};
}

Values lower_baddbmm(Call& c) {
  return {add_scaled(c, dot(c, c.tensor("batch1"), c.tensor("batch2"), kBatches))};
}

Values lower_baddbmm_dtype(Call& c) {
  return {cast(lower_baddbmm(c)[0], c.dtype_arg("out_dtype").value())};
}

Values lower_addbmm(Call& c) {
  check_addend(c, "batch2");
  check_factors(c, "batch1", "batch2");
  return {add_scaled(c, dot(c, c.tensor("batch1"), c.tensor("batch2"), {{}, {}, {0, 2}, {0, 1}}))};
}

Values lower_mv(Call& c) {
  check_factors(c, "self", "vec");
  return {dot(c, c.tensor("self"), c.tensor("vec"), kMatrices)};
}

Values lower_addmv(Call& c) {
  const auto name = [&](std::string_view x) { return c10::toString(to_scalar_type(c.dtype(x))); };
  TORCH_CHECK(c.dtype("self") == c.dtype("mat") && c.dtype("mat") == c.dtype("vec"),
              "addmv input tensors must have the same dtype, but got ", name("self"), ", ",
              name("mat"), ", and ", name("vec"));
  const Value mat = c.tensor("mat");
  if (is(c, "alpha", 0)) return {add_scaled(c, full(c.b, 0, opmath(mat.dtype()), {mat.dim(0)}))};
  return {add_scaled(c, dot(c, mat, c.tensor("vec"), kMatrices))};
}

const DotDims kVectors = {{}, {}, {0}, {0}};

Values lower_dot(Call& c) { return {dot(c, c.tensor("self"), c.tensor("tensor"), kVectors)}; }

Value conj(const Value& x) { return is_complex(x.dtype()) ? x.builder().conj(x) : x; }

Values lower_vdot(Call& c) { return {dot(c, conj(c.tensor("self")), c.tensor("other"), kVectors)}; }

Values lower_addr(Call& c) {
  const DType t = opmath(c.common_dtype({"self", "vec1", "vec2"}));
  const Value vec1 = cast(c.tensor("vec1"), t);
  const Value vec2 = cast(c.tensor("vec2"), t);
  const Dims dims = {vec1.dim(0), vec2.dim(0)};
  return {
      add_scaled(c, c.b.broadcast_in_dim(vec1, dims, {0}) * c.b.broadcast_in_dim(vec2, dims, {1}))};
}

// --- linear ------------------------------------------------------------------------------------

// All but the last dimension as one.
Value rows(const Value& x) {
  return x.builder().reshape(
      x, {stablehlo::product(Dims(x.dims().begin(), x.dims().end() - 1)), x.dim(-1)});
}

// As one op, not as transpose and addmm: its backward is then one program as well.
Values lower_linear(Call& c) {
  const Value input = c.tensor("input");
  const Value weight = c.tensor("weight");
  check_factors(c, "input", "weight");
  const int64_t last = weight.rank() - 1;
  Value result = c.b.reshape(dot(c, rows(input), weight, {{}, {}, {1}, {last}}), c.out().dims);
  if (const Value bias = c.optional_tensor("bias")) {
    result = result + c.b.broadcast_to(cast(bias, result.dtype()), result.dims());
  }
  return {result};
}

// Undefined for what the mask leaves out. A weight vector [K] counts as [1, K]. There is no Meta
// kernel, so Call::out knows no dtypes.
Values lower_linear_backward(Call& c) {
  const Value input = c.tensor("self");
  const Value weight = c.tensor("weight");
  const std::vector<bool> mask = c.flags("output_mask");
  const int64_t features = weight.rank() == 2 ? weight.dim(0) : 1;
  const Value x = rows(input);
  const Value grad = c.b.reshape(c.tensor("grad_output"), {x.dim(0), features});
  const DType t = weight.dtype();
  Values grads(3);
  if (mask[0]) {
    const Value w = c.b.reshape(weight, {features, weight.dim(-1)});
    grads[0] = cast(c.b.reshape(dot_for(t, grad, conj(w), kMatrices), input.dims()), t);
  }
  if (mask[1]) {
    const Value dw = dot_for(t, grad, conj(x), {{}, {}, {0}, {0}});
    grads[1] = cast(c.b.reshape(dw, weight.dims()), t);
  }
  if (mask[2]) {
    const Value sum = reduce_sum(grad, {0});
    grads[2] = weight.rank() == 2 ? sum : c.b.reshape(sum, {});
  }
  return grads;
}

// --- _trilinear --------------------------------------------------------------------------------

// A factor whose dimensions are labelled by their positions in the full product.
struct Labelled {
  Value value;
  Dims labels;
};

bool contains(const Dims& dims, int64_t d) {
  return std::find(dims.begin(), dims.end(), d) != dims.end();
}

// The factor without the dimensions that `expand` inserts.
Labelled labelled(const Value& x, const Dims& expand, int64_t rank) {
  return {x, without(range(rank), expand)};
}

// Sums a * b over the shared labels in `sum` that nobody else needs.
Labelled contract(const Labelled& a, const Labelled& b, const Dims& sum, const Dims& needed) {
  DotDims dims;
  Labelled out;
  for (size_t i = 0; i < a.labels.size(); ++i) {
    const auto at = std::find(b.labels.begin(), b.labels.end(), a.labels[i]);
    if (at == b.labels.end()) continue;
    const bool gone = contains(sum, a.labels[i]) && !contains(needed, a.labels[i]);
    (gone ? dims.lhs_contracting : dims.lhs_batch).push_back(static_cast<int64_t>(i));
    (gone ? dims.rhs_contracting : dims.rhs_batch).push_back(at - b.labels.begin());
    if (!gone) out.labels.push_back(a.labels[i]);
  }
  for (int64_t label : a.labels) {
    if (!contains(b.labels, label)) out.labels.push_back(label);
  }
  for (int64_t label : b.labels) {
    if (!contains(a.labels, label)) out.labels.push_back(label);
  }
  out.value = dot(a.value, b.value, dims, opmath(a.value.dtype()));
  return out;
}

Values lower_trilinear(Call& c) {
  const DType t = opmath(c.dtype("i1"));
  const Value i1 = c.tensor("i1");
  const int64_t rank = i1.rank() + static_cast<int64_t>(c.ints("expand1").size());
  const Labelled f1 = labelled(cast(i1, t), wrap_dims(c.ints("expand1"), rank, false), rank);
  const Labelled f2 =
      labelled(cast(c.tensor("i2"), t), wrap_dims(c.ints("expand2"), rank, false), rank);
  const Labelled f3 =
      labelled(cast(c.tensor("i3"), t), wrap_dims(c.ints("expand3"), rank, false), rank);
  const Dims sum = wrap_dims(c.ints("sumdim"), rank, false);
  const Labelled all = contract(contract(f1, f2, sum, f3.labels), f3, sum, {});
  // What only one factor had is summed, what none had becomes 1, and the rest is put in order.
  Dims summed, kept_labels;
  for (size_t i = 0; i < all.labels.size(); ++i) {
    if (contains(sum, all.labels[i])) {
      summed.push_back(static_cast<int64_t>(i));
    } else {
      kept_labels.push_back(all.labels[i]);
    }
  }
  Value result = reduce_sum(all.value, summed);
  Dims order = range(static_cast<int64_t>(kept_labels.size()));
  std::sort(order.begin(), order.end(),
            [&](int64_t a, int64_t b) { return kept_labels[a] < kept_labels[b]; });
  result = c.b.transpose(result, order);
  Dims dims;
  int64_t next = 0;
  for (int64_t d = 0; d < rank; ++d) {
    if (contains(sum, d)) continue;
    dims.push_back(contains(kept_labels, d) ? result.dim(next++) : 1);
  }
  return {cast(c.b.reshape(result, dims), i1.dtype())};
}

}  // namespace

void add_matmul(Entries& t) {
  t.push_back({.name = "mm", .lower = lower_mm});
  t.push_back({.name = "mm.dtype", .lower = lower_mm});
  t.push_back({.name = "bmm", .lower = lower_bmm});
  t.push_back({.name = "bmm.dtype", .lower = lower_bmm});
  t.push_back({.name = "addmm", .lower = lower_addmm, .special = {0.0}});
  t.push_back({.name = "addmm.dtype", .lower = lower_addmm_dtype, .special = {0.0}});
  t.push_back({.name = "_addmm_activation", .lower = lower_addmm_activation, .special = {0.0}});
  t.push_back({.name = "baddbmm", .lower = lower_baddbmm, .special = {0.0}});
  // Its Meta kernel takes the dtype for beta.
  t.push_back(
      {.name = "baddbmm.dtype", .lower = lower_baddbmm_dtype, .special = {0.0}, .no_meta = true});
  t.push_back({.name = "addbmm", .lower = lower_addbmm, .special = {0.0}});
  t.push_back({.name = "mv", .lower = lower_mv});
  t.push_back({.name = "addmv", .lower = lower_addmv, .special = {0.0}});
  t.push_back({.name = "dot", .lower = lower_dot});
  t.push_back({.name = "vdot", .lower = lower_vdot});
  t.push_back({.name = "addr", .lower = lower_addr, .special = {0.0}});
  t.push_back({.name = "linear", .lower = lower_linear});
  // Its Meta kernel takes every weight for a matrix.
  t.push_back({.name = "linear_backward", .lower = lower_linear_backward, .no_meta = true});
  t.push_back({.name = "_trilinear", .lower = lower_trilinear, .no_meta = true});
  add_pdist(t);
  add_low_bit(t);
}

}  // namespace torch_tpu::ops
