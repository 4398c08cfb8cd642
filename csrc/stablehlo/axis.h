// Dimensions that vary: how many of their elements count is a number that the program gets when it
// runs. Buffers stay static; the Builder masks what does not count wherever elements along such a
// dimension meet (reductions, contractions, windows, sorts), and refuses what it has no rule for.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <utility>
#include <vector>

namespace torch_tpu::stablehlo {

// A sum of runtime numbers, or of products of such, and a constant. Equal sizes are equal objects,
// whatever led to them.
struct Size {
  int64_t constant = 0;
  std::vector<std::pair<int32_t, int64_t>> terms;  // (Builder's number, factor), sorted

  Size() = default;
  explicit Size(int64_t constant) : constant(constant) {}
  bool known() const { return terms.empty(); }
  bool divisible(int64_t by) const;  // whatever the numbers are
  bool operator==(const Size&) const = default;
};

Size operator+(const Size& a, const Size& b);
Size operator+(const Size& a, int64_t b);
Size operator*(const Size& a, int64_t b);
Size operator/(const Size& a, int64_t b);  // where it is divisible

// The elements of a dimension as a box [f0, f1, ...] in row-major order; along each factor the
// first `size` count. One factor: a prefix of the dimension. More come of merged dimensions.
struct Factor {
  int64_t extent = 1;
  bool varies = false;
  Size size;  // where it varies
  bool operator==(const Factor&) const = default;
};
using Axis = std::vector<Factor>;

// What has no rule for dimensions that vary.
class Unproven : public std::invalid_argument {
 public:
  using std::invalid_argument::invalid_argument;
};

}  // namespace torch_tpu::stablehlo
