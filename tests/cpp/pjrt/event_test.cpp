// Waiting, callbacks, errors of events.
#include "csrc/pjrt/event.h"

#include <atomic>
#include <stdexcept>

#include "tests/cpp/pjrt/test_util.h"

namespace torch_tpu::pjrt {
namespace {

using testing::upload;

TEST(Event, EmptyIsDone) {
  const Event event;
  EXPECT_FALSE(event);
  EXPECT_TRUE(event.is_ready());
  event.await();
  int calls = 0;
  event.on_ready([&](const Error* error) {
    EXPECT_EQ(error, nullptr);
    ++calls;
  });
  EXPECT_EQ(calls, 1);
}

TEST(Event, ReadyEventOfABuffer) {
  const Buffer buffer = upload({1, 2, 3, 4, 5, 6}, {2, 3});
  Event event = buffer.ready_event();
  event.await();
  event.await();
  EXPECT_TRUE(event.is_ready());

  Event moved = std::move(event);
  EXPECT_FALSE(event);  // NOLINT: the moved-from state is specified
  EXPECT_TRUE(moved);
  moved = Event();
  EXPECT_FALSE(moved);
}

TEST(Event, CallbackRunsOnceAfterTheEventIsGone) {
  std::atomic<int> calls = 0;
  const Buffer buffer = upload(std::vector<float>(1 << 20, 1.0F), {1 << 20});
  {
    const Event event = buffer.ready_event();
    event.on_ready([&](const Error* error) {
      EXPECT_EQ(error, nullptr);
      ++calls;
    });
  }
  buffer.await();
  while (calls == 0) std::this_thread::yield();
  EXPECT_EQ(calls, 1);
}

TEST(Event, CallbackMayThrow) {
  const Buffer buffer = upload({1, 2, 3, 4, 5, 6}, {2, 3});
  buffer.await();
  buffer.ready_event().on_ready([](const Error*) { throw std::runtime_error("dropped"); });
}

TEST(Event, ErrorsKeepTheirCode) {
  Buffer buffer = upload({1, 2, 3, 4, 5, 6}, {2, 3});
  buffer.delete_memory();
  EXPECT_TRUE(buffer.is_deleted());
  const Error error = testing::expect_error([&] { buffer.await(); });
  EXPECT_NE(error.code(), PJRT_Error_Code_OK);
  EXPECT_FALSE(error.message().empty());
}

}  // namespace
}  // namespace torch_tpu::pjrt
