// Dimensions that vary: how sizes are followed, and that what does not count is never seen.
#include "csrc/stablehlo/axis.h"

#include "tests/cpp/stablehlo/run.h"

namespace torch_tpu::stablehlo {
namespace {

const float kNan = std::nanf("");

class Axes : public ::testing::Test {
 protected:
  Builder b;
  Value n = b.parameter(Type(DType::kS32, {}));
  Size size = b.new_size(n);
  Value data = b.parameter(Type(DType::kF32, {8, 4}));
  Value x = b.vary(data, 0, size);
  Value weight = b.parameter(Type(DType::kF32, {4, 5}));
  Value zero = b.scalar(0, DType::kF32);

  // How many elements of a dimension count when n is 3.
  int64_t counted(const Value& v, int64_t dim) {
    if (!v.type().varies(dim)) return -1;
    int64_t count = 1;
    for (const Factor& factor : b.axis(v, dim)) {
      count *= factor.varies ? b.evaluate(factor.size, {3}) : factor.extent;
    }
    return count;
  }
};

TEST_F(Axes, SizesAreSums) {
  EXPECT_EQ(size + 1 + -1, size);
  EXPECT_EQ(size + size, size * 2);
  EXPECT_EQ(size * 2 + size * -2, Size(0));
  EXPECT_EQ(b.evaluate(size * 3 + 4, {5}), 19);
}

TEST_F(Axes, ProductsAreMultipliedOut) {
  const Size other = b.new_size(n + n);
  EXPECT_EQ(b.times(size + 1, other), b.times(other, size) + other);
  EXPECT_EQ(b.times(b.times(size, other), size), b.times(other, b.times(size, size)));
  EXPECT_EQ(b.times(size, Size(0)), Size(0));
  EXPECT_EQ(b.evaluate(b.times(size + 2, other * 3) + 1, {5, 7}), 148);
  const Value rows = b.vary(data, 0, size * 2);  // the first n pairs of rows
  EXPECT_EQ(b.axis(b.reshape(rows, {4, 2, 4}), 0)[0].size, size);
}

TEST_F(Axes, TheTextIsStatic) {
  EXPECT_EQ(x.type().str(), "tensor<<=8x4xf32>");
  const std::string text = b.finish({b.exponential(x)});
  EXPECT_EQ(text.find('?'), std::string::npos) << text;
  EXPECT_NE(text.find("stablehlo.exponential %arg1 : tensor<8x4xf32>"), std::string::npos) << text;
}

TEST_F(Axes, Propagation) {
  EXPECT_EQ(counted(b.exponential(x), 0), 3);
  EXPECT_EQ(counted(x + 1.0, 0), 3);
  EXPECT_EQ(counted(data + x, 0), 3);
  EXPECT_EQ(counted(b.transpose(x, {1, 0}), 1), 3);
  EXPECT_EQ(counted(b.dot_general(x, weight, {{}, {}, {1}, {0}}, DType::kF32), 0), 3);
  EXPECT_TRUE(b.dot_general(x, data, {{}, {}, {0}, {0}}, DType::kF32).type().is_static());
  EXPECT_TRUE(b.reduce(x, zero, {0}, Reduction::kAdd).type().is_static());
  EXPECT_EQ(counted(b.broadcast_to(x, {2, 8, 4}), 1), 3);
  EXPECT_EQ(counted(b.slice_dim(x, 0, 1, 8), 0), 2);
  EXPECT_EQ(counted(b.slice_dim(x, 0, 0, 8, 2), 0), 2);
  EXPECT_EQ(counted(b.slice_dim(x, 0, 0, 2), 0), 2);
  EXPECT_EQ(counted(b.pad(x, zero, {1, 0}, {1, 0}), 0), 5);
  EXPECT_EQ(counted(b.concatenate({x, data, x}, 0), 0), 14);
}

TEST_F(Axes, MergedDimensionsSplitAgain) {
  const Value cube = b.broadcast_to(x, {2, 8, 4});
  const Value rows = b.reshape(cube, {16, 4});
  EXPECT_EQ(counted(rows, 0), 6);
  EXPECT_EQ(b.axis(rows, 0).size(), 2u);
  EXPECT_EQ(b.reshape(rows, {2, 8, 2, 2}).type(), b.reshape(cube, {2, 8, 2, 2}).type());
  EXPECT_EQ(counted(b.reshape(rows, {2, 32}), 1), 12);
  EXPECT_THROW(b.reshape(cube, {2, 4, 8}), Unproven);
}

TEST_F(Axes, Refusals) {
  const Value i = b.scalar(0, DType::kS32);
  EXPECT_THROW(b.reshape(x, {4, 2, 4}), Unproven);
  EXPECT_THROW(b.dynamic_slice(x, {i, i}, {2, 4}), Unproven);
  EXPECT_THROW(b.fft(b.transpose(x, {1, 0}), FftType::kRfft, {8}), Unproven);
  const Value other = b.vary(data, 0, b.new_size(b.add(n, n)));
  EXPECT_THROW(x + other, Unproven);
  EXPECT_THROW(b.custom_call({.target = "f"}, {x}, {data.type()}), Unproven);
}

class AxesRun : public RunTest {
 protected:
  // 8 rows of which the first 3 count; the others are NaN.
  Value rows(Dims dims = {8, 4}, int64_t dim = 0) {
    std::vector<float> values(product(dims), kNan);
    int64_t inner = 1;
    for (size_t d = static_cast<size_t>(dim) + 1; d < dims.size(); ++d) inner *= dims[d];
    float next = 0;
    for (size_t i = 0; i < values.size(); ++i) {
      if (static_cast<int64_t>(i) / inner % dims[dim] < 3) values[i] = next++;
    }
    if (!size.terms.size()) size = b.new_size(input(s32({}, {3})));
    return b.vary(input(f32(dims, values)), dim, size);
  }
  Value zero() { return b.scalar(0, DType::kF32); }
  // What counts of a result, as one dimension.
  std::vector<float> first(const Value& x, size_t count) {
    std::vector<float> all = run({x})[0].as<float>();
    all.resize(count);
    return all;
  }
  Size size;
};

TEST_F(AxesRun, RelayoutKeepsTheOrder) {
  const Value x = rows({2, 8, 2}, 1);
  const Value merged = b.reshape(x, {16, 2});
  const Value packed = b.pack(merged, 0);
  EXPECT_EQ(b.axis(packed, 0).size(), 1u);
  const Value again = b.reshape(b.relayout(packed, 0, b.axis(merged, 0)), {2, 8, 2});
  std::vector<float> counted(12);
  for (size_t i = 0; i < counted.size(); ++i) counted[i] = static_cast<float>(i);
  EXPECT_EQ(first(packed, 12), counted);
  EXPECT_EQ(first(b.pack(b.reshape(again + 0.0, {16, 2}), 0), 12), counted);
  EXPECT_THROW(b.relayout(packed, 0, {{16, true, size}}), Unproven);
}

TEST_F(AxesRun, Reductions) {
  const Value x = rows();
  const std::vector<Array> got =
      run({b.reduce(x + 1.0, zero(), {0}, Reduction::kAdd),
           b.reduce(x, b.lowest(DType::kF32), {0, 1}, Reduction::kMax),
           b.reduce(b.like(x, 1), zero(), {0, 1}, Reduction::kAdd), b.count(x, 0)});
  expect_near(got[0].as<float>(), {15, 18, 21, 24});
  expect_near(got[1].as<float>(), {11});
  expect_near(got[2].as<float>(), {12});
  EXPECT_EQ(got[3].as<int32_t>()[0], 3);
}

TEST_F(AxesRun, MergedDimensions) {
  const Value x = b.reshape(rows({2, 8, 2}, 1), {16, 2});
  const Value back = b.reshape(x * 2.0, {2, 8, 2});
  const std::vector<Array> got = run({b.reduce(x, zero(), {0}, Reduction::kAdd),
                                      b.reduce(back, zero(), {1}, Reduction::kAdd), b.count(x, 0)});
  expect_near(got[0].as<float>(), {30, 36});
  expect_near(got[1].as<float>(), {12, 18, 48, 54});
  EXPECT_EQ(got[2].as<int32_t>()[0], 6);
}

TEST_F(AxesRun, Contractions) {
  const Value x = rows();
  expect_near(run_f32(b.dot_general(x, x, {{}, {}, {0}, {0}}, DType::kF32)),
              {80, 92, 104, 116, 92, 107, 122, 137, 104, 122, 140, 158, 116, 137, 158, 179});
}

TEST_F(AxesRun, WhatMovesElements) {
  const Value x = rows({8}, 0);
  const Value ones = input(f32({2}, {7, 8}));
  expect_near(first(b.concatenate({x, ones, x}, 0), 8), {0, 1, 2, 7, 8, 0, 1, 2});
  expect_near(first(b.reverse(x, {0}), 3), {2, 1, 0});
  expect_near(first(b.pad(x, b.scalar(9, DType::kF32), {1}, {2}), 6), {9, 0, 1, 2, 9, 9});
  const Value i = b.scalar(2, DType::kS32);
  const Value zeros = b.splat(0, Type(DType::kF32, {12}));
  expect_near(run_f32(b.dynamic_update_slice(zeros, x, {i})), {0, 0, 0, 1, 2, 0, 0, 0, 0, 0, 0, 0});
}

TEST_F(AxesRun, SortsAndWindows) {
  const Value x = -rows({8}, 0);
  const auto less = [&](const Values& v) -> Values { return {b.lt(v[0], v[1])}; };
  expect_near(first(b.sort({x}, 0, true, less)[0], 3), {-2, -1, 0});
  expect_near(run_f32(b.top_k(x, 2)[0]), {0, -1});
  Window w;
  w.sizes = {8};
  w.padding_low = {7};
  w.padding_high = {0};
  expect_near(first(b.reduce_window(x, zero(), w, Reduction::kAdd), 3), {0, -1, -3});
  Window back = w;
  std::swap(back.padding_low, back.padding_high);
  expect_near(first(b.reduce_window(x, zero(), back, Reduction::kAdd), 3), {-3, -3, -2});
}

TEST_F(AxesRun, GathersAndScatters) {
  rows();
  const Value ids = b.vary(input(s32({4, 1}, {4, 1, 0, 99})), 0, size);
  GatherDims dims;
  dims.offset_dims = {1};
  dims.collapsed_slice_dims = {0};
  dims.start_index_map = {0};
  dims.index_vector_dim = 1;
  const Value taken = b.gather(input(f32_range({5, 2})), ids, dims, {1, 2});
  ScatterDims back;
  back.update_window_dims = {1};
  back.inserted_window_dims = {0};
  back.scatter_dims_to_operand_dims = {0};
  back.index_vector_dim = 1;
  const Value spots = b.vary(input(s32({4, 1}, {1, 1, 0, 0})), 0, size);
  const Value sums = b.scatter(b.splat(0, Type(DType::kF32, {2, 2})), spots, taken, back,
                               [&](const Values& v) -> Values { return {v[0] + v[1]}; });
  const std::vector<Array> got = run({b.reduce(taken, zero(), {0}, Reduction::kAdd), sums});
  expect_near(got[0].as<float>(), {10, 13});
  expect_near(got[1].as<float>(), {0, 1, 10, 12});
}

TEST_F(AxesRun, Convolutions) {
  const Value x = rows({1, 1, 8}, 2);
  const ConvDims dims{0, 1, {2}, 0, 1, {2}, 0, 1, {2}};
  Window w;
  w.padding_low = w.padding_high = {1};
  const Value out =
      b.convolution(x, input(f32({1, 1, 3}, {1, 10, 100})), w, dims, 1, 1, DType::kF32);
  expect_near(first(out, 3), {100, 210, 21});
}

TEST_F(AxesRun, LoopsKeepWhatCounts) {
  const Value x = rows({8}, 0);
  const Type scalar(DType::kS32, {});
  const Values out = b.while_loop(
      {b.splat_int(0, scalar), x},
      [&](const Values& v) -> Values { return {b.lt(v[0], b.splat_int(2, scalar))}; },
      [&](const Values& v) -> Values {
        return {b.add(v[0], b.splat_int(1, scalar)),
                v[1] + b.broadcast_to(b.reduce(v[1], zero(), {0}, Reduction::kAdd), {8})};
      });
  expect_near(first(out[1], 3), {15, 16, 17});
}

}  // namespace
}  // namespace torch_tpu::stablehlo
