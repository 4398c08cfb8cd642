// Bounded dynamic dimensions: how types propagate, and that XLA masks what lies beyond the size.
#include "tests/cpp/stablehlo/run.h"

namespace torch_tpu::stablehlo {
namespace {

class DynamicTypes : public ::testing::Test {
 protected:
  Builder b;
  Value n = b.parameter(Type(DType::kS32, {}));
  Value data = b.parameter(Type(DType::kF32, {8, 4}));
  Value x = b.set_dimension_size(data, n, 0);
  Value weight = b.parameter(Type(DType::kF32, {4, 5}));
};

TEST_F(DynamicTypes, SetAndGet) {
  EXPECT_EQ(x.type().str(), "tensor<?x4xf32, #stablehlo.bounds<8, ?>>");
  EXPECT_EQ(b.set_dimension_size(x, b.scalar(8, DType::kS32), 0).type(), data.type());
  EXPECT_EQ(b.set_dimension_size(data, b.scalar(8, DType::kS32), 0).id(), data.id());
  EXPECT_EQ(b.set_dimension_size(data, b.scalar(5, DType::kS32), 0).type(), x.type());
  EXPECT_EQ(b.to_static(x).type(), data.type());
  EXPECT_EQ(b.get_dimension_size(x, 0).type(), Type(DType::kS32, {}));
  EXPECT_INVALID(b.set_dimension_size(data, b.scalar(9, DType::kS32), 0),
                 "[set_dimension_size] expected a size up to 8, got 9");
  EXPECT_INVALID(b.set_dimension_size(data, b.convert(n, DType::kS64), 0),
                 "[set_dimension_size] expected tensor<i32>, got tensor<i64>");
}

TEST_F(DynamicTypes, Propagation) {
  auto text = [](const Value& v) { return v.type().str(); };
  EXPECT_EQ(b.exponential(x).type(), x.type());
  EXPECT_EQ((x + 1.0).type(), x.type());
  EXPECT_EQ((x + data).type(), x.type());  // a static operand at the bound takes the size
  EXPECT_EQ(text(b.lt(x, data)), "tensor<?x4xi1, #stablehlo.bounds<8, ?>>");
  EXPECT_EQ(b.reduce(x, b.scalar(0, DType::kF32), {0}, Reduction::kAdd).type(),
            Type(DType::kF32, {4}));
  EXPECT_EQ(text(b.reduce(x, b.scalar(0, DType::kF32), {1}, Reduction::kAdd)),
            "tensor<?xf32, #stablehlo.bounds<8>>");
  EXPECT_EQ(text(b.transpose(x, {1, 0})), "tensor<4x?xf32, #stablehlo.bounds<?, 8>>");
  EXPECT_EQ(text(b.dot_general(x, weight, {{}, {}, {1}, {0}}, DType::kF32)),
            "tensor<?x5xf32, #stablehlo.bounds<8, ?>>");
  EXPECT_EQ(b.dot_general(x, data, {{}, {}, {0}, {0}}, DType::kF32).type(),
            Type(DType::kF32, {4, 4}));
  EXPECT_EQ(text(b.broadcast_to(x, {2, kDynamic, 4})),
            "tensor<2x?x4xf32, #stablehlo.bounds<?, 8, ?>>");
  EXPECT_EQ(text(b.reshape(x, {1, kDynamic, 1, 4})),
            "tensor<1x?x1x4xf32, #stablehlo.bounds<?, 8, ?, ?>>");
  Value bias = b.parameter(Type(DType::kF32, {4}));
  EXPECT_EQ(b.broadcast_like(bias, x).type(), x.type());
  EXPECT_EQ(text(b.slice_dim(x, 1, 0, 2)), "tensor<?x2xf32, #stablehlo.bounds<8, ?>>");
  EXPECT_EQ(text(b.concatenate({data, x}, 1)), "tensor<?x8xf32, #stablehlo.bounds<8, ?>>");
}

TEST_F(DynamicTypes, RefusesWhatIsNotClear) {
  Value i = b.scalar(0, DType::kS32);
  EXPECT_INVALID(b.reshape(x, {kDynamic}),
                 "[reshape] expected a bounded shape to change only in 1s, "
                 "tensor<?x4xf32, #stablehlo.bounds<8, ?>>, got [-1]");
  EXPECT_INVALID(b.reverse(x, {0}),
                 "[reverse] expected static dimensions to reverse, got tensor<?x4xf32, "
                 "#stablehlo.bounds<8, ?>>");
  EXPECT_THROW(b.slice_dim(x, 0, 0, 4), std::invalid_argument);
  EXPECT_THROW(b.concatenate({x, x}, 0), std::invalid_argument);
  EXPECT_THROW(b.dynamic_slice(x, {i, i}, {1, 1}), std::invalid_argument);
  EXPECT_THROW(b.splat(0, x.type()), std::invalid_argument);
  EXPECT_THROW(b.broadcast_to(weight, {kDynamic, 4, 5}), std::invalid_argument);
  EXPECT_THROW(x + b.parameter(Type(DType::kF32, {7, 4})), std::invalid_argument);
  Value other = b.set_dimension_size(b.parameter(Type(DType::kF32, {16, 4})), n, 0);
  EXPECT_INVALID(x + other,
                 "[add] expected equal bounds, got (tensor<?x4xf32, #stablehlo.bounds<16, ?>>, "
                 "tensor<?x4xf32, #stablehlo.bounds<8, ?>>)");
}

class DynamicRun : public RunTest {
 protected:
  // 8 rows of which the first 3 count; the others hold what must never be seen.
  Value bounded() {
    std::vector<float> rows(32, 1e6f);
    for (int i = 0; i < 12; ++i) rows[i] = static_cast<float>(i);
    Value data = input(f32({8, 4}, rows));
    return b.set_dimension_size(data, input(s32({}, {3})), 0);
  }
};

TEST_F(DynamicRun, ReductionsSeeOnlyTheValidPart) {
  Value x = bounded();
  Value zero = b.scalar(0, DType::kF32);
  Value count = b.reduce(b.like(x, 1), zero, {0, 1}, Reduction::kAdd);
  std::vector<Array> got = run({b.reduce(x + 1.0, zero, {0}, Reduction::kAdd),
                                b.reduce(x, b.lowest(DType::kF32), {0, 1}, Reduction::kMax), count,
                                b.get_dimension_size(x, 0)});
  expect_near(got[0].as<float>(), {15, 18, 21, 24});
  expect_near(got[1].as<float>(), {11});
  expect_near(got[2].as<float>(), {12});
  EXPECT_EQ(got[3].as<int32_t>()[0], 3);
}

TEST_F(DynamicRun, ContractionsAndBroadcasts) {
  Value x = bounded();
  Value bias = input(f32({4}, {10, 20, 30, 40}));
  Value ones = input(f32({8, 2}, std::vector<float>(16, 1)));
  Value shifted = x + b.broadcast_like(bias, x);
  Value gram = b.dot_general(shifted, ones, {{}, {}, {0}, {0}}, DType::kF32);
  Value rows = b.reduce(x, b.scalar(0, DType::kF32), {1}, Reduction::kAdd);
  Value row_like = b.broadcast_in_dim(rows, {kDynamic, 4}, {0});
  Value total = b.reduce(x / row_like, b.scalar(0, DType::kF32), {0, 1}, Reduction::kAdd);
  std::vector<Array> got = run({gram, b.to_static(rows), total});
  expect_near(got[0].as<float>(), {42, 42, 75, 75, 108, 108, 141, 141});
  std::vector<float> sums = got[1].as<float>();
  sums.resize(3);
  expect_near(sums, {6, 22, 38});
  expect_near(got[2].as<float>(), {3});
}

TEST_F(DynamicRun, ShapesThatKeepTheBox) {
  Value x = bounded();
  Value zero = b.scalar(0, DType::kF32);
  Value reshaped = b.reshape(b.transpose(x, {1, 0}), {4, 1, kDynamic});
  Value wide = b.concatenate({x, x * 2.0}, 1);
  Value masked = b.select(b.gt(x, b.like(x, 4)), x, b.like(x, 0));
  Value padded = b.pad(x, b.scalar(1, DType::kF32), {0, 1}, {0, 0});
  std::vector<Array> got = run({b.reduce(reshaped, zero, {1, 2}, Reduction::kAdd),
                                b.reduce(b.slice_dim(wide, 1, 3, 5), zero, {0}, Reduction::kAdd),
                                b.reduce(masked, zero, {0, 1}, Reduction::kAdd),
                                b.reduce(padded, zero, {0}, Reduction::kAdd)});
  expect_near(got[0].as<float>(), {12, 15, 18, 21});
  expect_near(got[1].as<float>(), {21, 24});
  expect_near(got[2].as<float>(), {56});
  expect_near(got[3].as<float>(), {3, 12, 15, 18, 21});
}

TEST_F(DynamicRun, TwoBoundedDimensions) {
  Value n = input(s32({}, {2}));
  Value m = input(s32({}, {3}));
  Value q = b.set_dimension_size(input(f32({4, 5}, std::vector<float>(20, 1))), n, 0);
  Value k = b.set_dimension_size(input(f32({6, 5}, std::vector<float>(30, 1))), m, 0);
  Value scores = b.dot_general(q, k, {{}, {}, {1}, {1}}, DType::kF32);
  Value sum = b.reduce(scores, b.scalar(0, DType::kF32), {0, 1}, Reduction::kAdd);
  EXPECT_EQ(scores.type().str(), "tensor<?x?xf32, #stablehlo.bounds<4, 6>>");
  expect_near(run_f32(sum), {30});
}

TEST_F(DynamicRun, GatherByBoundedIndices) {
  Value table = input(f32_range({5, 2}));
  Value ids = b.set_dimension_size(input(s32({4, 1}, {4, 1, 0, 3})), input(s32({}, {2})), 0);
  GatherDims dims;
  dims.offset_dims = {1};
  dims.collapsed_slice_dims = {0};
  dims.start_index_map = {0};
  dims.index_vector_dim = 1;
  Value rows = b.gather(table, ids, dims, {1, 2});
  EXPECT_EQ(rows.type().str(), "tensor<?x2xf32, #stablehlo.bounds<4, ?>>");
  expect_near(run_f32(b.reduce(rows, b.scalar(0, DType::kF32), {0}, Reduction::kAdd)), {10, 12});
}

TEST_F(DynamicRun, WindowsAndConvolutionsOverStaticDimensions) {
  Value x = bounded();
  Window w;
  w.sizes = {1, 2};
  w.strides = {1, 2};
  Value pooled = b.reduce_window(x, b.scalar(0, DType::kF32), w, Reduction::kAdd);
  Value image = b.reshape(x, {kDynamic, 1, 4});
  ConvDims dims{0, 1, {2}, 0, 1, {2}, 0, 1, {2}};
  Value conv = b.convolution(image, input(f32({1, 1, 2}, {1, 1})), {}, dims, 1, 1, DType::kF32);
  Value zero = b.scalar(0, DType::kF32);
  std::vector<Array> got = run({b.reduce(pooled, zero, {0}, Reduction::kAdd),
                                b.reduce(conv, zero, {0, 1}, Reduction::kAdd)});
  expect_near(got[0].as<float>(), {27, 39});
  expect_near(got[1].as<float>(), {27, 33, 39});
}

}  // namespace
}  // namespace torch_tpu::stablehlo
