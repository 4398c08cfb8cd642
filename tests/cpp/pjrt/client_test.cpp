// Clients, devices, options, and the key-value callbacks.
#include "csrc/pjrt/client.h"

#include <cstring>
#include <map>
#include <mutex>

#include "csrc/pjrt/topology.h"
#include "tests/cpp/pjrt/test_util.h"

namespace torch_tpu::pjrt {
namespace {

using testing::cpu_client;
using testing::expect_error;

TEST(Client, Properties) {
  const auto& client = cpu_client();
  EXPECT_EQ(client->platform_name(), "cpu");
  EXPECT_FALSE(client->platform_version().empty());
  EXPECT_EQ(client->process_index(), 0);
  ASSERT_EQ(client->addressable_devices().size(), 4u);
  ASSERT_EQ(client->devices().size(), 4u);
  for (int i = 0; i < 4; ++i) {
    const Device& device = client->addressable_devices()[static_cast<size_t>(i)];
    EXPECT_EQ(device.local_ordinal(), i);
    EXPECT_TRUE(device.is_addressable());
    EXPECT_EQ(device.id(), i);
    EXPECT_EQ(device.process_index(), 0);
    EXPECT_FALSE(device.kind().empty());
    EXPECT_FALSE(device.debug_string().empty());
    EXPECT_NE(device.default_memory(), nullptr);
    EXPECT_FALSE(device.memory_stats().has_value());  // XLA:CPU does not count
    EXPECT_NO_THROW(device.attributes());
    EXPECT_NO_THROW(device.local_hardware_id());
  }
}

TEST(Client, DefaultOptions) {
  setenv("TORCH_TPU_CPU_DEVICES", "3", 1);
  const NamedValues cpu = Client::default_options(PlatformKind::kCpu);
  unsetenv("TORCH_TPU_CPU_DEVICES");
  EXPECT_EQ(std::get<int64_t>(cpu.at("cpu_device_count")), 3);
  EXPECT_EQ(std::get<bool>(Client::default_options(PlatformKind::kCuda).at("preallocate")), false);
  EXPECT_TRUE(Client::default_options(PlatformKind::kTpu).empty());
}

TEST(Client, BadOptionsAreRefused) {
  const auto plugin = Plugin::load(testing::cpu_plugin_path());
  const Error error =
      expect_error([&] { Client::create(plugin, {{"cpu_device_count", std::string("four")}}); });
  EXPECT_EQ(error.function(), "PJRT_Client_Create");
  EXPECT_FALSE(error.message().empty());
}

TEST(Client, TopologyCompileIsAnErrorOnCpuNotACrash) {
  const auto plugin = Plugin::load(testing::cpu_plugin_path());
  try {
    const Topology topology = Topology::create(plugin, "cpu");
    EXPECT_FALSE(topology.platform_name().empty());
  } catch (const Error& error) {
    EXPECT_EQ(error.function(), "PJRT_TopologyDescription_Create");
    EXPECT_FALSE(error.message().empty());
  }
}

// The callbacks themselves: XLA:CPU has no use for them.
class MapStore : public KeyValueStore {
 public:
  std::string get(const std::string& key, int timeout_ms) override {
    if (auto value = try_get(key)) return *value;
    throw Error(PJRT_Error_Code_DEADLINE_EXCEEDED, "get",
                key + " after " + std::to_string(timeout_ms) + " ms");
  }
  std::optional<std::string> try_get(const std::string& key) override {
    const std::lock_guard lock(mutex_);
    const auto found = values_.find(key);
    return found == values_.end() ? std::nullopt : std::optional(found->second);
  }
  void put(const std::string& key, const std::string& value) override {
    if (key == "bad") throw std::runtime_error("refused");
    const std::lock_guard lock(mutex_);
    values_[key] = value;
  }

 private:
  std::mutex mutex_;
  std::map<std::string, std::string> values_;
};

PJRT_Error_Code last_code;
std::string last_message;
PJRT_Error* make_error(PJRT_Error_Code code, const char* message, size_t size) {
  last_code = code;
  last_message.assign(message, size);
  return reinterpret_cast<PJRT_Error*>(&last_code);
}

TEST(KeyValue, CallbacksPassValuesAndErrors) {
  MapStore store;
  auto create = make_args<PJRT_Client_Create_Args>();
  set_key_value_callbacks(create, store);
  PJRT_CallbackError callback_error = make_error;

  auto put = make_args<PJRT_KeyValuePutCallback_Args>();
  put.key = "k";
  put.key_size = 1;
  put.value = "a\0b";
  put.value_size = 3;
  put.callback_error = &callback_error;
  put.user_arg = create.kv_put_user_arg;
  EXPECT_EQ(create.kv_put_callback(&put), nullptr);

  auto get = make_args<PJRT_KeyValueGetCallback_Args>();
  get.key = "k";
  get.key_size = 1;
  get.timeout_in_ms = 5;
  get.callback_error = &callback_error;
  get.user_arg = create.kv_get_user_arg;
  EXPECT_EQ(create.kv_get_callback(&get), nullptr);
  EXPECT_EQ(std::string(get.value, get.value_size), std::string("a\0b", 3));
  get.value_deleter_callback(get.value);
  get.key = "x";
  EXPECT_NE(create.kv_get_callback(&get), nullptr);
  EXPECT_EQ(last_code, PJRT_Error_Code_DEADLINE_EXCEEDED);
  EXPECT_EQ(last_message, "x after 5 ms");

  auto try_get = make_args<PJRT_KeyValueTryGetCallback_Args>();
  try_get.key = "x";
  try_get.key_size = 1;
  try_get.callback_error = &callback_error;
  try_get.user_arg = create.kv_try_get_user_arg;
  EXPECT_NE(create.kv_try_get_callback(&try_get), nullptr);
  EXPECT_EQ(last_code, PJRT_Error_Code_NOT_FOUND);

  put.key = "bad";
  put.key_size = 3;
  EXPECT_NE(create.kv_put_callback(&put), nullptr);
  EXPECT_EQ(last_message, "refused");
}

TEST(KeyValue, ClientKeepsTheStore) {
  auto store = std::make_shared<MapStore>();
  const std::weak_ptr<MapStore> watch = store;
  auto client = Client::create(Plugin::load(testing::cpu_plugin_path()),
                               {{"cpu_device_count", static_cast<int64_t>(1)}}, std::move(store));
  EXPECT_FALSE(watch.expired());
  client.reset();
  EXPECT_TRUE(watch.expired());
}

}  // namespace
}  // namespace torch_tpu::pjrt
