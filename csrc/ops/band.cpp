#include "csrc/ops/band.h"

#include <algorithm>
#include <optional>

#include "csrc/ops/helpers.h"
#include "csrc/ops/index.h"

namespace torch_tpu::ops {
namespace {

// Up to this many taps per output are unrolled; more are gathered at once and summed.
constexpr int64_t kMaxUnrolled = 6;

int64_t width(const Band& band) {
  size_t widest = 0;
  for (const Band::Row& row : band.rows) widest = std::max(widest, row.weights.size());
  return static_cast<int64_t>(widest);
}

// The one weight of a band that copies a single input to every output.
std::optional<double> copy_weight(const Band& band) {
  for (const Band::Row& row : band.rows) {
    if (row.weights.size() != 1 || row.weights[0] != band.rows[0].weights[0]) return std::nullopt;
  }
  return band.rows[0].weights[0];
}

template <typename Start>
bool starts_are(const Band& band, Start start) {
  for (int64_t j = 0; j < band.out(); ++j) {
    if (band.rows[j].start != start(j)) return false;
  }
  return true;
}

Value apply_copy(const Band& band, const Value& x, int64_t dim) {
  Builder& b = x.builder();
  const int64_t in = band.in, out = band.out();
  const int64_t times = out / in;
  if (out % in == 0 && starts_are(band, [&](int64_t j) { return j / times; })) {
    return repeat_elements(x, dim, times);
  }
  const int64_t first = band.rows[0].start;
  const int64_t step = out > 1 ? band.rows[1].start - first : 1;
  if (step > 0 && starts_are(band, [&](int64_t j) { return first + j * step; })) {
    return b.slice_dim(x, dim, first, first + (out - 1) * step + 1, step);
  }
  std::vector<int64_t> starts;
  for (const Band::Row& row : band.rows) starts.push_back(row.start);
  return take_rows(x, b.ints(starts, Type(DType::kS32, {out})), dim);
}

// The one weight of a band of equal blocks that cover the input.
std::optional<double> block_weight(const Band& band) {
  const int64_t out = band.out();
  if (band.in % out != 0) return std::nullopt;
  const int64_t size = band.in / out;
  const double weight = band.rows[0].weights.empty() ? 0 : band.rows[0].weights[0];
  for (int64_t j = 0; j < out; ++j) {
    const Band::Row& row = band.rows[j];
    if (row.start != j * size || static_cast<int64_t>(row.weights.size()) != size) {
      return std::nullopt;
    }
    for (double w : row.weights) {
      if (w != weight) return std::nullopt;
    }
  }
  return weight;
}

Value apply_blocks(const Value& x, int64_t dim, int64_t out, double weight) {
  Builder& b = x.builder();
  Dims split = x.dims();
  split.insert(split.begin() + dim + 1, split[dim] / out);
  split[dim] = out;
  const Value sum = reduce_sum(b.reshape(x, split), {dim + 1});
  return weight == 1 ? sum : sum * weight;
}

// `values` [out] or [out, taps] over the dimensions of `dims` that start at `dim`.
Value spread(const Value& values, const Dims& dims, int64_t dim) {
  Dims map;
  for (int64_t i = 0; i < values.rank(); ++i) map.push_back(dim + i);
  return values.builder().broadcast_in_dim(values, dims, map);
}

// Taps first..first+count of all rows; missing ones repeat the row's last input with weight 0.
struct Taps {
  std::vector<int64_t> index;
  std::vector<double> weight;
  std::vector<int64_t> present;
};

Taps taps_of(const Band& band, int64_t first, int64_t count) {
  Taps taps;
  for (const Band::Row& row : band.rows) {
    const int64_t size = static_cast<int64_t>(row.weights.size());
    for (int64_t t = first; t < first + count; ++t) {
      const int64_t last = row.start + std::max<int64_t>(size - 1, 0);
      taps.index.push_back(std::clamp<int64_t>(std::min(row.start + t, last), 0, band.in - 1));
      taps.weight.push_back(t < size ? row.weights[t] : 0);
      taps.present.push_back(t < size);
    }
  }
  return taps;
}

bool all(const std::vector<int64_t>& flags) {
  return std::find(flags.begin(), flags.end(), 0) == flags.end();
}

// The gathered taps times their weights. Missing taps are cut out by selection: 0 * inf is NaN.
Value weighted(const Value& x, const Taps& taps, const Dims& shape, int64_t dim) {
  Builder& b = x.builder();
  Value part = take_rows(x, b.ints(taps.index, Type(DType::kS32, shape)), dim);
  bool ones = true;
  for (size_t i = 0; i < taps.weight.size(); ++i) {
    ones = ones && (taps.weight[i] == 1 || !taps.present[i]);
  }
  if (!ones) {
    const Value weights = b.floats(taps.weight, Type(x.dtype(), shape));
    part = part * spread(weights, part.dims(), dim);
  }
  if (all(taps.present)) return part;
  const Value present = b.ints(taps.present, Type(DType::kBool, shape));
  return b.select(spread(present, part.dims(), dim), part, zeros_like(part));
}

}  // namespace

Band transpose(const Band& band) {
  Band result;
  result.in = band.out();
  result.rows.resize(band.in);
  for (int64_t j = 0; j < band.out(); ++j) {
    const Band::Row& row = band.rows[j];
    for (size_t t = 0; t < row.weights.size(); ++t) {
      Band::Row& column = result.rows[row.start + static_cast<int64_t>(t)];
      if (column.weights.empty()) column.start = j;
      // Rows in between that do not see this input count with weight 0.
      column.weights.resize(j - column.start + 1, 0.0);
      column.weights.back() += row.weights[t];
    }
  }
  return result;
}

void add_weight(Band& band, size_t row, int64_t index, double weight) {
  index = std::clamp<int64_t>(index, 0, band.in - 1);
  Band::Row& r = band.rows[row];
  if (r.weights.empty()) r.start = index;
  if (index < r.start) {
    r.weights.insert(r.weights.begin(), r.start - index, 0.0);
    r.start = index;
  }
  const size_t at = index - r.start;
  if (at >= r.weights.size()) r.weights.resize(at + 1, 0.0);
  r.weights[at] += weight;
}

Value repeat_elements(const Value& x, int64_t dim, int64_t times) {
  if (times == 1) return x;
  Builder& b = x.builder();
  Dims wide = x.dims();
  wide.insert(wide.begin() + dim + 1, times);
  Dims dims = x.dims();
  dims[dim] *= times;
  return b.reshape(b.broadcast_in_dim(x, wide, without(range(x.rank() + 1), {dim + 1})), dims);
}

Value apply(const Band& band, const Value& x, int64_t dim) {
  Builder& b = x.builder();
  const int64_t out = band.out();
  const int64_t taps = width(band);
  if (x.numel() == 0 || out == 0 || taps == 0) {
    Dims dims = x.dims();
    dims[dim] = out;
    return full(b, 0, x.dtype(), dims);
  }
  if (const std::optional<double> weight = copy_weight(band)) {
    const Value copy = apply_copy(band, x, dim);
    return *weight == 1 ? copy : copy * *weight;
  }
  if (const std::optional<double> weight = block_weight(band)) {
    return apply_blocks(x, dim, out, *weight);
  }
  if (taps > kMaxUnrolled) {
    return reduce_sum(weighted(x, taps_of(band, 0, taps), {out, taps}, dim), {dim + 1});
  }
  Value sum;
  for (int64_t t = 0; t < taps; ++t) {
    const Value term = weighted(x, taps_of(band, t, 1), {out}, dim);
    sum = sum ? sum + term : term;
  }
  return sum;
}

Band adaptive_average(int64_t in, int64_t out) {
  Band band;
  band.in = in;
  for (int64_t i = 0; i < out; ++i) {
    const int64_t start = i * in / out;
    const int64_t end = ((i + 1) * in + out - 1) / out;
    band.rows.push_back({start, std::vector<double>(end - start, 1.0 / double(end - start))});
  }
  return band;
}

}  // namespace torch_tpu::ops
