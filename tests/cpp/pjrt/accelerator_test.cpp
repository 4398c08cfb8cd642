// Runs where the CUDA plugin or libtpu is installed: TORCH_TPU_TEST_SITE_PACKAGES
// names the folders (separated by ':') to look in. Skipped elsewhere.
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <sstream>
#include <thread>

#include "csrc/pjrt/plugin_resolve.h"
#include "csrc/pjrt/topology.h"
#include "tests/cpp/pjrt/test_util.h"

namespace torch_tpu::pjrt {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// The plugin, or null when it is not installed.
std::shared_ptr<Plugin> load_if_installed(const char* name) {
  const char* folders = std::getenv("TORCH_TPU_TEST_SITE_PACKAGES");
  if (folders == nullptr) return nullptr;
  std::vector<std::string> dirs;
  std::istringstream stream(folders);
  for (std::string dir; std::getline(stream, dir, ':');) dirs.push_back(dir);
  set_search_dirs(dirs);
  PluginSpec spec;
  try {
    spec = resolve_plugin(name, dirs);
  } catch (const Error&) {
    return nullptr;
  }
  return Plugin::load(spec.path, spec.kind);
}

TEST(Cuda, TransfersProgramsAndMemory) {
  const auto plugin = load_if_installed("cuda");
  if (!plugin) GTEST_SKIP() << "no CUDA plugin";
  const auto client = Client::create(plugin, Client::default_options(PlatformKind::kCuda));
  const PJRT_Api* api = client->api();
  ASSERT_FALSE(client->addressable_devices().empty());
  const Device& device = client->addressable_devices()[0];
  RecordProperty("device", device.kind());

  const std::vector<float> six = {1, 2, 3, 4, 5, 6};
  const int64_t dims[] = {2, 3};
  std::atomic<int> released = 0;
  const Buffer a =
      client->from_host(six.data(), PJRT_Buffer_Type_F32, dims, {}, HostSemantics::kOnlyDuringCall,
                        device.raw(), [&] { ++released; });
  std::vector<float> got(6);
  a.copy_to_host(got.data(), 24).await();
  EXPECT_EQ(got, six);
  while (released == 0) std::this_thread::yield();
  EXPECT_EQ(released, 1);
  a.copy_to_host(got.data(), 24, HostLayout::minor_to_major({0, 1})).await();
  EXPECT_EQ(got, (std::vector<float>{1, 4, 2, 5, 3, 6}));
  EXPECT_FALSE(a.is_on_cpu());
  EXPECT_NE(a.unsafe_pointer(), nullptr);

  const LoadedExecutable add = client->compile(
      testing::add_program(" {tf.aliasing_output = 0 : i32}"), CompileOptions::portable());
  const LoadedExecutable loaded = client->deserialize(add.executable().serialize());
  for (const LoadedExecutable* program : {&add, &loaded}) {
    const Buffer donated = client->from_host(six.data(), PJRT_Buffer_Type_F32, dims, {},
                                             HostSemantics::kOnlyDuringCall, device.raw());
    PJRT_Buffer* args[] = {donated.raw(), a.raw()};
    PJRT_Buffer* out = nullptr;
    program->execute(args, 2, &out, device.raw());
    const Buffer sum(api, out);
    sum.copy_to_host(got.data(), 24).await();
    EXPECT_EQ(got, (std::vector<float>{2, 4, 6, 8, 10, 12}));
    EXPECT_TRUE(donated.is_deleted());
  }
  EXPECT_TRUE(add.executable().cost_analysis().contains("flops"));
  EXPECT_EQ(add.executable().memory_stats().argument_bytes, 48);

  const auto stats = device.memory_stats();
  ASSERT_TRUE(stats.has_value());
  // Not preallocated: the pool is far below what the GPU has.
  if (stats->pool_bytes && stats->bytes_limit) {
    EXPECT_LT(*stats->pool_bytes, *stats->bytes_limit / 2);
  }

  const LoadedExecutable plain =
      client->compile(testing::add_program(), CompileOptions::portable());
  PJRT_Buffer* args[] = {a.raw(), a.raw()};
  PJRT_Buffer* out = nullptr;
  for (const int n : {1000, 5000}) {
    const auto start = Clock::now();
    for (int i = 0; i < n; ++i) {
      plain.execute(args, 2, &out, device.raw());
      if (i + 1 < n) destroy_buffer(api, out);
    }
    Buffer(api, out).await();
    RecordProperty("execute_us", std::to_string(seconds_since(start) / n * 1e6));
  }
}

TEST(Tpu, CompilesForATopologyWithoutAChip) {
  const auto start = Clock::now();
  const auto plugin = load_if_installed("tpu");
  if (!plugin) GTEST_SKIP() << "no libtpu";
  EXPECT_LT(seconds_since(start), 60.0) << "waited for a metadata server?";
  const Topology topology = Topology::create(plugin, "v5e:2x2");
  EXPECT_EQ(topology.devices().size(), 4u);
  EXPECT_EQ(topology.platform_name(), "tpu");
  EXPECT_FALSE(topology.platform_version().empty());
  EXPECT_FALSE(topology.devices()[0].kind().empty());
  EXPECT_NO_THROW(topology.attributes());

  const Executable add = topology.compile(testing::add_program(), CompileOptions::topology());
  EXPECT_EQ(add.num_outputs(), 1u);
  EXPECT_TRUE(add.cost_analysis().contains("flops"));
  EXPECT_GT(add.memory_stats().argument_bytes, 0);
  EXPECT_GT(add.serialize().size(), 100u);
  EXPECT_TRUE(add.optimized_program().has_value());

  const Error name = testing::expect_error([&] { Topology::create(plugin, "v6e-4"); });
  EXPECT_FALSE(name.message().empty());
  if (!tpu_chip_present()) {
    const Error client = testing::expect_error([&] { Client::create(plugin); });
    EXPECT_NE(client.code(), PJRT_Error_Code_OK);
  }
}

}  // namespace
}  // namespace torch_tpu::pjrt
