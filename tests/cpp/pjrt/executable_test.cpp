// Programs on the real XLA:CPU plugin: run, donate, serialize, shard, many threads.
#include "csrc/pjrt/executable.h"

#include <atomic>
#include <thread>

#include "tests/cpp/pjrt/test_util.h"

namespace torch_tpu::pjrt {
namespace {

using testing::add_program;
using testing::cpu_client;
using testing::cpu_device;
using testing::download;
using testing::expect_error;
using testing::run;
using testing::upload;

const std::vector<float> kSix = {1, 2, 3, 4, 5, 6};
const std::vector<float> kDouble = {2, 4, 6, 8, 10, 12};

LoadedExecutable compile_add() {
  return cpu_client()->compile(add_program(), CompileOptions::portable());
}

TEST(Executable, CompileAndRun) {
  const LoadedExecutable add = compile_add();
  EXPECT_EQ(add.num_outputs(), 1u);
  EXPECT_EQ(add.executable().name(), "add");
  EXPECT_EQ(add.executable().num_partitions(), 1u);
  EXPECT_EQ(add.executable().output_types(), std::vector<PJRT_Buffer_Type>{PJRT_Buffer_Type_F32});
  EXPECT_EQ(add.executable().output_dims(), (std::vector<std::vector<int64_t>>{{2, 3}}));
  const Buffer a = upload(kSix, {2, 3});
  EXPECT_EQ(download(run(add, {&a, &a})), kDouble);
}

TEST(Executable, OnePortableProgramRunsOnEveryDevice) {
  ASSERT_EQ(cpu_client()->addressable_devices().size(), 4u);
  const LoadedExecutable add = compile_add();
  for (size_t i = 0; i < 4; ++i) {
    const Buffer a = upload(kSix, {2, 3}, i);
    const Buffer sum = run(add, {&a, &a}, cpu_device(i));
    EXPECT_EQ(sum.device(), cpu_device(i));
    EXPECT_EQ(download(sum), kDouble);
  }
}

TEST(Executable, FixedDevice) {
  CompileOptions options;
  options.device_assignment = {{cpu_client()->addressable_devices()[2].id()}};
  const LoadedExecutable add = cpu_client()->compile(add_program(), options);
  EXPECT_EQ(add.addressable_devices(), std::vector<PJRT_Device*>{cpu_device(2)});
  const Buffer a = upload(kSix, {2, 3}, 2);
  const Buffer sum = run(add, {&a, &a}, nullptr);
  EXPECT_EQ(sum.device(), cpu_device(2));
  EXPECT_EQ(download(sum), kDouble);
}

TEST(Executable, DonationReusesTheMemory) {
  const LoadedExecutable add = cpu_client()->compile(add_program(" {tf.aliasing_output = 0 : i32}"),
                                                     CompileOptions::portable());
  const Buffer a = upload(kSix, {2, 3});
  const Buffer b = upload(kSix, {2, 3});
  void* address = a.unsafe_pointer();
  const Buffer sum = run(add, {&a, &b});
  EXPECT_EQ(sum.unsafe_pointer(), address);
  EXPECT_TRUE(a.is_deleted());
  EXPECT_FALSE(b.is_deleted());
  EXPECT_EQ(download(sum), kDouble);
  EXPECT_EQ(add.executable().memory_stats().alias_bytes, 24);
  EXPECT_THROW(run(add, {&a, &b}), Error);
}

TEST(Executable, EventOfCompletion) {
  const LoadedExecutable add = compile_add();
  const Buffer a = upload(kSix, {2, 3});
  PJRT_Buffer* args[] = {a.raw(), a.raw()};
  PJRT_Buffer* out = nullptr;
  const Event event = add.execute_with_event(args, 2, &out, cpu_device());
  const Buffer sum(cpu_client()->api(), out);
  EXPECT_TRUE(event);
  event.await();
  EXPECT_TRUE(sum.is_ready());
}

TEST(Executable, SerializeAndLoad) {
  const std::string bytes = compile_add().executable().serialize();
  EXPECT_GT(bytes.size(), 100u);
  const LoadedExecutable add = cpu_client()->deserialize(bytes);
  for (const size_t i : {0, 3}) {  // still portable
    const Buffer a = upload(kSix, {2, 3}, i);
    EXPECT_EQ(download(run(add, {&a, &a}, cpu_device(i))), kDouble);
  }
  EXPECT_THROW(cpu_client()->deserialize("not an executable"), Error);
  EXPECT_THROW(cpu_client()->deserialize(""), Error);
}

TEST(Executable, Analysis) {
  const LoadedExecutable dot = cpu_client()->compile(
      "module @dot { func.func public @main(%a: tensor<16x16xf32>) -> tensor<16x16xf32> {\n"
      "  %0 = stablehlo.dot_general %a, %a, contracting_dims = [1] x [0] :\n"
      "    (tensor<16x16xf32>, tensor<16x16xf32>) -> tensor<16x16xf32>\n"
      "  return %0 : tensor<16x16xf32>\n} }",
      CompileOptions::portable());
  const auto cost = dot.executable().cost_analysis();
  ASSERT_TRUE(cost.contains("flops"));
  EXPECT_EQ(cost.at("flops"), 2 * 16 * 16 * 16);
  const CompiledMemoryStats memory = dot.executable().memory_stats();
  EXPECT_EQ(memory.argument_bytes, 1024);
  EXPECT_EQ(memory.output_bytes, 1024);
  const auto program = dot.executable().optimized_program();
  if (program) {
    EXPECT_FALSE(program->format.empty());
    EXPECT_FALSE(program->code.empty());
  }
  const auto fingerprint = dot.executable().fingerprint();
  if (fingerprint) {
    EXPECT_FALSE(fingerprint->empty());
  }
}

TEST(Executable, BadProgramsKeepTheMessage) {
  const Error syntax = expect_error(
      [] { cpu_client()->compile("module { nonsense }", CompileOptions::portable()); });
  EXPECT_NE(syntax.code(), PJRT_Error_Code_OK);
  EXPECT_EQ(syntax.function(), "PJRT_Client_Compile");
  EXPECT_CONTAINS(syntax.message(), "nonsense");

  const Error types = expect_error([] {
    cpu_client()->compile(
        "module { func.func public @main(%a: tensor<2xf32>, %b: tensor<3xf32>) -> tensor<2xf32> {"
        "%0 = stablehlo.add %a, %b : (tensor<2xf32>, tensor<3xf32>) -> tensor<2xf32>\n"
        "return %0 : tensor<2xf32> } }",
        CompileOptions::portable());
  });
  EXPECT_CONTAINS(types.message(), "stablehlo.add");
}

TEST(Executable, BadArgumentsKeepTheCode) {
  const LoadedExecutable add = compile_add();
  const Buffer a = upload(kSix, {2, 3});
  const Error few = expect_error([&] { run(add, {&a}); });
  EXPECT_EQ(few.code(), PJRT_Error_Code_INVALID_ARGUMENT);
  EXPECT_EQ(few.function(), "PJRT_LoadedExecutable_Execute");
  Buffer deleted = upload(kSix, {2, 3});
  deleted.delete_memory();
  EXPECT_EQ(expect_error([&] { run(add, {&a, &deleted}); }).code(),
            PJRT_Error_Code_INVALID_ARGUMENT);
}

TEST(Executable, ShardedOverFourDevices) {
  std::vector<int64_t> ids;
  for (const Device& device : cpu_client()->addressable_devices()) ids.push_back(device.id());
  const LoadedExecutable sum = cpu_client()->compile(
      "module @sum attributes {mhlo.num_partitions = 4 : i32} {\n"
      "func.func public @main(%a: tensor<4xf32>) -> tensor<4xf32> {\n"
      "  %0 = \"stablehlo.all_reduce\"(%a) ({\n"
      "  ^bb0(%x: tensor<f32>, %y: tensor<f32>):\n"
      "    %s = stablehlo.add %x, %y : tensor<f32>\n"
      "    stablehlo.return %s : tensor<f32>\n"
      "  }) {channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>,\n"
      "      replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>, use_global_device_ids}\n"
      "    : (tensor<4xf32>) -> tensor<4xf32>\n"
      "  return %0 : tensor<4xf32>\n} }",
      CompileOptions::spmd(ids));
  ASSERT_EQ(sum.addressable_devices().size(), 4u);

  std::vector<Buffer> inputs;
  PJRT_Buffer* args[4][1];
  PJRT_Buffer* const* arg_lists[4];
  PJRT_Buffer* outs[4][1] = {};
  PJRT_Buffer** out_lists[4];
  for (size_t d = 0; d < 4; ++d) {
    inputs.push_back(upload(std::vector<float>(4, static_cast<float>(d + 1)), {4}, d));
    args[d][0] = inputs.back().raw();
    arg_lists[d] = args[d];
    out_lists[d] = outs[d];
  }
  sum.execute_sharded(arg_lists, 4, 1, out_lists);
  for (size_t d = 0; d < 4; ++d) {
    const Buffer out(cpu_client()->api(), outs[d][0]);
    EXPECT_EQ(out.device(), cpu_device(d));
    EXPECT_EQ(download(out), std::vector<float>(4, 10.0F));
  }
}

TEST(Executable, MovesAndOutlivesTheClientHandle) {
  LoadedExecutable add;
  EXPECT_FALSE(add);
  {
    const auto client = Client::create(Plugin::load(testing::cpu_plugin_path()),
                                       {{"cpu_device_count", static_cast<int64_t>(1)}});
    add = client->compile(add_program(), CompileOptions::portable());
  }
  LoadedExecutable moved = std::move(add);
  EXPECT_FALSE(add);  // NOLINT: the moved-from state is specified
  EXPECT_EQ(moved.executable().name(), "add");
}

TEST(Executable, ThreadsCompileAndExecute) {
  const LoadedExecutable shared = compile_add();
  std::atomic<int> wrong = 0;
  std::vector<std::thread> threads;
  for (size_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      const LoadedExecutable own = compile_add();
      const Buffer a = upload(kSix, {2, 3}, t);
      for (int i = 0; i < 200; ++i) {
        const Buffer x = run(shared, {&a, &a}, cpu_device(t));
        const Buffer y = run(own, {&a, &x}, cpu_device(t));
        const float* data = static_cast<const float*>(y.unsafe_pointer());
        y.await();
        for (size_t k = 0; k < kSix.size(); ++k) wrong += data[k] != 3 * kSix[k];
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

}  // namespace
}  // namespace torch_tpu::pjrt
