// Shared by the PJRT tests: the XLA:CPU plugin, one client of four devices, and
// small programs.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "csrc/pjrt/client.h"

namespace torch_tpu::pjrt::testing {

// From TORCH_TPU_TEST_PLUGIN (set by ctest), else from the local environment.
inline std::string cpu_plugin_path() {
  if (const char* path = std::getenv("TORCH_TPU_TEST_PLUGIN")) return path;
  for (const char* root : {".venv/lib", "../.venv/lib"}) {
    std::error_code ignored;
    for (const auto& python : std::filesystem::directory_iterator(root, ignored)) {
      const auto path = python.path() / "site-packages/xla_plugins/xla_cpu_pjrt/xla_cpu_pjrt.so";
      if (std::filesystem::exists(path)) return path.string();
    }
  }
  return {};
}

// One client for the whole test program, as in production; never destroyed.
inline const std::shared_ptr<Client>& cpu_client() {
  static const auto& client = *new std::shared_ptr<Client>(Client::create(
      Plugin::load(cpu_plugin_path()), {{"cpu_device_count", static_cast<int64_t>(4)}}));
  return client;
}

inline PJRT_Device* cpu_device(size_t ordinal = 0) {
  return cpu_client()->addressable_devices().at(ordinal).raw();
}

inline Buffer upload(const std::vector<float>& values, const std::vector<int64_t>& dims,
                     size_t ordinal = 0) {
  return cpu_client()->from_host(values.data(), PJRT_Buffer_Type_F32, dims, {},
                                 HostSemantics::kOnlyDuringCall, cpu_device(ordinal));
}

inline std::vector<float> download(const Buffer& buffer, const HostLayout& layout = {}) {
  std::vector<float> result(buffer.host_size() / sizeof(float));
  buffer.copy_to_host(result.data(), result.size() * sizeof(float), layout).await();
  return result;
}

inline Buffer run(const LoadedExecutable& program, const std::vector<const Buffer*>& inputs,
                  PJRT_Device* device = cpu_device()) {
  std::vector<PJRT_Buffer*> args;
  for (const Buffer* input : inputs) args.push_back(input->raw());
  PJRT_Buffer* out = nullptr;
  program.execute(args.data(), args.size(), &out, device);
  return Buffer(cpu_client()->api(), out);
}

// f(a, b) = a + b over f32[2,3]; `attribute` goes onto the first argument.
inline std::string add_program(const std::string& attribute = "") {
  return "module @add { func.func public @main(%a: tensor<2x3xf32>" + attribute +
         ", %b: tensor<2x3xf32>) -> tensor<2x3xf32> {\n"
         "  %0 = stablehlo.add %a, %b : tensor<2x3xf32>\n"
         "  return %0 : tensor<2x3xf32>\n} }\n";
}

template <class Body>
Error expect_error(Body&& body) {
  try {
    body();
  } catch (const Error& error) {
    return error;
  }
  ADD_FAILURE() << "no error was thrown";
  return Error(PJRT_Error_Code_OK, "", "");
}

#define EXPECT_CONTAINS(text, part) \
  EXPECT_NE(std::string(text).find(part), std::string::npos) << (text)

}  // namespace torch_tpu::pjrt::testing
