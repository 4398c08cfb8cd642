// What PyTorch hears about memory: counts, limits, pinned host memory.
#include "csrc/device/allocator.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <c10/core/CachingDeviceAllocator.h>

#include "csrc/device/stream.h"
#include "csrc/trace/value.h"
#include "tests/cpp/device/test_device.h"

namespace torch_tpu::device {
namespace {

class AllocatorTest : public testing::DeviceTest {
 protected:
  void TearDown() override { trace::Ledger::of(0).set_limit(0); }
};

int64_t used() { return trace::Ledger::of(0).counts().current_bytes; }

TEST_F(AllocatorTest, BytesCountFromTheFirstWriteToTheLastHolder) {
  const int64_t before = used();
  const at::Tensor empty =
      at::empty({1024}, at::TensorOptions().device(make_device(0)).dtype(at::kFloat));
  EXPECT_EQ(used(), before);  // nothing was written
  {
    const at::Tensor tensor = testing::on_device(std::vector<float>(1024, 1), {1024});
    const at::Tensor view = tensor.as_strided({2}, {1}, 0);
    EXPECT_EQ(used(), before + 4096);
  }
  EXPECT_EQ(used(), before);
}

TEST_F(AllocatorTest, PyTorchsStatisticsAreTheLedgers) {
  auto* device = static_cast<c10::DeviceAllocator*>(allocator());
  const auto before = device->getDeviceStats(0);
  const at::Tensor tensor = testing::on_device(std::vector<float>(1024, 1), {1024});
  const auto after = device->getDeviceStats(0);
  EXPECT_EQ(after.allocated_bytes[0].current - before.allocated_bytes[0].current, 4096);
  EXPECT_EQ(after.allocation[0].allocated - before.allocation[0].allocated, 1);
  EXPECT_TRUE(device->initialized());
}

TEST_F(AllocatorTest, MoreThanTheLimitIsOutOfMemory) {
  const int64_t failed = trace::Ledger::of(0).counts().out_of_memory;
  trace::Ledger::of(0).set_limit(used() + 1000);
  check_room(0, 1000);
  EXPECT_THROW(check_room(0, 1001), c10::OutOfMemoryError);
  check_room(1, 1 << 20);  // the limit of another device
  EXPECT_EQ(trace::Ledger::of(0).counts().out_of_memory, failed + 1);
}

TEST_F(AllocatorTest, MoreThanTheDeviceHasIsOutOfMemory) {
  ASSERT_GT(total_memory(0), 0);
  EXPECT_ERROR(check_room(0, static_cast<size_t>(total_memory(0)) + 1), c10::OutOfMemoryError,
               "more than the device has");
  EXPECT_LE(free_memory(0), total_memory(0));
}

TEST_F(AllocatorTest, PinnedMemoryIsKnownFromItsFirstToItsLastByte) {
  c10::DataPtr data = pinned_allocator()->allocate(10000);
  const auto* bytes = static_cast<const char*>(data.get());
  EXPECT_EQ(reinterpret_cast<uintptr_t>(bytes) % 4096, 0u);
  EXPECT_TRUE(is_pinned(bytes));
  EXPECT_TRUE(is_pinned(bytes + 9999));
  EXPECT_FALSE(is_pinned(bytes + 10000));
  EXPECT_FALSE(is_pinned(bytes - 1));
  data.clear();
  EXPECT_FALSE(is_pinned(bytes));
}

TEST_F(AllocatorTest, NoPinnedBytesAreNoMemory) {
  const c10::DataPtr data = pinned_allocator()->allocate(0);
  EXPECT_EQ(data.get(), nullptr);
  EXPECT_FALSE(is_pinned(nullptr));
}

}  // namespace
}  // namespace torch_tpu::device
