// What a forked child finds: marks, objects of its own, locks that
// are free.
#include "csrc/base/fork.h"

#include <atomic>
#include <functional>
#include <mutex>
#include <thread>

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

namespace torch_tpu::base {
namespace {

// Whether `check` holds in a child; a child that hangs is ended by its alarm.
bool holds_in_child(const std::function<bool()>& check) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);
    _exit(check() ? 0 : 1);
  }
  int status = -1;
  waitpid(child, &status, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

TEST(Fork, MarksKnowAChild) {
  const ForkMark mark;
  EXPECT_FALSE(mark.forked_since());
  EXPECT_TRUE(holds_in_child([&] { return mark.forked_since() && !ForkMark().forked_since(); }));
  EXPECT_FALSE(mark.forked_since());
}

TEST(Fork, IsBadOnlyWhileSaidSo) {
  EXPECT_FALSE(in_bad_fork());
  EXPECT_TRUE(holds_in_child([] { return !in_bad_fork(); }));
  begin_bad_forks();
  EXPECT_FALSE(in_bad_fork());
  EXPECT_TRUE(holds_in_child([] { return in_bad_fork(); }));
  EXPECT_TRUE(holds_in_child([] { return holds_in_child([] { return in_bad_fork(); }); }));
  end_bad_forks();
  EXPECT_TRUE(holds_in_child([] { return !in_bad_fork(); }));
}

TEST(Fork, AChildHasObjectsOfItsOwn) {
  static PerProcess<int> number;
  number.get() = 5;
  EXPECT_EQ(number.get(), 5);
  EXPECT_TRUE(holds_in_child([] {
    const bool fresh = number.get() == 0;
    number.get() = 6;
    return fresh && number.get() == 6;
  }));
  EXPECT_EQ(number.get(), 5);
}

TEST(Fork, WaitsForLocksThatAChildNeeds) {
  static std::mutex mutex;
  hold_while_forking(mutex);
  std::atomic<bool> over{false};
  std::thread other([&] {
    while (!over) const std::lock_guard lock(mutex);
  });
  for (int i = 0; i < 50; ++i) {
    EXPECT_TRUE(holds_in_child([] {
      const std::lock_guard lock(mutex);
      return true;
    }));
  }
  over = true;
  other.join();
}

}  // namespace
}  // namespace torch_tpu::base
