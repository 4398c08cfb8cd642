// Special functions over values, after the same published approximations (Cephes, SciPy) that
// PyTorch's CPU kernels use. Operands are f32 or f64 and have one shape.
#pragma once

#include "csrc/ops/elementwise.h"

namespace torch_tpu::ops::math {

// Horner's rule, highest power first. The coefficients are rounded to the dtype of x.
Value polynomial(const Value& x, const std::vector<double>& coefficients);
// Clenshaw's rule for a Chebyshev series over [-2, 2], highest order first, as in Cephes' chbevl.
Value chebyshev(const Value& x, const std::vector<double>& coefficients);

// --- special.cpp: error function, gamma function and their kin --------------------------------
Value erf(const Value& x);
Value erfc(const Value& x);
Value erfinv(const Value& x);
Value erfcx(const Value& x);
Value ndtri(const Value& x);
Value log_ndtr(const Value& x);
Value entr(const Value& x);
Value lgamma(const Value& x);
Value digamma(const Value& x);
Value polygamma(int64_t n, const Value& x);
Value zeta(const Value& x, const Value& q);
Value xlog1py(const Value& a, const Value& b);

// --- special_gamma.cpp: regularized incomplete gamma functions --------------------------------
Value igamma(const Value& a, const Value& x);
Value igammac(const Value& a, const Value& x);

// --- special_bessel.cpp -----------------------------------------------------------------------
Value i0(const Value& x);
Value i0e(const Value& x);
Value i1(const Value& x);
Value i1e(const Value& x);
Value bessel_j0(const Value& x);
Value bessel_j1(const Value& x);
Value bessel_y0(const Value& x);
Value bessel_y1(const Value& x);
Value modified_bessel_k0(const Value& x);
Value modified_bessel_k1(const Value& x);
Value scaled_modified_bessel_k0(const Value& x);
Value scaled_modified_bessel_k1(const Value& x);
Value spherical_bessel_j0(const Value& x);
Value airy_ai(const Value& x);

// --- special_polynomial.cpp: orthogonal polynomials of degree n (truncated; negative: 0) -------
Value chebyshev_polynomial_t(const Value& x, const Value& n);
Value chebyshev_polynomial_u(const Value& x, const Value& n);
Value chebyshev_polynomial_v(const Value& x, const Value& n);
Value chebyshev_polynomial_w(const Value& x, const Value& n);
Value shifted_chebyshev_polynomial_t(const Value& x, const Value& n);
Value shifted_chebyshev_polynomial_u(const Value& x, const Value& n);
Value shifted_chebyshev_polynomial_v(const Value& x, const Value& n);
Value shifted_chebyshev_polynomial_w(const Value& x, const Value& n);
Value hermite_polynomial_h(const Value& x, const Value& n);
Value hermite_polynomial_he(const Value& x, const Value& n);
Value laguerre_polynomial_l(const Value& x, const Value& n);
Value legendre_polynomial_p(const Value& x, const Value& n);

}  // namespace torch_tpu::ops::math
