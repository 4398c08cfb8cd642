// Numbers as functions of the sizes that vary: arithmetic, and what is guessed from two pieces or
// three.
#include "csrc/trace/form.h"

#include <gtest/gtest.h>

#include "csrc/trace/sizes.h"

namespace torch_tpu::trace {
namespace {

const Form n = Form::symbol(0);
const Form m = Form::symbol(1);

Form times(const Form& a, const Form& b) { return multiply(a, b).value(); }

TEST(Form, Arithmetic) {
  const Form form = times(n + 1, m) + times(n, n) - 3;
  EXPECT_EQ(form.at({5, 7}), 6 * 7 + 25 - 3);
  EXPECT_EQ(divide(times(n + 2, m), n + 2), m);
  EXPECT_EQ(divide(times(n, 12), 4), times(n, 3));
  EXPECT_EQ(divide(times(n, 12), times(m, 4)), std::nullopt);
  EXPECT_EQ(divide(n + 1, n), std::nullopt);
  EXPECT_EQ(multiply(times(n, n), times(m, m)), std::nullopt);
  EXPECT_EQ((n + 4).sum_with(), 0u);
  EXPECT_EQ((m - 4).sum_with(), 1u);
  EXPECT_EQ(times(m, 2).sum_with(), std::nullopt);
}

TEST(Form, TheMostAndTheLeast) {
  const Point low{2, 3}, high{10, 20};
  for (const Form& form : {n - m, times(n, m) - n, times(n, n) - m + 4, times(n - 1, m) - n}) {
    for (int64_t a = low[0]; a <= high[0]; ++a) {
      for (int64_t b = low[1]; b <= high[1]; ++b) {
        EXPECT_LE(form.at({a, b}), most(form, low, high));
        EXPECT_GE(form.at({a, b}), least(form, low, high));
      }
    }
  }
  EXPECT_TRUE(grows(times(n - 1, m), low, high));
  EXPECT_FALSE(grows(times(n, m) - times(m, 3), low, high));
  EXPECT_TRUE(grows(times(n, n) - n, low, high));
  EXPECT_FALSE(grows(n - m, low, high));
}

// Whether the forms are found from the numbers they give at these points.
void expect_found(const std::vector<Form>& forms, const std::vector<Point>& points,
                  bool tied = false) {
  std::vector<Numbers> all;
  std::vector<const Numbers*> pieces;
  for (const Point& point : points) {
    Numbers& numbers = all.emplace_back();
    for (const Form& form : forms) numbers.push_back(form.at(point));
  }
  for (const Numbers& numbers : all) pieces.push_back(&numbers);
  std::vector<Point> found;
  const auto guess = fit(pieces, found);
  ASSERT_TRUE(guess);
  EXPECT_EQ(found, points);
  EXPECT_EQ(guess->numbers, forms);
  EXPECT_EQ(guess->tie.has_value(), tied);
  for (size_t i = 0; i < points.size(); ++i) EXPECT_EQ(solve(*guess, all[i]), points[i]);
}

TEST(Fit, OneSize) {
  const std::vector<Form> forms = {3, n, n + 1, times(n, 64), times(n, n), times(n, n + 1)};
  expect_found(forms, {{17, 1}, {20, 1}});
  expect_found(forms, {{17, 1}, {20, 1}, {31, 1}});
}

TEST(Fit, TwoSizes) {
  const std::vector<Form> forms = {n,     m,           64,   times(n, m), times(times(n, m), 8),
                                   m + 1, times(m, m), n + 2};
  expect_found(forms, {{4, 40}, {9, 61}});
  expect_found(forms, {{4, 40}, {9, 61}, {5, 101}});
  expect_found(forms, {{4, 40}, {4, 61}, {5, 101}});  // one of them only, at first
  expect_found({n, m, times(n, m + 1), times(n, times(m, m))}, {{3, 30}, {8, 47}, {5, 36}});
}

TEST(Fit, ASizeThatIsOneLess) {  // labels without the first: the true size is the symbol
  const std::vector<Form> forms = {n,           m - 1,      m, times(n, m), times(n, m - 1),
                                   times(m, m), times(m, 4)};
  expect_found(forms, {{3, 30}, {8, 47}, {5, 36}});
}

TEST(Fit, ASquareAndOneMore) {
  const std::vector<Form> forms = {n, times(n, 4), times(n, n), m, times(m, m), times(m, 8)};
  expect_found(forms, {{5, 26}, {7, 50}}, true);
  expect_found(forms, {{5, 26}, {7, 50}, {11, 122}}, true);
  const Forms tied = {forms, times(n, n) + 1};
  EXPECT_EQ(solve(tied, {3, 12, 9, 10, 100, 80}), (Point{3, 10}));
  EXPECT_EQ(solve(tied, {3, 12, 9, 11, 121, 88}), std::nullopt);
}

TEST(Fit, APieceOfOtherNumbersIsNotServed) {
  const Forms forms = {{n, m, times(n, m)}, {}};
  EXPECT_EQ(solve(forms, {3, 5, 15}), (Point{3, 5}));
  EXPECT_EQ(solve(forms, {3, 5, 16}), std::nullopt);
  EXPECT_EQ(solve(forms, {3, 0, 0}), std::nullopt);
}

}  // namespace
}  // namespace torch_tpu::trace
