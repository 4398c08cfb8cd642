// Leases on cells: one writer at a time, memory given away only by who alone holds it, and readers
// that never see a cell in the middle of a write.
#include "csrc/device/cell.h"

#include <atomic>
#include <thread>
#include <vector>

#include "tests/cpp/device/test_device.h"

namespace torch_tpu::device {
namespace {

class CellTest : public testing::DeviceTest {
 protected:
  static trace::ValuePtr value() {
    return cell_of(*testing::on_device({1, 2}, {2}).unsafeGetTensorImpl())->load();
  }
};

TEST_F(CellTest, MemoryIsTakenOnlyFromItsOnlyHolder) {
  Cell cell(0);
  trace::ValuePtr held = value();
  cell.store(held);
  {
    Lease lease(cell);
    const trace::ValuePtr other = held;  // a reader in the middle of a call
    EXPECT_FALSE(lease.take(held, /*references=*/1));
  }
  Lease lease(cell);
  EXPECT_TRUE(lease.take(held, /*references=*/1));
  lease.put(value());
  EXPECT_NE(cell.load(), held);
}

TEST_F(CellTest, AnotherValueIsNotTaken) {
  Cell cell(0);
  cell.store(value());
  Lease lease(cell);
  const trace::ValuePtr stranger = value();
  EXPECT_FALSE(lease.take(stranger, /*references=*/1));
}

TEST_F(CellTest, ALeaseThatEndsWithoutAValuePutsTheOldOneBack) {
  Cell cell(0);
  const trace::ValuePtr held = value();
  cell.store(held);
  {
    Lease lease(cell);
    ASSERT_TRUE(lease.take(held, /*references=*/1));
  }
  EXPECT_EQ(cell.load(), held);
}

TEST_F(CellTest, AReaderWaitsWhileTheMemoryIsGivenAway) {
  Cell cell(0);
  const trace::ValuePtr old = value();
  const trace::ValuePtr next = value();
  cell.store(old);
  Lease lease(cell);
  ASSERT_TRUE(lease.take(old, /*references=*/1));
  std::atomic<bool> seen{false};
  std::thread reader([&] {
    EXPECT_EQ(cell.load(), next);
    seen = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_FALSE(seen);
  lease.finish(next);
  reader.join();
}

TEST_F(CellTest, WritersTakeTurnsAndReadersSeeAValue) {
  Cell cell(0);
  cell.store(value());
  std::atomic<int> inside{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&] {
      for (int n = 0; n < 200; ++n) {
        Lease lease(cell);
        EXPECT_EQ(inside.fetch_add(1), 0);
        const trace::ValuePtr old = lease.value();
        if (n % 2 == 0) lease.take(old, /*references=*/1);
        inside.fetch_sub(1);
        lease.finish(value());
      }
    });
  }
  threads.emplace_back([&] {
    for (int n = 0; n < 2000; ++n) EXPECT_TRUE(cell.load());
  });
  for (std::thread& thread : threads) thread.join();
}

// Two calls that write the same two tensors, named in different orders.
TEST_F(CellTest, LeasesOnSeveralCellsDoNotWaitForEachOther) {
  Cell first(0);
  Cell second(0);
  std::vector<std::thread> threads;
  for (int i = 0; i < 2; ++i) {
    threads.emplace_back([&, i] {
      for (int n = 0; n < 500; ++n) {
        Leases leases;
        leases.add(i == 0 ? &first : &second);
        leases.add(i == 0 ? &second : &first);
        leases.add(&first);  // named twice
        leases.begin();
        leases.of(&first).put(value());
        leases.of(&second).put(value());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(first.load());
  EXPECT_TRUE(second.load());
}

}  // namespace
}  // namespace torch_tpu::device
