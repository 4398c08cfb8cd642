// When one program for a piece costs less than one for each of its ops.
#include "csrc/cache/compile_costs.h"

#include <gtest/gtest.h>

namespace torch_tpu::cache {
namespace {

constexpr auto kCpu = pjrt::PlatformKind::kCpu;

TEST(CompileCosts, TakesAPieceWhereMostOpsAreMissing) {
  const CompileCosts costs(kCpu);
  EXPECT_TRUE(costs.piece_is_cheaper(132, 65, 2));
  EXPECT_FALSE(costs.piece_is_cheaper(132, 12, 2));
  EXPECT_FALSE(costs.piece_is_cheaper(132, 65, 16));  // many threads compile single ops
}

TEST(CompileCosts, KeepsThePlatformsFigureWhileAllIsSlow) {
  CompileCosts costs(kCpu);
  const double known = costs.node_per_single();
  for (int i = 0; i < 20; ++i) costs.note_single(0.1);
  costs.note_piece(200, 200 * 0.1 * known * 1.5);
  EXPECT_EQ(costs.node_per_single(), known);
}

TEST(CompileCosts, BelievesWhatIsQuiteDifferent) {
  CompileCosts costs(kCpu);
  for (int i = 0; i < 20; ++i) costs.note_single(0.01);
  costs.note_piece(200, 200 * 0.01);
  EXPECT_NEAR(costs.node_per_single(), 1.0, 1e-9);
  EXPECT_FALSE(costs.piece_is_cheaper(132, 65, 2));
}

}  // namespace
}  // namespace torch_tpu::cache
