// The forms that several pieces of a family have in common. What is found is a guess: every piece
// is compared with it before it is served.
#include <algorithm>
#include <cstdlib>
#include <map>

#include "csrc/trace/sizes.h"

namespace torch_tpu::trace {
namespace {

using Values = std::vector<int64_t>;  // of one number, by piece
using Points = std::vector<Point>;

constexpr size_t kCandidates = 4;  // numbers that are tried as the second symbol
// Larger ones are no symbols: their powers would overflow.
constexpr int64_t kLargestAlone = int64_t{1} << 31;
constexpr int64_t kLargestOfTwo = int64_t{1} << 20;

bool are_sizes(const Point& point, size_t symbols) {
  const int64_t most = symbols > 1 ? kLargestOfTwo : kLargestAlone;
  return point[0] > 0 && point[1] > 0 && point[0] <= most && point[1] <= most;
}

bool is_same(const Values& values) {
  return std::all_of(values.begin(), values.end(), [&](int64_t v) { return v == values[0]; });
}

// The values divided by a power; empty where that leaves a rest.
Values divided(const Points& points, const Values& values, size_t term) {
  Values out;
  for (size_t i = 0; i < values.size(); ++i) {
    const int64_t by = power(term, points[i]);
    if (by == 0 || values[i] % by != 0) return {};
    out.push_back(values[i] / by);
  }
  return out;
}

// The form through all values. Two points lie on too many lines: of those only c (s + d) is taken.
std::optional<Form> line(const Values& x, const Form& symbol, const Values& values) {
  size_t other = 1;
  while (other < x.size() && x[other] == x[0]) ++other;
  if (other == x.size()) return {};
  const int64_t dx = x[other] - x[0], dv = values[other] - values[0];
  if (dv == 0 || dv % dx != 0) return {};
  const int64_t slope = dv / dx, start = values[0] - slope * x[0];
  if (x.size() == 2 && start % slope != 0) return {};
  for (size_t i = 0; i < x.size(); ++i) {
    if (start + slope * x[i] != values[i]) return {};
  }
  return Form(start) + *multiply(symbol, slope);
}

Values along(const Points& points, size_t term) {
  Values out;
  for (const Point& point : points) out.push_back(power(term, point));
  return out;
}

// Through three points there always is one, if its factors are whole.
std::optional<Form> parabola(const Points& points, const Values& v) {
  if (v.size() != 3) return {};
  const Values n = along(points, 1);
  const int64_t d0 = n[1] - n[0], d1 = n[2] - n[1], d = n[2] - n[0];
  if (d0 == 0 || d1 == 0 || d == 0 || (v[1] - v[0]) % d0 != 0 || (v[2] - v[1]) % d1 != 0) return {};
  const int64_t s0 = (v[1] - v[0]) / d0, s1 = (v[2] - v[1]) / d1;
  if ((s1 - s0) % d != 0) return {};
  Form out;
  out.terms[3] = (s1 - s0) / d;
  out.terms[1] = s0 - out.terms[3] * (n[0] + n[1]);
  out.terms[0] = v[0] - out.terms[1] * n[0] - out.terms[3] * n[0] * n[0];
  return out;
}

bool in_use(size_t term, size_t symbols) { return symbols > 1 || Form::kPowers[term].m == 0; }

struct Guess {
  Form form;
  bool plain = false;  // a product of symbols: leaves nothing to chance
};

// From what leaves least to chance to what leaves most.
std::optional<Guess> explain(const Points& points, size_t symbols, const Values& values) {
  if (is_same(values)) return Guess{values[0], true};
  for (size_t term = 1; term < Form::kTerms; ++term) {
    if (!in_use(term, symbols)) continue;
    const Values factor = divided(points, values, term);
    if (!factor.empty() && is_same(factor)) return Guess{Form::term(term, factor[0]), true};
  }
  for (size_t term = 0; term < Form::kTerms; ++term) {
    if (!in_use(term, symbols)) continue;
    const Values rest = divided(points, values, term);
    if (rest.empty()) continue;
    for (size_t s = 0; s < symbols; ++s) {
      const auto found = line(along(points, s + 1), Form::symbol(s), rest);
      if (!found) continue;
      if (const auto form = multiply(*found, Form::term(term, 1))) return Guess{*form};
    }
  }
  if (values.size() < 3) return {};
  for (size_t term : {size_t{3}, size_t{4}, size_t{5}}) {  // n^2 + 1
    if (!in_use(term, symbols)) continue;
    if (const auto form = line(along(points, term), Form::term(term, 1), values)) {
      return Guess{*form};
    }
  }
  if (symbols > 1) {  // n + m + c
    Values rest = values;
    for (size_t i = 0; i < rest.size(); ++i) rest[i] -= points[i][0] + points[i][1];
    if (is_same(rest)) return Guess{Form::symbol(0) + Form::symbol(1) + Form(rest[0])};
  }
  return {};
}

// The numbers of the pieces that differ, each once.
using Distinct = std::map<Values, std::optional<Guess>>;

// How many forms are plain; none when not all numbers have one.
std::optional<size_t> explain_all(const Points& points, size_t symbols, Distinct& numbers,
                                  bool any_parabola) {
  size_t plain = 0;
  for (auto& [values, guess] : numbers) {
    guess = explain(points, symbols, values);
    if (!guess && any_parabola) {
      if (const auto form = parabola(points, values)) guess = Guess{*form};
    }
    if (!guess) return {};
    plain += static_cast<size_t>(guess->plain);
  }
  return plain;
}

// They can be the sizes of different pieces.
bool are_distinct(const Points& points, size_t symbols) {
  for (size_t i = 0; i < points.size(); ++i) {
    if (!are_sizes(points[i], symbols)) return false;
    for (size_t j = 0; j < i; ++j) {
      if (points[i] == points[j]) return false;
    }
  }
  return true;
}

int64_t sum(const Values& values) {
  int64_t out = 0;
  for (int64_t value : values) out += value;
  return out;
}

int64_t change(const Values& values) {
  int64_t out = 0;
  for (size_t i = 1; i < values.size(); ++i) out += std::abs(values[i] - values[i - 1]);
  return out;
}

Points points_of(const Values& n, const Values* m) {
  Points out;
  for (size_t i = 0; i < n.size(); ++i) out.push_back({n[i], m == nullptr ? 1 : (*m)[i]});
  return out;
}

// The square of the first symbol and something.
std::optional<Form> find_tie(const Points& points) {
  if (points[0][1] == 1) return {};
  const int64_t more = points[0][1] - points[0][0] * points[0][0];
  for (const Point& point : points) {
    if (point[1] != point[0] * point[0] + more) return {};
  }
  return Form::term(3, 1) + Form(more);
}

// With `n` as the first symbol.
std::optional<Points> fit_with(const Values& n, Distinct& numbers) {
  const Points alone = points_of(n, nullptr);
  if (std::ranges::any_of(alone, [](const Point& each) { return !are_sizes(each, 1); })) return {};
  if (are_distinct(alone, 1) && explain_all(alone, 1, numbers, false)) return alone;
  // The second symbol: the smallest of those that the first does not explain, as others are
  // multiples of it; or one near it, as the smallest may be one less than the true size.
  std::vector<const Values*> candidates;
  for (const auto& [values, guess] : numbers) {
    const auto known = explain(alone, 1, values);
    const bool square_and_more = known && known->form.terms[3] == 1 && known->form.constant() != 0;
    if (sum(values) <= 0 || (known && !square_and_more)) continue;
    candidates.push_back(&values);
  }
  std::stable_sort(candidates.begin(), candidates.end(),
                   [](const Values* a, const Values* b) { return sum(*a) < sum(*b); });
  if (candidates.size() > kCandidates) candidates.resize(kCandidates);
  std::optional<Points> best;
  size_t most = 0;
  for (const Values* m : candidates) {
    const Points both = points_of(n, m);
    const auto plain = are_distinct(both, 2) ? explain_all(both, 2, numbers, false) : std::nullopt;
    if (!plain || (best && *plain <= most)) continue;
    best = both;
    most = *plain;
  }
  if (best) {
    explain_all(*best, 2, numbers, false);
    return best;
  }
  if (are_distinct(alone, 1) && explain_all(alone, 1, numbers, true)) return alone;
  return {};
}

}  // namespace

std::optional<Forms> fit(std::span<const Numbers* const> pieces, std::vector<Point>& points) {
  const size_t count = pieces[0]->size();
  Distinct numbers;
  Values values(pieces.size());
  const auto take = [&](size_t i) {
    for (size_t p = 0; p < pieces.size(); ++p) values[p] = (*pieces[p])[i];
    return !is_same(values);
  };
  // The first symbol is the number that changes least, so that the others are multiples of it. A
  // product of two sizes may change less: then the smallest.
  std::optional<Values> steady, small;
  for (size_t i = 0; i < count; ++i) {
    if (!take(i) || !numbers.try_emplace(values).second) continue;
    if (!steady || change(values) < change(*steady)) steady = values;
    if (sum(values) > 0 && (!small || sum(values) < sum(*small))) small = values;
  }
  if (!steady) return {};
  auto found = fit_with(*steady, numbers);
  if (!found && small && *small != *steady) found = fit_with(*small, numbers);
  if (!found) return {};
  points = *found;
  Forms forms;
  forms.numbers.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    forms.numbers.push_back(take(i) ? numbers.at(values)->form : Form(values[0]));
  }
  forms.tie = find_tie(points);
  return forms;
}

std::optional<Point> solve(const Forms& forms, const Numbers& numbers) {
  Point point;
  point.fill(1);
  for (size_t s = 0; s < kMaxSymbols; ++s) {
    const auto at = std::ranges::find(forms.numbers, Form::symbol(s));
    if (at == forms.numbers.end()) continue;
    point[s] = numbers[static_cast<size_t>(at - forms.numbers.begin())];
  }
  if (!are_sizes(point, count_symbols(forms))) return {};
  if (forms.tie && forms.tie->at(point) != point[1]) return {};
  for (size_t i = 0; i < numbers.size(); ++i) {
    if (forms.numbers[i].at(point) != numbers[i]) return {};
  }
  return point;
}

}  // namespace torch_tpu::trace
