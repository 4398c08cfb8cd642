// The call wrapper, errors, and named values.
#include "csrc/pjrt/api.h"

#include <cstddef>
#include <cstring>

#include <sys/wait.h>
#include <unistd.h>

#include "csrc/pjrt/call.h"
#include "csrc/pjrt/named_value.h"
#include "tests/cpp/pjrt/test_util.h"

namespace torch_tpu::pjrt {
namespace {

using testing::expect_error;

TEST(Api, MakeArgsIsZeroedWithItsSize) {
  const auto args = make_args<PJRT_Client_Create_Args>();
  EXPECT_EQ(args.struct_size, sizeof(args));
  EXPECT_EQ(args.create_options, nullptr);
  EXPECT_EQ(args.kv_try_get_user_arg, nullptr);
}

TEST(Api, FunctionsBeyondAnOldTableAreRefused) {
  // A plugin built against a header that ended before this function.
  PJRT_Api old = *testing::cpu_client()->api();
  old.struct_size = offsetof(PJRT_Api, PJRT_Buffer_CopyToMemory);
  old.pjrt_api_version.minor_version = 30;
  EXPECT_TRUE(TORCH_TPU_PJRT_HAS(&old, PJRT_Client_Create));
  EXPECT_FALSE(TORCH_TPU_PJRT_HAS(&old, PJRT_Buffer_CopyToMemory));

  auto args = make_args<PJRT_Buffer_CopyToMemory_Args>();
  const Error error =
      expect_error([&] { TORCH_TPU_PJRT_CALL(&old, PJRT_Buffer_CopyToMemory, args); });
  EXPECT_EQ(error.code(), PJRT_Error_Code_UNIMPLEMENTED);
  EXPECT_EQ(error.function(), "PJRT_Buffer_CopyToMemory");
  EXPECT_CONTAINS(error.message(), "0.30");
  TORCH_TPU_PJRT_CALL_NOEXCEPT(&old, PJRT_Buffer_CopyToMemory, args);
}

TEST(Api, NullEntriesAreRefused) {
  PJRT_Api api = *testing::cpu_client()->api();
  api.PJRT_Client_DmaMap = nullptr;
  auto args = make_args<PJRT_Client_DmaMap_Args>();
  const Error error = expect_error([&] { TORCH_TPU_PJRT_CALL(&api, PJRT_Client_DmaMap, args); });
  EXPECT_TRUE(error.is_unimplemented());
}

TEST(Api, AForkedChildCallsNothing) {
  PJRT_Api api = *testing::cpu_client()->api();
  static int calls = 0;
  api.PJRT_Event_Destroy = [](PJRT_Event_Destroy_Args*) -> PJRT_Error* {
    ++calls;
    return nullptr;
  };
  auto args = make_args<PJRT_Event_Destroy_Args>();
  TORCH_TPU_PJRT_CALL_NOEXCEPT(&api, PJRT_Event_Destroy, args);
  ASSERT_EQ(calls, 1);
  base::begin_bad_forks();
  const pid_t child = fork();
  if (child == 0) {
    bool refused = false;
    TORCH_TPU_PJRT_CALL_NOEXCEPT(&api, PJRT_Event_Destroy, args);
    try {
      TORCH_TPU_PJRT_CALL(&api, PJRT_Event_Destroy, args);
    } catch (const std::runtime_error& error) {
      refused = std::strstr(error.what(), "in forked subprocess") != nullptr;
    }
    _exit(refused && calls == 1 ? 0 : 1);
  }
  base::end_bad_forks();
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST(Error, KeepsCodeFunctionAndMessage) {
  const Error error(PJRT_Error_Code_RESOURCE_EXHAUSTED, "PJRT_X", "no room");
  EXPECT_STREQ(error.what(), "[PJRT_X] RESOURCE_EXHAUSTED: no room");
  EXPECT_TRUE(error.is_out_of_memory());
  EXPECT_EQ(error.message(), "no room");
  EXPECT_STREQ(code_name(PJRT_Error_Code_UNAUTHENTICATED), "UNAUTHENTICATED");
  EXPECT_STREQ(code_name(static_cast<PJRT_Error_Code>(99)), "UNKNOWN");
}

TEST(NamedValue, RoundTrip) {
  const NamedValues values = {{"text", std::string("abc")},
                              {"number", int64_t{-5}},
                              {"list", std::vector<int64_t>{2, 3}},
                              {"real", 0.5F},
                              {"flag", true},
                              {"empty", std::string()}};
  const auto raw = to_pjrt(values);
  EXPECT_EQ(from_pjrt(raw.data(), raw.size()), values);
  EXPECT_EQ(from_pjrt(nullptr, 0), NamedValues());
  EXPECT_EQ(to_string(values.at("list")), "[2, 3]");
  EXPECT_EQ(to_string(values.at("flag")), "true");
  EXPECT_EQ(to_string(values.at("number")), "-5");
}

}  // namespace
}  // namespace torch_tpu::pjrt
