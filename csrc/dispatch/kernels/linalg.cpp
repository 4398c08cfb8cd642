// Linear algebra that is best said in terms of other ops: least squares, whose result sizes may
// depend on the data. And the Meta kernel that geqrf lacks.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linalg_lstsq.h>
#include <ATen/ops/linalg_qr.h>
#include <ATen/ops/linalg_solve_triangular.h>
#include <ATen/ops/linalg_svd.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>
#include <torch/library.h>

namespace torch_tpu::dispatch {
namespace {

using at::Tensor;
using LeastSquares = std::tuple<Tensor, Tensor, Tensor, Tensor>;

bool is_driver(std::string_view name) {
  return name == "gels" || name == "gelsy" || name == "gelsd" || name == "gelss";
}

// The right-hand side holds vectors when it looks like the matrices without their last dim.
bool is_vectors(const Tensor& a, const Tensor& b) {
  return b.dim() == 1 || (b.dim() == a.dim() - 1 && b.sizes() == a.sizes().slice(0, a.dim() - 1));
}

bool well_formed(const Tensor& a, const Tensor& b, std::string_view driver) {
  if (a.dim() < 2 || b.dim() < 1 || b.dim() > a.dim() || b.dim() < a.dim() - 1) return false;
  const bool same = a.scalar_type() == b.scalar_type() && a.device() == b.device();
  const int64_t rows = is_vectors(a, b) ? b.size(-1) : b.size(-2);
  return same && rows == a.size(-2) && is_driver(driver) && a.numel() > 0 && b.numel() > 0;
}

// For full rank: |A X - B| or |X| is least, by the QR factorization of A or of A^H.
Tensor solve_by_qr(const Tensor& a, const Tensor& b) {
  if (a.size(-2) >= a.size(-1)) {
    const auto [q, r] = at::linalg_qr(a);
    return at::linalg_solve_triangular(r, at::matmul(q.mH(), b), /*upper=*/true);
  }
  const auto [q, r] = at::linalg_qr(a.mH());
  return at::matmul(q, at::linalg_solve_triangular(r.mH(), b, /*upper=*/false));
}

LeastSquares least_squares(const Tensor& a, const Tensor& b, std::optional<double> rcond,
                           std::optional<std::string_view> driver_name) {
  TORCH_CHECK(a.device() == b.device(),
              "torch.linalg.lstsq: input and other should be on the same device, but input is on ",
              a.device(), " and other is on ", b.device());
  const std::string_view driver = driver_name.value_or("gelsy");
  if (!well_formed(a, b, driver)) {
    // An error in the CPU's words, or nothing to compute.
    const auto out = at::linalg_lstsq(a.cpu(), b.cpu(), rcond, driver_name);
    return {std::get<0>(out).to(a.device()), std::get<1>(out).to(a.device()),
            std::get<2>(out).to(a.device()), std::get<3>(out).to(a.device())};
  }
  const bool vectors = is_vectors(a, b);
  const Tensor rhs = vectors ? b.unsqueeze(-1) : b;
  const int64_t m = a.size(-2), n = a.size(-1);
  const auto real = c10::toRealValueType(a.scalar_type());
  Tensor residuals = at::empty({0}, a.options().dtype(real));
  Tensor rank = at::empty({0}, a.options().dtype(at::kLong));
  Tensor singular_values = at::empty({0}, a.options().dtype(real));
  Tensor x;
  bool with_residuals = m > n && driver != "gelsy";
  if (driver == "gels") {
    x = solve_by_qr(a, rhs);
  } else {
    const auto [u, s, vh] = at::linalg_svd(a, /*full_matrices=*/false);
    const double epsilon = real == at::kDouble ? std::numeric_limits<double>::epsilon()
                                               : std::numeric_limits<float>::epsilon();
    const double ratio = rcond.value_or(epsilon * static_cast<double>(std::max(m, n)));
    const Tensor used = s > s.narrow(-1, 0, 1) * ratio;
    const Tensor inverse = at::where(used, s.reciprocal(), at::zeros_like(s));
    x = at::matmul(vh.mH(), at::matmul(u.mH(), rhs) * inverse.unsqueeze(-1));
    rank = used.sum(-1);
    if (driver != "gelsy") singular_values = s;
    // Of matrices that lack full rank there are none; only here is the device asked.
    with_residuals = with_residuals && rank.eq(n).all().item<bool>();
  }
  if (with_residuals) residuals = (at::matmul(a, x) - rhs).abs().square().sum(-2);
  // LAPACK leaves the solution in the first rows of the right-hand side's memory.
  auto sizes = x.sizes().vec();
  std::swap(sizes[sizes.size() - 2], sizes[sizes.size() - 1]);
  sizes.back() = std::max(m, n);
  Tensor solution = at::empty(sizes, x.options()).mT().narrow(-2, 0, n);
  solution.copy_(x);
  return {vectors ? solution.squeeze(-1) : solution, residuals, rank, singular_values};
}

std::tuple<Tensor&, Tensor&, Tensor&, Tensor&> least_squares_out(
    const Tensor& a, const Tensor& b, std::optional<double> rcond,
    std::optional<std::string_view> driver, Tensor& solution, Tensor& residuals, Tensor& rank,
    Tensor& singular_values) {
  const LeastSquares result = least_squares(a, b, rcond, driver);
  const auto put = [](Tensor& out, const Tensor& value) {
    at::native::resize_output(out, value.sizes());
    out.copy_(value);
  };
  put(solution, std::get<0>(result));
  put(residuals, std::get<1>(result));
  put(rank, std::get<2>(result));
  put(singular_values, std::get<3>(result));
  return {solution, residuals, rank, singular_values};
}

void check_geqrf(const Tensor& self) {
  TORCH_CHECK(self.dim() >= 2, "torch.geqrf: input must have at least 2 dimensions.");
}

at::DimVector tau_sizes(const Tensor& self) {
  at::DimVector sizes(self.sizes().slice(0, self.dim() - 2));
  sizes.push_back(std::min(self.size(-2), self.size(-1)));
  return sizes;
}

std::tuple<Tensor, Tensor> meta_geqrf(const Tensor& self) {
  check_geqrf(self);
  return {at::empty(self.mT().sizes(), self.options()).mT(),
          at::empty(tau_sizes(self), self.options())};
}

std::tuple<Tensor&, Tensor&> meta_geqrf_out(const Tensor& self, Tensor& a, Tensor& tau) {
  check_geqrf(self);
  at::native::resize_output(a, self.sizes());
  at::native::resize_output(tau, tau_sizes(self));
  return {a, tau};
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("linalg_lstsq", TORCH_FN(least_squares));
  m.impl("linalg_lstsq.out", TORCH_FN(least_squares_out));
}

TORCH_LIBRARY_IMPL(aten, Meta, m) {
  m.impl("geqrf", TORCH_FN(meta_geqrf));
  m.impl("geqrf.a", TORCH_FN(meta_geqrf_out));
}

}  // namespace
}  // namespace torch_tpu::dispatch
