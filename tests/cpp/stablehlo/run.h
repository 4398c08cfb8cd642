// Runs a Builder's program on the plugin named by TORCH_TPU_TEST_PLUGIN (XLA:CPU, or another with a
// device); tests that need it are skipped without it. TORCH_TPU_TEST_DUMP names a folder that gets
// the text of every program, to try it on other compilers.
#pragma once

#include <cmath>
#include <complex>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "csrc/pjrt/client.h"
#include "csrc/pjrt/plugin.h"
#include "csrc/stablehlo/builder.h"

namespace torch_tpu::stablehlo {

// Host data with its type.
struct Array {
  Type type;
  std::vector<char> bytes;

  template <typename T>
  std::vector<T> as() const {
    std::vector<T> out(bytes.size() / sizeof(T));
    if (!bytes.empty()) std::memcpy(out.data(), bytes.data(), out.size() * sizeof(T));
    return out;
  }
};

template <typename T>
Array array(DType dtype, const Dims& dims, const std::vector<T>& values) {
  Array out{Type(dtype, dims), std::vector<char>(values.size() * sizeof(T))};
  EXPECT_EQ(out.bytes.size(), product(dims) * dtype_bytes(dtype));
  if (!values.empty()) std::memcpy(out.bytes.data(), values.data(), out.bytes.size());
  return out;
}

inline Array f32(const Dims& dims, const std::vector<float>& values) {
  return array(DType::kF32, dims, values);
}
inline Array s32(const Dims& dims, const std::vector<int32_t>& values) {
  return array(DType::kS32, dims, values);
}
inline Array c64(const Dims& dims, const std::vector<std::complex<float>>& values) {
  return array(DType::kC64, dims, values);
}
// 0, 1, 2, ...
inline Array f32_range(const Dims& dims) {
  std::vector<float> values(product(dims));
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  return f32(dims, values);
}

inline PJRT_Buffer_Type buffer_type(DType dtype) {
  static constexpr PJRT_Buffer_Type kTypes[] = {
      PJRT_Buffer_Type_PRED,       PJRT_Buffer_Type_S8,     PJRT_Buffer_Type_S16,
      PJRT_Buffer_Type_S32,        PJRT_Buffer_Type_S64,    PJRT_Buffer_Type_U8,
      PJRT_Buffer_Type_U16,        PJRT_Buffer_Type_U32,    PJRT_Buffer_Type_U64,
      PJRT_Buffer_Type_F8E4M3FN,   PJRT_Buffer_Type_F8E5M2, PJRT_Buffer_Type_F8E4M3FNUZ,
      PJRT_Buffer_Type_F8E5M2FNUZ, PJRT_Buffer_Type_BF16,   PJRT_Buffer_Type_F16,
      PJRT_Buffer_Type_F32,        PJRT_Buffer_Type_F64,    PJRT_Buffer_Type_C64,
      PJRT_Buffer_Type_C128};
  return kTypes[static_cast<int>(dtype)];
}

class Runner {
 public:
  // Null without a plugin. Lives until the process ends, as the plugin does.
  static const Runner* get() {
    static const Runner* runner = [] {
      const char* path = std::getenv("TORCH_TPU_TEST_PLUGIN");
      return path == nullptr ? nullptr : new Runner(path);
    }();
    return runner;
  }

  const std::string& platform() const { return client_->platform_name(); }
  size_t num_devices() const { return client_->addressable_devices().size(); }

  // One device; `inputs` in the order of the parameters.
  std::vector<Array> run(const std::string& text, const std::vector<Type>& results,
                         const std::vector<Array>& inputs) const {
    return run_sharded(text, results, {inputs}, pjrt::CompileOptions::portable())[0];
  }

  // Partition (or replica) i of the program on device i.
  std::vector<std::vector<Array>> run_spmd(const std::string& text,
                                           const std::vector<Type>& results,
                                           const std::vector<std::vector<Array>>& inputs,
                                           bool replicas) const {
    std::vector<int64_t> devices(inputs.size());
    for (size_t i = 0; i < devices.size(); ++i) devices[i] = client_->devices().at(i).id();
    pjrt::CompileOptions options = pjrt::CompileOptions::spmd(devices);
    if (replicas) {
      options = {};
      options.num_replicas = static_cast<int64_t>(devices.size());
      for (int64_t id : devices) options.device_assignment.push_back({id});
    }
    return run_sharded(text, results, inputs, options);
  }

 private:
  explicit Runner(const std::string& path) {
    std::shared_ptr<pjrt::Plugin> plugin = pjrt::Plugin::load(path);
    pjrt::NamedValues options = pjrt::Client::default_options(plugin->kind());
    if (plugin->kind() == pjrt::PlatformKind::kCpu) {
      options = {{"cpu_device_count", int64_t{4}}};
    }
    client_ = pjrt::Client::create(plugin, options);
  }

  std::vector<std::vector<Array>> run_sharded(const std::string& text,
                                              const std::vector<Type>& results,
                                              const std::vector<std::vector<Array>>& inputs,
                                              const pjrt::CompileOptions& options) const {
    dump(text);
    pjrt::LoadedExecutable executable = client_->compile(text, options);
    std::vector<std::vector<pjrt::Buffer>> buffers(inputs.size());
    std::vector<std::vector<PJRT_Buffer*>> args(inputs.size()), outs(inputs.size());
    std::vector<PJRT_Buffer* const*> arg_rows;
    std::vector<PJRT_Buffer**> out_rows;
    for (size_t d = 0; d < inputs.size(); ++d) {
      for (const Array& x : inputs[d]) {
        buffers[d].push_back(client_->from_host(
            x.bytes.data(), buffer_type(x.type.dtype), x.type.dims, {},
            pjrt::HostSemantics::kOnlyDuringCall, client_->addressable_devices()[d].raw()));
        args[d].push_back(buffers[d].back().raw());
      }
      outs[d].resize(executable.num_outputs());
      arg_rows.push_back(args[d].data());
      out_rows.push_back(outs[d].data());
    }
    if (inputs.size() == 1) {
      executable.execute(args[0].data(), args[0].size(), outs[0].data(),
                         client_->addressable_devices()[0].raw());
    } else {
      executable.execute_sharded(arg_rows.data(), inputs.size(), args[0].size(), out_rows.data());
    }
    std::vector<std::vector<Array>> all(inputs.size());
    for (size_t d = 0; d < inputs.size(); ++d) {
      for (size_t i = 0; i < outs[d].size(); ++i) {
        pjrt::Buffer buffer(client_->api(), outs[d][i]);
        Array out{results.at(i), {}};
        EXPECT_EQ(buffer.dims(), out.type.dims);
        EXPECT_EQ(buffer.element_type(), buffer_type(out.type.dtype));
        out.bytes.resize(buffer.host_size());
        buffer.copy_to_host(out.bytes.data(), out.bytes.size()).await();
        all[d].push_back(std::move(out));
      }
    }
    return all;
  }

  static void dump(const std::string& text) {
    const char* folder = std::getenv("TORCH_TPU_TEST_DUMP");
    if (folder == nullptr) return;
    static int count = 0;
    const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
    std::ofstream(std::string(folder) + "/" + test->test_suite_name() + "." + test->name() + "." +
                  std::to_string(count++) + ".mlir")
        << text;
  }

  std::shared_ptr<pjrt::Client> client_;
};

// A test with a builder; run() compiles what it built and runs it.
class RunTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (Runner::get() == nullptr) GTEST_SKIP() << "TORCH_TPU_TEST_PLUGIN is not set";
  }

  // A parameter and the data it gets.
  Value input(const Array& data) {
    inputs.push_back(data);
    return b.parameter(data.type);
  }

  std::vector<Array> run(const Values& results) {
    std::vector<Type> types;
    for (const Value& x : results) types.push_back(x.type());
    std::string text = b.finish(results);
    SCOPED_TRACE(text);
    return Runner::get()->run(text, types, inputs);
  }
  std::vector<float> run_f32(const Value& result) { return run({result})[0].as<float>(); }
  std::vector<int32_t> run_s32(const Value& result) { return run({result})[0].as<int32_t>(); }

  Builder b;
  std::vector<Array> inputs;
};

inline void expect_near(const std::vector<float>& got, const std::vector<float>& expected,
                        float tolerance = 1e-5f) {
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i) {
    if (std::isnan(expected[i])) {
      EXPECT_TRUE(std::isnan(got[i])) << "at " << i;
    } else if (std::isinf(expected[i])) {
      EXPECT_EQ(got[i], expected[i]) << "at " << i;
    } else {
      EXPECT_NEAR(got[i], expected[i], tolerance * std::max(1.0f, std::abs(expected[i])))
          << "at " << i;
    }
  }
}

// The lines of @main's body for these results, without the surrounding module.
inline std::string body(Builder& b, const Values& results) {
  std::string text = b.finish(results);
  size_t begin = text.find(") {\n", text.find("@main")) + 4;
  return text.substr(begin, text.rfind("    return") - begin);
}

#define EXPECT_INVALID(expression, message)            \
  try {                                                \
    (void)(expression);                                \
    ADD_FAILURE() << "expected an error: " << message; \
  } catch (const std::invalid_argument& error) {       \
    EXPECT_STREQ(error.what(), message);               \
  }

}  // namespace torch_tpu::stablehlo
