#include "csrc/distributed/group.h"

#include <csignal>
#include <future>
#include <thread>

#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "csrc/base/interrupt.h"
#include "csrc/distributed/waiters.h"

namespace torch_tpu::distributed {
namespace {

using namespace std::chrono_literals;

GroupInfo info(const std::string& name) {
  GroupInfo info;
  info.name = name;
  info.ranks = {0};
  info.store = c10::make_intrusive<c10d::HashStore>();
  info.timeout = 10s;
  return info;
}

// A call that needs no tensor; it waits for its turn on a device, and so goes to the group's
// thread.
CollectivePtr queued(std::function<void()> body) {
  auto call = std::make_shared<Collective>();
  call->op = "test";
  call->in_turn = true;
  call->start = [body = std::move(body)](Collective&) {
    body();
    return std::vector<WorkPtr>();
  };
  return call;
}

bool blocked_here(int signal) {
  sigset_t mask;
  pthread_sigmask(SIG_SETMASK, nullptr, &mask);
  return sigismember(&mask, signal) == 1;
}

template <typename T>
bool ends(const std::weak_ptr<T>& object) {
  for (int i = 0; i < 500 && !object.expired(); ++i) std::this_thread::sleep_for(10ms);
  return object.expired();
}

TEST(Group, ItsThreadMayDropTheLastReference) {
  for (int turn = 0; turn < 20; ++turn) {
    auto group = std::make_shared<Group>(info("dropped"));
    const std::weak_ptr<Group> weak = group;
    Turn before(Turns::of(0));
    const CollectivePtr call = queued([] {});
    std::promise<bool> dropped;
    call->promise->on_done([&] {
      group->stop();
      group.reset();
      dropped.set_value(!weak.expired());  // the thread itself still has one
    });
    std::shared_ptr<Group>(group)->issue(call);
    before.pass();
    EXPECT_TRUE(dropped.get_future().get());
    EXPECT_TRUE(ends(weak));
  }
}

TEST(Group, WhoseCallEndsMayCallAgain) {
  auto group = std::make_shared<Group>(info("again"));
  Turn before(Turns::of(0));
  const CollectivePtr first = queued([] {}), second = queued([] {});
  std::promise<void> issued;
  first->promise->on_done([&] {
    group->issue(second);
    issued.set_value();
  });
  group->issue(first);
  before.pass();
  ASSERT_EQ(issued.get_future().wait_for(5s), std::future_status::ready);
  EXPECT_TRUE(second->promise->wait_for(5s));
  group->stop();
}

TEST(Group, AStoppedOneServesWhatCameAtTheLastMoment) {
  auto group = std::make_shared<Group>(info("stopped"));
  const std::weak_ptr<Group> weak = group;
  group->stop();
  Turn before(Turns::of(0));
  const CollectivePtr call = queued([] {});
  group->issue(call);
  before.pass();
  EXPECT_TRUE(call->promise->wait_for(5s));
  group.reset();
  EXPECT_TRUE(ends(weak));
}

TEST(Group, ThreadsGetNoSignals) {
  auto group = std::make_shared<Group>(info("signals"));
  Turn before(Turns::of(0));
  bool quiet = false;
  const CollectivePtr call = queued(
      [&] { quiet = blocked_here(SIGINT) && blocked_here(SIGPROF) && blocked_here(SIGTERM); });
  group->issue(call);
  before.pass();
  call->promise->wait();
  EXPECT_TRUE(quiet);
  group->stop();

  std::promise<bool> answer;
  Waiters::get().run([&] { answer.set_value(blocked_here(SIGINT) && !blocked_here(SIGSEGV)); });
  EXPECT_TRUE(answer.get_future().get());
  EXPECT_FALSE(blocked_here(SIGINT));  // the caller's are its own again
}

TEST(Group, ASignalEndsTheWaitOfShutdown) {
  auto group = std::make_shared<Group>(info("interrupted"));
  auto before = std::make_unique<Turn>(Turns::of(0));
  const CollectivePtr call = queued([] {});
  group->issue(call);
  base::set_interrupt_check([] { throw base::Interrupted(); });
  EXPECT_THROW(group->shutdown(/*in_destructor=*/false), base::Interrupted);
  EXPECT_FALSE(group->failed());
  before->pass();
  group->shutdown(/*in_destructor=*/true);
  base::set_interrupt_check(nullptr);
  EXPECT_TRUE(call->promise->wait_for(5s));
  EXPECT_TRUE(group->failed());  // destroyed
  group->stop();
}

TEST(Group, KnowsWhatAllRanksHaveCalled) {
  auto group = std::make_shared<Group>(info("met"));
  const auto run = [&](bool rooted, bool transport) {
    auto call = std::make_shared<Collective>();
    call->op = rooted ? "broadcast" : "all_reduce";
    call->rooted = rooted;
    call->start = [transport](Collective&) {
      std::vector<WorkPtr> works;
      if (transport) {
        auto done = c10::make_intrusive<c10::ivalue::Future>(c10::NoneType::get());
        done->markCompleted();
        works.push_back(c10d::Work::create_from_future(done));
      }
      return works;
    };
    group->issue(call);
    call->promise->wait();
  };
  EXPECT_EQ(group->progress().met, 0u);
  run(/*rooted=*/false, /*transport=*/true);
  EXPECT_EQ(group->progress().met, 1u);
  run(/*rooted=*/true, /*transport=*/true);
  run(/*rooted=*/false, /*transport=*/false);  // no elements: nothing was sent
  EXPECT_EQ(group->progress().met, 1u);
  EXPECT_EQ(group->progress().met_last, "all_reduce ");
  EXPECT_EQ(group->progress().issued, 3u);
  EXPECT_EQ(group->progress().done, 3u);
  Turn before(Turns::of(0));
  group->issue(queued([] {}));
  EXPECT_EQ(group->progress().issued, 4u);
  EXPECT_EQ(group->progress().done, 3u);
  before.pass();
  group->shutdown(/*in_destructor=*/false);
  EXPECT_EQ(group->progress().done, 4u);
  group->stop();
}

}  // namespace
}  // namespace torch_tpu::distributed
