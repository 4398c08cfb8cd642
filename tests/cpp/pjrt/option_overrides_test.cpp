#include "csrc/pjrt/option_overrides.h"

#include <gtest/gtest.h>

namespace torch_tpu::pjrt {
namespace {

TEST(OptionOverrides, AreTheFirstLineOfAModule) {
  const OptionOverrides options{{"xla_flag", true},
                                {"xla_level", int64_t{-3}},
                                {"xla_rate", 0.1},
                                {"xla_text", std::string("a=b:c")}};
  const std::string line = to_line(options);
  EXPECT_EQ(line,
            "// compile options: xla_flag=b:1 xla_level=i:-3 xla_rate=d:0.10000000000000001 "
            "xla_text=s:a=b:c\n");
  EXPECT_EQ(overrides_of(line + "module @m {}\n"), options);
}

TEST(OptionOverrides, NoneAreNoLine) {
  EXPECT_EQ(to_line({}), "");
  EXPECT_TRUE(overrides_of("module @m {}\n").empty());
  EXPECT_TRUE(overrides_of("").empty());
  EXPECT_EQ(serialize_overrides({}), "");
}

TEST(OptionOverrides, RefuseWhatWouldBreakTheLine) {
  EXPECT_THROW(to_line({{"a b", true}}), std::invalid_argument);
  EXPECT_THROW(to_line({{"a", std::string("x\ny")}}), std::invalid_argument);
  EXPECT_THROW(to_line({{"a=b", true}}), std::invalid_argument);
  EXPECT_THROW(to_line({{"", true}}), std::invalid_argument);
}

TEST(OptionOverrides, FollowOtherOptions) {
  CompileOptions options = CompileOptions::portable();
  const std::string plain = options.serialize();
  options.env_option_overrides = {{"xla_level", int64_t{1}}};
  EXPECT_EQ(options.serialize(), plain + serialize_overrides(options.env_option_overrides));
}

}  // namespace
}  // namespace torch_tpu::pjrt
