// The encoded bytes, and that the compiler understands them.
#include "csrc/pjrt/compile_options.h"

#include <stdexcept>

#include "tests/cpp/pjrt/test_util.h"

namespace torch_tpu::pjrt {
namespace {

std::string hex(const std::string& bytes) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string result;
  for (const unsigned char byte : bytes) {
    if (!result.empty()) result += ' ';
    result += kDigits[byte >> 4];
    result += kDigits[byte & 15];
  }
  return result;
}

TEST(CompileOptions, Bytes) {
  EXPECT_EQ(hex(CompileOptions().serialize()), "1a 04 20 01 28 01");
  EXPECT_EQ(hex(CompileOptions::portable().serialize()), "1a 04 20 01 28 01 20 01");
  EXPECT_EQ(hex(CompileOptions::topology().serialize()),
            "1a 0f 08 ff ff ff ff ff ff ff ff ff 01 20 01 28 01");
  EXPECT_EQ(hex(CompileOptions::topology(300).serialize()),
            "1a 12 08 ff ff ff ff ff ff ff ff ff 01 20 01 28 ac 02 30 01");
}

TEST(CompileOptions, DeviceAssignmentIsByPartitionThenReplica) {
  // replica_count 1, computation_count 2, then one list per partition.
  EXPECT_EQ(hex(CompileOptions::spmd({5, 6}).serialize()),
            "1a 16 20 01 28 02 30 01 4a 0e 08 01 10 02 1a 03 0a 01 05 1a 03 0a 01 06");
  CompileOptions two_by_two;
  two_by_two.num_replicas = 2;
  two_by_two.num_partitions = 2;
  two_by_two.use_spmd_partitioning = true;
  two_by_two.device_assignment = {{0, 1}, {2, 3}};
  EXPECT_EQ(hex(two_by_two.serialize()),
            "1a 18 20 02 28 02 30 01 4a 10 08 02 10 02 1a 04 0a 02 00 02 1a 04 0a 02 01 03");
}

TEST(CompileOptions, Overrides) {
  CompileOptions options;
  options.env_option_overrides = {{"b", false}, {"i", int64_t{3}}, {"s", std::string("x")}};
  EXPECT_EQ(hex(options.serialize()),
            "1a 04 20 01 28 01 3a 07 0a 01 62 12 02 10 00 3a 07 0a 01 69 12 02 18 03 "
            "3a 08 0a 01 73 12 03 0a 01 78");
  options.env_option_overrides = {{"d", 1.0}};
  EXPECT_EQ(hex(options.serialize()),
            "1a 04 20 01 28 01 3a 0e 0a 01 64 12 09 21 00 00 00 00 00 00 f0 3f");
}

TEST(CompileOptions, ContradictionsAreRefused) {
  CompileOptions options;
  options.num_partitions = 2;
  EXPECT_THROW(options.serialize(), std::invalid_argument);
  options.use_spmd_partitioning = true;
  options.device_assignment = {{0}};
  EXPECT_THROW(options.serialize(), std::invalid_argument);
  options.device_assignment = {{0, 1}};
  EXPECT_NO_THROW(options.serialize());
  options.compile_portable_executable = true;
  EXPECT_THROW(options.serialize(), std::invalid_argument);
  options = {};
  options.num_replicas = 0;
  EXPECT_THROW(options.serialize(), std::invalid_argument);
}

// The compiler must understand them, not only we.
TEST(CompileOptions, OverridesReachTheCompiler) {
  CompileOptions options = CompileOptions::portable();
  options.env_option_overrides = {{"xla_backend_optimization_level", int64_t{1}},
                                  {"xla_cpu_use_fusion_emitters", false}};
  EXPECT_NO_THROW(testing::cpu_client()->compile(testing::add_program(), options));
  options.env_option_overrides = {{"xla_no_such_flag", true}};
  const Error error = testing::expect_error(
      [&] { testing::cpu_client()->compile(testing::add_program(), options); });
  EXPECT_CONTAINS(error.message(), "xla_no_such_flag");
}

}  // namespace
}  // namespace torch_tpu::pjrt
