// Streams, which are labels, and events, which know when the work before them was finished.
#include "csrc/device/stream.h"

#include <set>
#include <thread>

#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>

#include "tests/cpp/device/test_device.h"

namespace torch_tpu::device {
namespace {

class StreamTest : public testing::DeviceTest {
 protected:
  void TearDown() override { set_launch_pending(nullptr); }
};

TEST_F(StreamTest, TheCurrentStreamBelongsToAThreadAndADevice) {
  EXPECT_EQ(current_stream(0), default_stream(0));
  const c10::Stream mine = new_stream(0);
  EXPECT_EQ(exchange_stream(mine), default_stream(0));
  EXPECT_EQ(current_stream(0), mine);
  EXPECT_EQ(current_stream(1), default_stream(1));
  c10::Stream elsewhere = mine;
  std::thread([&] { elsewhere = current_stream(0); }).join();
  EXPECT_EQ(elsewhere, default_stream(0));
  EXPECT_EQ(exchange_stream(default_stream(0)), mine);
}

TEST_F(StreamTest, ThePoolGoesRoundAndNewStreamsAreOutsideIt) {
  std::set<c10::StreamId> pool;
  for (int i = 0; i < 100; ++i) pool.insert(pool_stream(0).id());
  EXPECT_EQ(pool.size(), 32u);
  EXPECT_EQ(pool.count(default_stream(0).id()), 0u);
  const c10::Stream one = new_stream(0);
  EXPECT_NE(one, new_stream(0));
  EXPECT_EQ(pool.count(one.id()), 0u);
}

TEST_F(StreamTest, PyTorchsGuardSetsAStreamAndComesBack) {
  const c10::Stream stream = pool_stream(0);
  {
    const c10::StreamGuard guard(stream);
    EXPECT_EQ(current_stream(0), stream);
  }
  EXPECT_EQ(current_stream(0), default_stream(0));
}

TEST_F(StreamTest, WaitingLaunchesWhatIsHeldBack) {
  static int launched = -1;
  launched = -1;
  set_launch_pending([](int device) { launched = device; });
  synchronize(1);
  EXPECT_EQ(launched, 1);
  EXPECT_TRUE(idle(0));
  EXPECT_EQ(launched, 0);
}

class EventTest : public testing::DeviceTest {};

TEST_F(EventTest, OneThatWasNeverRecordedIsDone) {
  const Event event;
  EXPECT_TRUE(event.query());
  event.synchronize();
}

TEST_F(EventTest, IsDoneOnceTheWorkBeforeItIs) {
  const at::Tensor tensor = testing::on_device(std::vector<float>(1 << 16, 1), {1 << 16});
  Event event;
  event.record(0);
  event.synchronize();
  EXPECT_TRUE(event.query());
  synchronize(0);
  EXPECT_TRUE(idle(0));
}

TEST_F(EventTest, TimeRunsFromTheFirstToTheSecond) {
  Event start, end;
  EXPECT_ERROR(start.elapsed_ms(end), c10::ValueError, "Both events must be recorded");
  start.record(0);
  end.record(0);
  end.synchronize();
  EXPECT_TRUE(start.query());  // events of a device are done in order
  EXPECT_GE(start.elapsed_ms(end), 0.0);
  EXPECT_LE(end.elapsed_ms(start), 0.0);
}

TEST_F(EventTest, MayBeGoneBeforeItsWorkIs) {
  const at::Tensor tensor = testing::on_device(std::vector<float>(1 << 16, 1), {1 << 16});
  for (int i = 0; i < 100; ++i) Event().record(0);
  Event::synchronize_all(0);
}

TEST_F(EventTest, OneThreadRecordsWhileOthersWait) {
  Event event;
  event.record(0);
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      event.synchronize();
      EXPECT_TRUE(event.query());
    });
  }
  for (int i = 0; i < 100; ++i) Event().record(0);
  for (std::thread& thread : threads) thread.join();
}

TEST_F(EventTest, PyTorchsEventsAreOurs) {
  c10::Event event(kTpu);
  EXPECT_FALSE(event.was_marked_for_recording());
  event.record(default_stream(0));
  event.synchronize();
  EXPECT_TRUE(event.query());
  EXPECT_ERROR(event.record(default_stream(1)), c10::Error, "does not match recording stream's");
}

}  // namespace
}  // namespace torch_tpu::device
