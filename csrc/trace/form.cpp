#include "csrc/trace/form.h"

#include <algorithm>

namespace torch_tpu::trace {
namespace {

std::optional<size_t> find_term(int n, int m) {
  for (size_t i = 0; i < Form::kTerms; ++i) {
    if (Form::kPowers[i].n == n && Form::kPowers[i].m == m) return i;
  }
  return {};
}

bool has_squares(const Form& form) {
  for (size_t i = 0; i < Form::kTerms; ++i) {
    if (form.terms[i] != 0 && (Form::kPowers[i].n > 1 || Form::kPowers[i].m > 1)) return true;
  }
  return false;
}

// The last term with a factor: no product of two others is higher.
std::optional<size_t> highest(const Form& form) {
  for (size_t i = Form::kTerms; i-- > 0;) {
    if (form.terms[i] != 0) return i;
  }
  return {};
}

}  // namespace

Form Form::term(size_t index, int64_t factor) {
  Form out;
  out.terms[index] = factor;
  return out;
}

bool Form::varies() const {
  return std::any_of(terms.begin() + 1, terms.end(), [](int64_t factor) { return factor != 0; });
}

bool Form::has(size_t symbol) const {
  for (size_t i = 1; i < kTerms; ++i) {
    if (terms[i] != 0 && (symbol == 0 ? kPowers[i].n : kPowers[i].m) > 0) return true;
  }
  return false;
}

int64_t power(size_t term, const Point& point) {
  int64_t out = 1;
  for (int i = 0; i < Form::kPowers[term].n; ++i) out *= point[0];
  for (int i = 0; i < Form::kPowers[term].m; ++i) out *= point[1];
  return out;
}

int64_t Form::at(const Point& point) const {
  int64_t sum = terms[0];
  for (size_t i = 1; i < kTerms; ++i) {
    if (terms[i] != 0) sum += terms[i] * power(i, point);
  }
  return sum;
}

std::optional<size_t> Form::sum_with() const {
  for (size_t s = 0; s < kMaxSymbols; ++s) {
    if (*this - symbol(s) == Form(constant())) return s;
  }
  return {};
}

Form operator+(const Form& a, const Form& b) {
  Form out = a;
  for (size_t i = 0; i < Form::kTerms; ++i) out.terms[i] += b.terms[i];
  return out;
}

Form operator-(const Form& a, const Form& b) {
  Form out = a;
  for (size_t i = 0; i < Form::kTerms; ++i) out.terms[i] -= b.terms[i];
  return out;
}

std::optional<Form> multiply(const Form& a, const Form& b) {
  Form out;
  for (size_t i = 0; i < Form::kTerms; ++i) {
    if (a.terms[i] == 0) continue;
    for (size_t j = 0; j < Form::kTerms; ++j) {
      if (b.terms[j] == 0) continue;
      const auto at = find_term(Form::kPowers[i].n + Form::kPowers[j].n,
                                Form::kPowers[i].m + Form::kPowers[j].m);
      if (!at) return {};
      out.terms[*at] += a.terms[i] * b.terms[j];
    }
  }
  return out;
}

std::optional<Form> divide(const Form& a, const Form& b) {
  const auto by = highest(b);
  if (!by) return {};
  Form rest = a, out;
  for (auto top = highest(rest); top; top = highest(rest)) {
    const int n = Form::kPowers[*top].n - Form::kPowers[*by].n;
    const int m = Form::kPowers[*top].m - Form::kPowers[*by].m;
    const auto at = n >= 0 && m >= 0 ? find_term(n, m) : std::nullopt;
    if (!at || rest.terms[*top] % b.terms[*by] != 0) return {};
    const Form part = Form::term(*at, rest.terms[*top] / b.terms[*by]);
    const auto product = multiply(part, b);
    if (!product) return {};
    rest = rest - *product;
    if (highest(rest) >= top) return {};
    out = out + part;
  }
  return out;
}

int64_t most(const Form& form, const Point& low, const Point& high) {
  if (has_squares(form)) {  // term by term
    int64_t sum = form.constant();
    for (size_t i = 1; i < Form::kTerms; ++i) {
      sum += form.terms[i] * power(i, form.terms[i] > 0 ? high : low);
    }
    return sum;
  }
  // Linear in each symbol: the most is at a corner.
  return std::max(
      {form.at(low), form.at(high), form.at({low[0], high[1]}), form.at({high[0], low[1]})});
}

int64_t least(const Form& form, const Point& low, const Point& high) {
  return -most(Form() - form, low, high);
}

bool grows(const Form& form, const Point& low, const Point& high) {
  const auto& c = form.terms;  // what one more of a symbol adds
  const Form more_n({c[1] + c[3], 2 * c[3], c[4] + c[6], 0, 2 * c[6], c[7], 0, 0});
  const Form more_m({c[2] + c[5], c[4] + c[7], 2 * c[5], c[6], 2 * c[7], 0, 0, 0});
  return least(more_n, low, high) >= 0 && least(more_m, low, high) >= 0;
}

size_t count_symbols(const Forms& forms) {
  size_t count = 0;
  for (const Form& form : forms.numbers) {
    for (size_t s = count; s < kMaxSymbols; ++s) {
      if (form.has(s)) count = s + 1;
    }
  }
  return count;
}

}  // namespace torch_tpu::trace
