// Finding and loading plugins; messages for files that are none.
#include "csrc/pjrt/plugin.h"

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

#include <dlfcn.h>
#include <unistd.h>

#include "csrc/pjrt/plugin_resolve.h"
#include "tests/cpp/pjrt/test_util.h"

namespace torch_tpu::pjrt {
namespace {

namespace fs = std::filesystem;
using testing::expect_error;

class TempDir {
 public:
  TempDir() {
    std::string name = (fs::temp_directory_path() / "pjrt_test_XXXXXX").string();
    path_ = mkdtemp(name.data());
  }
  ~TempDir() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  std::string write(const std::string& name, const std::string& text = "") const {
    const fs::path file = path_ / name;
    fs::create_directories(file.parent_path());
    std::ofstream(file) << text;
    return file.string();
  }
  std::string path(const std::string& name = "") const { return (path_ / name).string(); }

 private:
  fs::path path_;
};

TEST(Plugin, LoadsOncePerFile) {
  const auto plugin = Plugin::load(testing::cpu_plugin_path());
  EXPECT_EQ(plugin->kind(), PlatformKind::kCpu);
  EXPECT_EQ(plugin->api_major(), PJRT_API_MAJOR);
  EXPECT_GE(plugin->api_minor(), kMinApiMinor);
  EXPECT_FALSE(plugin->attribute_string("stablehlo_current_version").empty());
  EXPECT_FALSE(plugin->attribute_string("xla_version").empty());
  EXPECT_EQ(plugin->attribute_string("no_such_attribute"), "");
  EXPECT_NE(plugin->extension(PJRT_Extension_Type_FFI), nullptr);
  EXPECT_EQ(plugin->extension(PJRT_Extension_Type_Example), nullptr);

  const TempDir dir;
  const std::string link = dir.path("other_name.so");
  fs::create_symlink(fs::absolute(testing::cpu_plugin_path()), link);
  EXPECT_EQ(Plugin::load(link), plugin);

  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] { EXPECT_EQ(Plugin::load(testing::cpu_plugin_path()), plugin); });
  }
  for (auto& thread : threads) thread.join();
}

TEST(Plugin, LeavesTheLogVariableAlone) {
  Plugin::load(testing::cpu_plugin_path());
  EXPECT_EQ(std::getenv("TF_CPP_MIN_LOG_LEVEL"), nullptr);
}

TEST(Plugin, MissingFile) {
  const Error error = expect_error([] { Plugin::load("/no/such/plugin.so"); });
  EXPECT_EQ(error.code(), PJRT_Error_Code_NOT_FOUND);
  EXPECT_CONTAINS(error.message(), "'/no/such/plugin.so' does not exist");
  EXPECT_CONTAINS(error.message(), "TORCH_TPU_PLUGIN");
}

TEST(Plugin, NotALibrary) {
  const TempDir dir;
  const Error text = expect_error([&] { Plugin::load(dir.write("plugin.so", "hello")); });
  EXPECT_EQ(text.code(), PJRT_Error_Code_INVALID_ARGUMENT);
  EXPECT_CONTAINS(text.message(), "not a shared library");
  const Error empty = expect_error([&] { Plugin::load(dir.write("empty.so")); });
  EXPECT_CONTAINS(empty.message(), "not a shared library");
  const Error broken = expect_error([&] { Plugin::load(dir.write("x.so", "\177ELF junk")); });
  EXPECT_CONTAINS(broken.message(), "does not load");
  const Error folder = expect_error([&] { Plugin::load(dir.path()); });
  EXPECT_CONTAINS(folder.message(), "is not a file");
}

TEST(Plugin, LibraryWithoutTheSymbol) {
  Dl_info info;
  ASSERT_NE(dladdr(reinterpret_cast<void*>(static_cast<double (*)(double)>(std::cbrt)), &info), 0);
  // Any system library will do; the one with gtest's or the math functions.
  std::string path = info.dli_fname;
  if (path.find(".so") == path.npos) path = "/lib/x86_64-linux-gnu/libm.so.6";
  if (!fs::exists(path)) GTEST_SKIP() << "no system library found";
  const Error error = expect_error([&] { Plugin::load(path); });
  EXPECT_EQ(error.code(), PJRT_Error_Code_INVALID_ARGUMENT);
  EXPECT_CONTAINS(error.message(), "no GetPjrtApi symbol");
}

TEST(Plugin, VersionErrorsNameBoth) {
  auto api = make_args<PJRT_Api>();
  api.pjrt_api_version.major_version = PJRT_API_MAJOR;
  api.pjrt_api_version.minor_version = 200;
  EXPECT_NO_THROW(check_api_version(&api, "x.so"));
  api.pjrt_api_version.minor_version = 40;
  const Error old = expect_error([&] { check_api_version(&api, "x.so"); });
  EXPECT_EQ(old.code(), PJRT_Error_Code_FAILED_PRECONDITION);
  EXPECT_CONTAINS(old.message(), "0.40");
  EXPECT_CONTAINS(old.message(), "0." + std::to_string(PJRT_API_MINOR));
  api.pjrt_api_version.major_version = 1;
  EXPECT_THROW(check_api_version(&api, "x.so"), Error);
}

TEST(Resolve, NamesAndPaths) {
  const TempDir dir;
  const std::string cpu = dir.write("xla_plugins/xla_cpu_pjrt/xla_cpu_pjrt.so");
  const std::string cuda = dir.write("jax_plugins/xla_cuda12/xla_cuda_plugin.so");
  const std::string tpu = dir.write("libtpu/libtpu.so");
  const std::vector<std::string> dirs = {"/no/such/dir", dir.path()};

  EXPECT_EQ(resolve_plugin("cpu", dirs).path, cpu);
  EXPECT_EQ(resolve_plugin("cpu", dirs).kind, PlatformKind::kCpu);
  EXPECT_EQ(resolve_plugin("cuda", dirs).path, cuda);
  EXPECT_EQ(resolve_plugin("cuda", dirs).kind, PlatformKind::kCuda);
  EXPECT_EQ(resolve_plugin("tpu", dirs).path, tpu);
  EXPECT_EQ(resolve_plugin("/a/libtpu.so", {}).kind, PlatformKind::kTpu);
  EXPECT_EQ(resolve_plugin("my_plugin.so", {}).kind, PlatformKind::kOther);
  EXPECT_EQ(resolve_plugin("my_plugin.so", {}).path, "my_plugin.so");
  if (!tpu_chip_present()) {
    EXPECT_EQ(resolve_plugin("auto", dirs).path, cpu);
  }

  dir.write("jax_plugins/xla_cuda13/xla_cuda_plugin.so");
  EXPECT_CONTAINS(resolve_plugin("cuda", dirs).path, "xla_cuda13");
}

TEST(Resolve, MissingPluginSaysWhatToInstall) {
  for (const auto& [name, package] :
       {std::pair("cpu", "xla-cpu-pjrt"), std::pair("cuda", "jax-cuda13-pjrt"),
        std::pair("tpu", "libtpu"), std::pair("auto", "xla-cpu-pjrt")}) {
    const Error error = expect_error([name = name] { resolve_plugin(name, {"/nowhere"}); });
    EXPECT_EQ(error.code(), PJRT_Error_Code_NOT_FOUND);
    EXPECT_CONTAINS(error.message(), std::string("pip install ") + package);
    EXPECT_CONTAINS(error.message(), "/nowhere");
  }
  const Error error = expect_error([] { resolve_plugin("gpu", {}); });
  EXPECT_EQ(error.code(), PJRT_Error_Code_INVALID_ARGUMENT);
  EXPECT_CONTAINS(error.message(), "'gpu'");
}

TEST(Resolve, SearchDirsAreProcessWide) {
  const auto before = search_dirs();
  set_search_dirs({"/a", "/b"});
  EXPECT_EQ(search_dirs(), (std::vector<std::string>{"/a", "/b"}));
  set_search_dirs(before);
}

TEST(Resolve, ChipNeedsDriverAndGoogleDevice) {
  const TempDir dir;
  const auto present = [&] { return tpu_chip_present(dir.path("dev"), dir.path("pci")); };
  EXPECT_FALSE(present());
  dir.write("dev/vfio/vfio");
  dir.write("pci/0/vendor", "0x1ae0\n");
  dir.write("pci/0/class", "0x020000\n");  // the virtual network card of a cloud machine
  dir.write("dev/vfio/0");
  EXPECT_FALSE(present());
  dir.write("pci/1/vendor", "0x1ae0\n");
  dir.write("pci/1/class", "0x120000\n");
  EXPECT_TRUE(present());
  fs::remove(dir.path("dev/vfio/0"));
  EXPECT_FALSE(present());
  dir.write("dev/accel0");
  EXPECT_TRUE(present());
}

}  // namespace
}  // namespace torch_tpu::pjrt
