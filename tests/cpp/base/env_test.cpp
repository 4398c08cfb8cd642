// Defaults, parsing and error messages of the environment variables.
#include "csrc/base/env.h"

#include <cstdlib>
#include <limits>
#include <set>
#include <stdexcept>
#include <string>

#include <gtest/gtest.h>

namespace torch_tpu::base {
namespace {

// Sets a variable for one test and restores what was there.
class ScopedEnv {
 public:
  ScopedEnv(const char* name, const char* value) : name_(name) {
    if (const char* old = std::getenv(name)) {
      old_ = old;
      was_set_ = true;
    }
    if (value != nullptr) {
      setenv(name, value, 1);
    } else {
      unsetenv(name);
    }
  }
  ~ScopedEnv() {
    if (was_set_) {
      setenv(name_, old_.c_str(), 1);
    } else {
      unsetenv(name_);
    }
  }

 private:
  const char* name_;
  std::string old_;
  bool was_set_ = false;
};

// The error must name the variable, the value, and what is allowed.
template <class Read>
void expect_rejected(const char* name, const char* value, const char* allowed, Read read) {
  const ScopedEnv env(name, value);
  try {
    read();
    FAIL() << name << "=" << value << " was accepted";
  } catch (const std::invalid_argument& error) {
    const std::string what = error.what();
    EXPECT_NE(what.find(name), what.npos) << what;
    EXPECT_NE(what.find(std::string("'") + value + "'"), what.npos) << what;
    EXPECT_NE(what.find(allowed), what.npos) << what;
  }
}

TEST(Env, TableIsCompleteAndUnique) {
  std::set<std::string> names;
  for (const EnvVar& var : env_table()) {
    EXPECT_TRUE(std::string(var.name).starts_with("TORCH_TPU_"));
    EXPECT_TRUE(names.insert(var.name).second) << var.name;
    EXPECT_FALSE(std::string(var.type).empty()) << var.name;
    EXPECT_FALSE(std::string(var.allowed).empty()) << var.name;
    EXPECT_FALSE(std::string(var.doc).empty()) << var.name;
    EXPECT_EQ(std::string(var.doc).find('\n'), std::string::npos) << var.name;
  }
}

TEST(Env, DefaultsWhenUnsetOrEmpty) {
  for (const char* value : {static_cast<const char*>(nullptr), ""}) {
    const ScopedEnv a("TORCH_TPU_PLUGIN", value), b("TORCH_TPU_MODE", value),
        c("TORCH_TPU_CPU_DEVICES", value), d("TORCH_TPU_PLUGIN_LOG", value),
        e("TORCH_TPU_FALLBACK", value), f("TORCH_TPU_DEBUG_NANS", value),
        g("TORCH_TPU_MEMORY_LIMIT", value), h("TORCH_TPU_DUMP", value),
        i("TORCH_TPU_CACHE_SIZE", value);
    EXPECT_EQ(env_plugin(), "auto");
    EXPECT_EQ(env_mode(), Mode::kFused);
    EXPECT_EQ(env_cpu_devices(), 1);
    EXPECT_FALSE(env_plugin_log());
    EXPECT_EQ(env_plugin_log_level(), 3);
    EXPECT_EQ(env_fallback(), Fallback::kWarn);
    EXPECT_FALSE(env_debug_nans());
    EXPECT_EQ(env_memory_limit(), 0);
    EXPECT_EQ(env_dump(), "");
    EXPECT_EQ(env_cache_size(), 16384);
    EXPECT_EQ(env_flight_size(), 2048);
  }
}

TEST(Env, ReadsFresh) {
  const ScopedEnv outer("TORCH_TPU_MODE", "debug");
  EXPECT_EQ(env_mode(), Mode::kDebug);
  const ScopedEnv inner("TORCH_TPU_MODE", "strict");
  EXPECT_EQ(env_mode(), Mode::kStrict);
}

TEST(Env, PluginTakesNamesAndPaths) {
  for (const char* value : {"auto", "cpu", "cuda", "tpu", "/opt/x.so", "./x", "x.so"}) {
    const ScopedEnv env("TORCH_TPU_PLUGIN", value);
    EXPECT_EQ(env_plugin(), value);
  }
  expect_rejected("TORCH_TPU_PLUGIN", "gpu", "auto, cpu, cuda, tpu", [] { env_plugin(); });
}

TEST(Env, ChoicesAreChecked) {
  expect_rejected("TORCH_TPU_MODE", "Fused", "debug, strict or fused", [] { env_mode(); });
  expect_rejected("TORCH_TPU_FALLBACK", "no", "warn, error or silent", [] { env_fallback(); });
  expect_rejected("TORCH_TPU_DEBUG_NANS", "2", "0 or 1", [] { env_debug_nans(); });
  expect_rejected("TORCH_TPU_PLUGIN_LOG", "loud", "off, on", [] { env_plugin_log(); });
}

TEST(Env, ParseModeNamesTheCaller) {
  EXPECT_EQ(parse_mode("strict", "set_mode"), Mode::kStrict);
  EXPECT_THROW(
      {
        try {
          parse_mode("eager", "set_mode");
        } catch (const std::invalid_argument& error) {
          EXPECT_STREQ(error.what(), "[set_mode] expected debug, strict or fused, got 'eager'.");
          throw;
        }
      },
      std::invalid_argument);
}

TEST(Env, LogLevels) {
  const std::pair<const char*, int> levels[] = {{"on", 0},      {"1", 0},     {"info", 0},
                                                {"warning", 1}, {"error", 2}, {"off", 3}};
  for (const auto& [value, level] : levels) {
    const ScopedEnv env("TORCH_TPU_PLUGIN_LOG", value);
    EXPECT_EQ(env_plugin_log_level(), level) << value;
    EXPECT_EQ(env_plugin_log(), level < 3) << value;
  }
}

TEST(Env, IntegersAreChecked) {
  {
    const ScopedEnv env("TORCH_TPU_CPU_DEVICES", "64");
    EXPECT_EQ(env_cpu_devices(), 64);
  }
  for (const char* value : {"0", "65", "-1", "4x", "four", " 4", "99999999999999999999"}) {
    expect_rejected("TORCH_TPU_CPU_DEVICES", value, "1 to 64", [] { env_cpu_devices(); });
  }
  expect_rejected("TORCH_TPU_CACHE_SIZE", "0", "from 1", [] { env_cache_size(); });
}

TEST(Env, LaunchedProcessesHaveADeviceForEachRank) {
  const ScopedEnv unset("TORCH_TPU_CPU_DEVICES", "");
  const std::pair<const char*, int> sizes[] = {{"1", 1}, {"4", 4}, {"100", 64}, {"0", 1}, {"x", 1}};
  for (const auto& [value, devices] : sizes) {
    const ScopedEnv env("LOCAL_WORLD_SIZE", value);
    EXPECT_EQ(env_cpu_devices(), devices) << value;
  }
  const ScopedEnv launched("LOCAL_WORLD_SIZE", "4");
  const ScopedEnv given("TORCH_TPU_CPU_DEVICES", "2");
  EXPECT_EQ(env_cpu_devices(), 2);
}

TEST(Env, MemoryLimitSuffixes) {
  const std::pair<const char*, int64_t> sizes[] = {
      {"0", 0},
      {"123", 123},
      {"4K", 4096},
      {"4k", 4096},
      {"3M", 3 << 20},
      {"16G", int64_t{16} << 30},
      {"9223372036854775807", std::numeric_limits<int64_t>::max()}};
  for (const auto& [value, bytes] : sizes) {
    const ScopedEnv env("TORCH_TPU_MEMORY_LIMIT", value);
    EXPECT_EQ(env_memory_limit(), bytes) << value;
  }
  for (const char* value : {"G", "-1", "1.5G", "1GB", "1T", "9223372036854775807K"}) {
    expect_rejected("TORCH_TPU_MEMORY_LIMIT", value, "suffix K, M or G",
                    [] { env_memory_limit(); });
  }
}

TEST(Env, CacheFolder) {
  const ScopedEnv home("HOME", "/home/me"), xdg("XDG_CACHE_HOME", nullptr);
  {
    const ScopedEnv unset("TORCH_TPU_CACHE_DIR", nullptr);
    EXPECT_EQ(env_cache_dir(), "/home/me/.cache/torch_tpu");
    const ScopedEnv other("XDG_CACHE_HOME", "/scratch");
    EXPECT_EQ(env_cache_dir(), "/scratch/torch_tpu");
    const ScopedEnv relative("XDG_CACHE_HOME", "scratch");  // to be ignored, says its standard
    EXPECT_EQ(env_cache_dir(), "/home/me/.cache/torch_tpu");
    const ScopedEnv homeless("HOME", nullptr);
    EXPECT_EQ(env_cache_dir(), "");
  }
  const std::pair<const char*, const char*> folders[] = {
      {"/a/b", "/a/b"}, {"~/c", "/home/me/c"}, {"off", ""}, {"0", ""}};
  for (const auto& [value, folder] : folders) {
    const ScopedEnv env("TORCH_TPU_CACHE_DIR", value);
    EXPECT_EQ(env_cache_dir(), folder) << value;
  }
  const ScopedEnv relative("TORCH_TPU_CACHE_DIR", "cache");
  EXPECT_TRUE(env_cache_dir().starts_with("/")) << env_cache_dir();
  EXPECT_TRUE(env_cache_dir().ends_with("/cache")) << env_cache_dir();
}

TEST(Env, CacheBytesAndPacks) {
  {
    const ScopedEnv unset("TORCH_TPU_CACHE_BYTES", nullptr), none("TORCH_TPU_PACK", nullptr);
    EXPECT_EQ(env_cache_bytes(), int64_t{2} << 30);
    EXPECT_TRUE(env_packs().empty());
  }
  const ScopedEnv bytes("TORCH_TPU_CACHE_BYTES", "64M"), packs("TORCH_TPU_PACK", "/a.pack::b");
  EXPECT_EQ(env_cache_bytes(), 64 << 20);
  EXPECT_EQ(env_packs(), (std::vector<std::string>{"/a.pack", "b"}));
  expect_rejected("TORCH_TPU_CACHE_BYTES", "2T", "K, M or G", [] { env_cache_bytes(); });
}

}  // namespace
}  // namespace torch_tpu::base
