// Collectives, run on four partitions of one process.
#include "tests/cpp/stablehlo/run.h"

namespace torch_tpu::stablehlo {
namespace {

CollectiveGroups all_four() {
  CollectiveGroups groups;
  groups.replica_groups = {{0, 1, 2, 3}};
  groups.channel_id = 1;
  groups.use_global_device_ids = true;
  return groups;
}

TEST(CollectiveText, Forms) {
  Builder b;
  Value x = b.parameter(Type(DType::kF32, {4}));
  CollectiveGroups uneven;
  uneven.replica_groups = {{0, 1, 2}, {3}};
  Values all = {b.all_reduce(x, all_four(), Reduction::kAdd)};
  all.push_back(b.all_reduce(x, uneven, Reduction::kMax));
  all.push_back(b.all_gather(x, 0, 4, all_four()));
  all.push_back(b.reduce_scatter(x, 0, 4, all_four(), Reduction::kAdd));
  all.push_back(b.all_to_all(x, 0, 0, 4, all_four()));
  all.push_back(b.collective_permute(x, {{0, 1}, {1, 0}}, 2));
  all.push_back(b.partition_id());
  all.push_back(b.replica_id());
  EXPECT_EQ(
      body(b, all),
      R"(    %0 = "stablehlo.all_reduce"(%arg0) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>, use_global_device_ids}> ({
    ^bb0(%1: tensor<f32>, %2: tensor<f32>):
      %3 = stablehlo.add %1, %2 : tensor<f32>
      stablehlo.return %3 : tensor<f32>
    }) : (tensor<4xf32>) -> tensor<4xf32>
    %4 = "stablehlo.all_reduce"(%arg0) <{replica_groups = dense<[[0, 1, 2], [3, -1, -1]]> : tensor<2x3xi64>}> ({
    ^bb0(%5: tensor<f32>, %6: tensor<f32>):
      %7 = stablehlo.maximum %5, %6 : tensor<f32>
      stablehlo.return %7 : tensor<f32>
    }) : (tensor<4xf32>) -> tensor<4xf32>
    %8 = "stablehlo.all_gather"(%arg0) <{all_gather_dim = 0 : i64, channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>, use_global_device_ids}> : (tensor<4xf32>) -> tensor<16xf32>
    %9 = "stablehlo.reduce_scatter"(%arg0) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>, use_global_device_ids, scatter_dimension = 0 : i64}> ({
    ^bb0(%10: tensor<f32>, %11: tensor<f32>):
      %12 = stablehlo.add %10, %11 : tensor<f32>
      stablehlo.return %12 : tensor<f32>
    }) : (tensor<4xf32>) -> tensor<1xf32>
    %13 = "stablehlo.all_to_all"(%arg0) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>, concat_dimension = 0 : i64, split_count = 4 : i64, split_dimension = 0 : i64}> : (tensor<4xf32>) -> tensor<4xf32>
    %14 = "stablehlo.collective_permute"(%arg0) <{channel_handle = #stablehlo.channel_handle<handle = 2, type = 1>, source_target_pairs = dense<[[0, 1], [1, 0]]> : tensor<2x2xi64>}> : (tensor<4xf32>) -> tensor<4xf32>
    %15 = "stablehlo.partition_id"() : () -> tensor<ui32>
    %16 = "stablehlo.replica_id"() : () -> tensor<ui32>
)");
}

TEST(CollectiveErrors, NameTheProblem) {
  Builder b;
  Value x = b.parameter(Type(DType::kF32, {6}));
  EXPECT_INVALID(b.all_reduce(x, {}, Reduction::kAdd),
                 "[all_reduce] expected replica groups, got none");
  EXPECT_INVALID(b.all_gather(x, 0, 3, all_four()), "[all_gather] expected groups of 3, got 4");
  EXPECT_INVALID(b.reduce_scatter(x, 0, 4, all_four(), Reduction::kAdd),
                 "[reduce_scatter] expected dimension 0 to divide by 4, got tensor<6xf32>");
  EXPECT_INVALID(
      b.collective_permute(x, {{0, 1}, {2, 1}}),
      "[collective_permute] expected distinct sources and distinct targets, got (2, 1) again");
  CollectiveGroups no_channel = all_four();
  no_channel.channel_id.reset();
  EXPECT_INVALID(b.all_reduce(x, no_channel, Reduction::kAdd),
                 "[all_reduce] expected a channel id with global device ids, got none");
}

class CollectiveRun : public RunTest {
 protected:
  // The same program over partitions (with channels) or over replicas (without).
  void run_everything(bool replicas) {
    if (Runner::get()->num_devices() < 4) GTEST_SKIP() << "needs 4 devices";
    Value x = b.parameter(Type(DType::kF32, {4}));
    b.set_partitions(replicas ? 4 : 1, replicas ? 1 : 4);
    int64_t channel = 1;
    auto groups = [&](std::vector<std::vector<int64_t>> ids) {
      CollectiveGroups out;
      out.replica_groups = std::move(ids);
      if (!replicas) {
        out.channel_id = channel++;
        out.use_global_device_ids = true;
      }
      return out;
    };
    Values results = {b.all_reduce(x, groups({{0, 1, 2, 3}}), Reduction::kAdd)};
    results.push_back(b.all_reduce(x, groups({{0, 2}, {1, 3}}), Reduction::kMax));
    results.push_back(b.all_gather(x, 0, 4, groups({{0, 1, 2, 3}})));
    results.push_back(b.reduce_scatter(x, 0, 4, groups({{0, 1, 2, 3}}), Reduction::kAdd));
    results.push_back(b.all_to_all(x, 0, 0, 4, groups({{0, 1, 2, 3}})));
    std::optional<int64_t> permute_channel;
    if (!replicas) permute_channel = channel++;
    results.push_back(b.collective_permute(x, {{0, 1}, {1, 2}, {2, 3}, {3, 0}}, permute_channel));
    // The SPMD partitioner takes partition_id only inside manual shardings.
    if (replicas) results.push_back(b.replica_id());
    std::vector<Type> types;
    for (const Value& v : results) types.push_back(v.type());
    std::vector<std::vector<Array>> shards;
    for (int d = 0; d < 4; ++d) {
      float f = static_cast<float>(10 * d);
      shards.push_back({f32({4}, {f, f + 1, f + 2, f + 3})});
    }
    auto got = Runner::get()->run_spmd(b.finish(results), types, shards, replicas);
    for (int d = 0; d < 4; ++d) {
      SCOPED_TRACE(d);
      float f = static_cast<float>(d);
      expect_near(got[d][0].as<float>(), {60, 64, 68, 72});
      float top = d % 2 == 0 ? 20.f : 30.f;
      expect_near(got[d][1].as<float>(), {top, top + 1, top + 2, top + 3});
      EXPECT_EQ(got[d][2].as<float>()[5], 11);
      expect_near(got[d][3].as<float>(), {60 + 4 * f});
      expect_near(got[d][4].as<float>(), {f, 10 + f, 20 + f, 30 + f});
      EXPECT_EQ(got[d][5].as<float>()[0], static_cast<float>(10 * ((d + 3) % 4)));
      if (replicas) {
        EXPECT_EQ(got[d][6].as<uint32_t>()[0], static_cast<uint32_t>(d));
      }
    }
  }
};

TEST_F(CollectiveRun, FourPartitions) { run_everything(false); }
TEST_F(CollectiveRun, FourReplicas) { run_everything(true); }

}  // namespace
}  // namespace torch_tpu::stablehlo
