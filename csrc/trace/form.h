// A number of a piece of the trace as a function of the sizes that vary: a polynomial in one or two
// symbols, n and m.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

namespace torch_tpu::trace {

inline constexpr size_t kMaxSymbols = 2;
// What n and m are. With one symbol m is 1, and no form has it.
using Point = std::array<int64_t, kMaxSymbols>;

// Strides are products of sizes, hence the squares and mixed terms.
class Form {
 public:
  struct Powers {
    int n = 0;
    int m = 0;
  };
  static constexpr size_t kTerms = 8;
  static constexpr std::array<Powers, kTerms> kPowers = {
      {{0, 0}, {1, 0}, {0, 1}, {2, 0}, {1, 1}, {0, 2}, {2, 1}, {1, 2}}};

  Form() = default;
  Form(int64_t constant) { terms[0] = constant; }  // NOLINT: numbers are forms
  explicit Form(const std::array<int64_t, kTerms>& factors) : terms(factors) {}
  static Form symbol(size_t which) { return term(which + 1, 1); }
  static Form term(size_t index, int64_t factor);

  int64_t constant() const { return terms[0]; }
  bool varies() const;
  bool has(size_t symbol) const;  // depends on it
  int64_t at(const Point& point) const;
  // The symbol of which this is the sum with a constant.
  std::optional<size_t> sum_with() const;
  bool operator==(const Form&) const = default;

  std::array<int64_t, kTerms> terms{};  // factors of kPowers
};

// All numbers of a piece.
struct Forms {
  std::vector<Form> numbers;
  // What m is where it does not vary on its own: patches and one more token are n^2 + 1, and
  // attention over them has the square of that.
  std::optional<Form> tie;
};

int64_t power(size_t term, const Point& point);

Form operator+(const Form& a, const Form& b);
Form operator-(const Form& a, const Form& b);
// None: there are no such powers, or no such form.
std::optional<Form> multiply(const Form& a, const Form& b);
std::optional<Form> divide(const Form& a, const Form& b);

// No form of this range is larger, or smaller; exact where it has no squares.
int64_t most(const Form& form, const Point& low, const Point& high);
int64_t least(const Form& form, const Point& low, const Point& high);

// It does not become smaller where a symbol grows.
bool grows(const Form& form, const Point& low, const Point& high);

size_t count_symbols(const Forms& forms);

}  // namespace torch_tpu::trace
