// Gather, scatter, sort and top_k.
#include "tests/cpp/stablehlo/run.h"

namespace torch_tpu::stablehlo {
namespace {

// Rows of a table, by indices with a trailing dimension of 1.
GatherDims rows() {
  GatherDims dims;
  dims.offset_dims = {1};
  dims.collapsed_slice_dims = {0};
  dims.start_index_map = {0};
  dims.index_vector_dim = 1;
  return dims;
}

ScatterDims into_rows() {
  ScatterDims dims;
  dims.update_window_dims = {1};
  dims.inserted_window_dims = {0};
  dims.scatter_dims_to_operand_dims = {0};
  dims.index_vector_dim = 1;
  return dims;
}

Region adder(Builder& b) {
  return [&b](const Values& v) -> Values { return {b.add(v[0], v[1])}; };
}

TEST(GatherText, Forms) {
  Builder b;
  Value x = b.parameter(Type(DType::kF32, {4, 3}));
  Value i = b.parameter(Type(DType::kS32, {2, 1}));
  Value g = b.gather(x, i, rows(), {1, 3});
  Value s = b.scatter(x, i, g, into_rows(), adder(b), false, true);
  Values sorted =
      b.sort({x}, 1, true, [&](const Values& v) -> Values { return {b.lt(v[0], v[1])}; });
  Values top = b.top_k(x, 2);
  EXPECT_EQ(
      body(b, {g, s, sorted[0], top[0], top[1]}),
      R"(    %0 = "stablehlo.gather"(%arg0, %arg1) <{dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, indices_are_sorted = false, slice_sizes = array<i64: 1, 3>}> : (tensor<4x3xf32>, tensor<2x1xi32>) -> tensor<2x3xf32>
    %1 = "stablehlo.scatter"(%arg0, %arg1, %0) <{indices_are_sorted = false, scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>, unique_indices = true}> ({
    ^bb0(%2: tensor<f32>, %3: tensor<f32>):
      %4 = stablehlo.add %2, %3 : tensor<f32>
      stablehlo.return %4 : tensor<f32>
    }) : (tensor<4x3xf32>, tensor<2x1xi32>, tensor<2x3xf32>) -> tensor<4x3xf32>
    %5 = "stablehlo.sort"(%arg0) <{dimension = 1 : i64, is_stable = true}> ({
    ^bb0(%6: tensor<f32>, %7: tensor<f32>):
      %8 = stablehlo.compare LT, %6, %7, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
      stablehlo.return %8 : tensor<i1>
    }) : (tensor<4x3xf32>) -> tensor<4x3xf32>
    %9:2 = "chlo.top_k"(%arg0) <{k = 2 : i64}> : (tensor<4x3xf32>) -> (tensor<4x2xf32>, tensor<4x2xi32>)
)");
}

TEST(GatherTypes, BatchAndOffsetDimensions) {
  Builder b;
  Value x = b.parameter(Type(DType::kF32, {4, 3, 5}));
  Value i = b.parameter(Type(DType::kS64, {2, 7, 6}));
  GatherDims dims;
  dims.offset_dims = {0, 2};
  dims.collapsed_slice_dims = {1};
  dims.start_index_map = {1, 0};
  dims.index_vector_dim = 0;
  EXPECT_EQ(b.gather(x, i, dims, {2, 1, 5}).type(), Type(DType::kF32, {2, 7, 5, 6}));
}

TEST(GatherErrors, NameTheTypes) {
  Builder b;
  Value x = b.parameter(Type(DType::kF32, {4, 3}));
  Value i = b.parameter(Type(DType::kS32, {2, 1}));
  EXPECT_INVALID(b.gather(x, x, rows(), {1, 3}),
                 "[gather] expected integer indices, got tensor<4x3xf32>");
  EXPECT_INVALID(b.gather(x, i, rows(), {1}),
                 "[gather] expected 2 slice sizes for tensor<4x3xf32>, got 1");
  EXPECT_INVALID(b.gather(x, i, rows(), {2, 3}),
                 "[gather] expected slices within tensor<4x3xf32>, 1 where collapsed, got [2, 3]");
  GatherDims wrong = rows();
  wrong.start_index_map = {0, 1};
  EXPECT_INVALID(b.gather(x, i, wrong, {1, 3}),
                 "[gather] expected 1 mapped dimensions, the length of the index vectors, got 2");
  Value updates = b.parameter(Type(DType::kF32, {3, 3}));
  EXPECT_INVALID(
      b.scatter(x, i, updates, into_rows(), adder(b)),
      "[scatter] expected updates batched like the indices tensor<2x1xi32>, got tensor<3x3xf32>");
  EXPECT_INVALID(b.scatter(x, i, b.convert(updates, DType::kF64), into_rows(), adder(b)),
                 "[scatter] expected updates like tensor<4x3xf32>, got tensor<3x3xf64>");
  EXPECT_INVALID(b.sort({x}, 0, true, [](const Values& v) -> Values { return {v[0]}; }),
                 "[sort] expected a comparator that returns tensor<i1>, got (tensor<f32>)");
  EXPECT_INVALID(b.sort({x, i}, 0, true, adder(b)),
                 "[sort] expected equal shapes, got (tensor<4x3xf32>, tensor<2x1xi32>)");
  EXPECT_INVALID(b.top_k(x, 4), "[top_k] expected k up to 3, got 4");
}

using GatherRun = RunTest;

TEST_F(GatherRun, GatherAndScatter) {
  Value x = input(f32_range({3, 2}));
  Value i = input(s32({2, 1}, {2, 0}));
  Value updates = input(f32({2, 2}, {10, 20, 30, 40}));
  std::vector<Array> got =
      run({b.gather(x, i, rows(), {1, 2}), b.scatter(x, i, updates, into_rows(), adder(b)),
           b.scatter(
               x, i, updates, into_rows(), [](const Values& v) -> Values { return {v[1]}; }, false,
               true)});
  expect_near(got[0].as<float>(), {4, 5, 0, 1});
  expect_near(got[1].as<float>(), {30, 41, 2, 3, 14, 25});
  expect_near(got[2].as<float>(), {30, 40, 2, 3, 10, 20});
}

TEST_F(GatherRun, BatchingDimensions) {
  // out[n, j] = x[n, i[n, j]] and back.
  Value x = input(f32_range({2, 3}));
  Value i = input(s32({2, 2, 1}, {2, 0, 1, 1}));
  GatherDims g;
  g.collapsed_slice_dims = {1};
  g.operand_batching_dims = {0};
  g.start_indices_batching_dims = {0};
  g.start_index_map = {1};
  g.index_vector_dim = 2;
  ScatterDims s;
  s.inserted_window_dims = {1};
  s.input_batching_dims = {0};
  s.scatter_indices_batching_dims = {0};
  s.scatter_dims_to_operand_dims = {1};
  s.index_vector_dim = 2;
  Value picked = b.gather(x, i, g, {1, 1});
  std::vector<Array> got = run({picked, b.scatter(b.like(x, 0), i, picked, s, adder(b))});
  expect_near(got[0].as<float>(), {2, 0, 4, 4});
  expect_near(got[1].as<float>(), {0, 0, 2, 0, 8, 0});
}

TEST_F(GatherRun, ScalarIndices) {
  Value x = input(f32_range({3, 2}));
  Value i = input(s32({2}, {2, 1}));
  GatherDims dims;
  dims.collapsed_slice_dims = {0, 1};
  dims.start_index_map = {0, 1};
  Value whole = b.gather(x, i, dims, {1, 1});
  GatherDims flat;  // the index vector dimension past the end: scalar indices
  flat.offset_dims = {1};
  flat.collapsed_slice_dims = {0};
  flat.start_index_map = {0};
  flat.index_vector_dim = 1;
  std::vector<Array> got = run({whole, b.gather(x, i, flat, {1, 2})});
  EXPECT_TRUE(got[0].type.dims.empty());
  expect_near(got[0].as<float>(), {5});
  expect_near(got[1].as<float>(), {4, 5, 2, 3});
}

TEST_F(GatherRun, SortAndTopK) {
  Value x = input(f32({2, 4}, {3, 1, 2, 1, 5, 8, 7, 8}));
  Value index = b.iota(Type(DType::kS32, {2, 4}), 1);
  Values sorted =
      b.sort({x, index}, 1, true, [&](const Values& v) -> Values { return {b.lt(v[0], v[1])}; });
  Values top = b.top_k(x, 2);
  Values top_int = b.top_k(b.convert(x, DType::kS64), 1);
  std::vector<Array> got = run({sorted[0], sorted[1], top[0], top[1], top_int[0], top_int[1]});
  using V = std::vector<int32_t>;
  expect_near(got[0].as<float>(), {1, 1, 2, 3, 5, 7, 8, 8});
  EXPECT_EQ(got[1].as<int32_t>(), (V{1, 3, 2, 0, 0, 2, 1, 3}));
  expect_near(got[2].as<float>(), {3, 2, 8, 8});
  EXPECT_EQ(got[3].as<int32_t>(), (V{0, 2, 1, 3}));
  EXPECT_EQ(got[4].as<int64_t>(), (std::vector<int64_t>{3, 8}));
  EXPECT_EQ(got[5].as<int32_t>(), (V{0, 1}));
}

}  // namespace
}  // namespace torch_tpu::stablehlo
