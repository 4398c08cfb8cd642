// Views as StableHLO: which forms avoid a gather or scatter. That the results are right is tested
// against PyTorch's own views in tests/python/test_views.py.
#include "csrc/trace/view.h"

#include <string>

#include <gtest/gtest.h>

namespace torch_tpu::trace {
namespace {

using stablehlo::Builder;
using stablehlo::Dims;
using stablehlo::DType;
using stablehlo::Type;

struct Case {
  Dims base;
  Shape base_strides;
  Geometry view;
};

std::string read(const Case& c, DType base = DType::kF32, DType dtype = DType::kF32) {
  Builder b;
  const auto x = b.parameter(Type(base, c.base));
  const auto y = read_view(x, c.base_strides, c.view, dtype);
  EXPECT_EQ(y.dims(), Dims(c.view.sizes.begin(), c.view.sizes.end()));
  EXPECT_EQ(y.dtype(), dtype);
  return b.finish({y});
}

std::string write(const Case& c) {
  Builder b;
  const auto x = b.parameter(Type(DType::kF32, c.base));
  const auto update =
      b.parameter(Type(DType::kF32, Dims(c.view.sizes.begin(), c.view.sizes.end())));
  const auto y = write_view(x, c.base_strides, c.view, update);
  EXPECT_EQ(y.dims(), c.base);
  return b.finish({y});
}

bool has(const std::string& text, const char* op) {
  return text.find(std::string("stablehlo.") + op) != std::string::npos;
}

TEST(View, TheWholeBaseIsTheValueItself) {
  const Case whole{{2, 3}, {3, 1}, {{2, 3}, {3, 1}, 0}};
  EXPECT_FALSE(has(read(whole), "slice"));
  EXPECT_FALSE(has(read(whole), "reshape"));
  EXPECT_FALSE(has(write(whole), "dynamic_update_slice"));
}

TEST(View, ATransposeIsATranspose) {
  const std::string text = read({{2, 3}, {3, 1}, {{3, 2}, {1, 3}, 0}});
  EXPECT_TRUE(has(text, "transpose"));
  EXPECT_FALSE(has(text, "gather"));
}

TEST(View, StepsAndDiagonalsAreSlices) {
  const Case step{{4, 8}, {8, 1}, {{4, 4}, {8, 2}, 1}};  // x[:, 1::2]
  const Case diagonal{{4, 4}, {4, 1}, {{4}, {5}, 0}};    // x.diagonal()
  const Case column{{4, 8}, {8, 1}, {{4}, {8}, 3}};      // x[:, 3]
  for (const Case& c : {step, diagonal, column}) {
    EXPECT_FALSE(has(read(c), "gather"));
    EXPECT_FALSE(has(write(c), "scatter"));
    EXPECT_TRUE(has(write(c), "dynamic_update_slice"));
  }
}

TEST(View, ExpandIsABroadcast) {
  const std::string text = read({{3}, {1}, {{5, 3}, {0, 1}, 0}});
  EXPECT_TRUE(has(text, "broadcast_in_dim"));
  EXPECT_FALSE(has(text, "gather"));
}

TEST(View, OverlappingWindowsGather) {
  EXPECT_TRUE(has(read({{10}, {1}, {{4, 3}, {2, 1}, 0}}), "gather"));  // unfold(0, 3, 2)
}

TEST(View, ChannelsLastBaseReadsThroughATranspose) {
  // NCHW sizes (1, 2, 3, 4) stored NHWC; the view is the plain NHWC permutation.
  const Case c{{1, 2, 3, 4}, {24, 1, 8, 2}, {{1, 3, 4, 2}, {24, 8, 2, 1}, 0}};
  const std::string text = read(c);
  EXPECT_TRUE(has(text, "transpose"));
  EXPECT_FALSE(has(text, "gather"));
}

TEST(View, AnotherDtypeReinterpretsTheBytes) {
  const Case real{{3}, {1}, {{3, 2}, {2, 1}, 0}};
  EXPECT_TRUE(has(read(real, DType::kC64, DType::kF32), "real"));
  const Case narrow{{3}, {1}, {{6}, {1}, 0}};
  EXPECT_TRUE(has(read(narrow, DType::kF32, DType::kF16), "bitcast_convert"));
  const Case same{{3}, {1}, {{3}, {1}, 0}};
  EXPECT_TRUE(has(read(same, DType::kF32, DType::kS32), "bitcast_convert"));
}

TEST(View, EmptyViewsReadNothing) {
  const std::string text = read({{4, 3}, {3, 1}, {{0, 3}, {3, 1}, 6}});
  EXPECT_FALSE(has(text, "slice"));
}

}  // namespace
}  // namespace torch_tpu::trace
