// The journal: kinds on and off, the ring, totals, spans, threads.
#include "csrc/base/journal.h"

#include <set>
#include <stdexcept>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

namespace torch_tpu::base::journal {
namespace {

class JournalTest : public ::testing::Test {
 protected:
  void SetUp() override { reset(); }
  void TearDown() override { enable(Kind::kOpLaunch, false); }
};

TEST_F(JournalTest, KeepsWhatHappened) {
  add(Kind::kUpload, "batch", 10, 5, 0xabc, 2, 4096);
  const std::vector<Event> kept = events();
  ASSERT_EQ(kept.size(), 1u);
  EXPECT_EQ(kept[0].kind, Kind::kUpload);
  EXPECT_EQ(kept[0].start_ns, 10);
  EXPECT_EQ(kept[0].duration_ns, 5);
  EXPECT_EQ(kept[0].program, 0xabcu);
  EXPECT_EQ(kept[0].nodes, 2);
  EXPECT_EQ(kept[0].bytes, 4096);
  EXPECT_EQ(texts().at(kept[0].text), "batch");
  EXPECT_FALSE(thread_names().at(kept[0].thread).empty());
}

TEST_F(JournalTest, SingleOpsAreOnlyCountedUntilAskedFor) {
  EXPECT_FALSE(enabled(Kind::kOpLaunch));
  EXPECT_TRUE(enabled(Kind::kLaunch));
  {
    const Span span(Kind::kOpLaunch, "aten::add");
  }
  EXPECT_TRUE(events().empty());
  EXPECT_EQ(count_of(Kind::kOpLaunch).events, 1u);
  enable(Kind::kOpLaunch, true);
  {
    const Span span(Kind::kOpLaunch, "aten::add");
  }
  EXPECT_EQ(events().size(), 1u);
  EXPECT_EQ(count_of(Kind::kOpLaunch).events, 2u);
  enable(Kind::kOpLaunch, false);
  EXPECT_FALSE(enabled(Kind::kOpLaunch));
}

TEST_F(JournalTest, TheRingDropsTheOldestAndCountsAll) {
  const auto total = static_cast<int64_t>(kCapacity) + 100;
  for (int64_t i = 0; i < total; ++i) add(Kind::kLaunch, "p", i, 1);
  const std::vector<Event> kept = events();
  ASSERT_EQ(kept.size(), kCapacity);
  EXPECT_EQ(kept.front().start_ns, 100);
  EXPECT_EQ(kept.back().start_ns, total - 1);
  EXPECT_EQ(dropped(), 100u);
  EXPECT_EQ(count_of(Kind::kLaunch).events, static_cast<uint64_t>(total));
  EXPECT_EQ(count_of(Kind::kLaunch).ns, total);
  ASSERT_EQ(totals().size(), 1u);
  EXPECT_EQ(totals()[0].count.events, static_cast<uint64_t>(total));
}

TEST_F(JournalTest, TotalsByText) {
  add(Kind::kFallback, "aten::a", 0, 5);
  add(Kind::kFallback, "aten::b", 0, 7);
  add(Kind::kFallback, "aten::a", 0, 6, 0, 0, 8);
  add(Kind::kCompile, "aten::a", 0, 100);
  int found = 0;
  for (const Total& total : totals()) {
    if (total.kind != Kind::kFallback || texts().at(total.text) != "aten::a") continue;
    EXPECT_EQ(total.count.events, 2u);
    EXPECT_EQ(total.count.ns, 11);
    EXPECT_EQ(total.count.bytes, 8);
    ++found;
  }
  EXPECT_EQ(found, 1);
}

TEST_F(JournalTest, ASpanMeasures) {
  {
    const Span span(Kind::kHostRead, "copy", 7, 1, 64);
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  const Event event = events().at(0);
  EXPECT_GE(event.duration_ns, 2000000);
  EXPECT_LE(event.start_ns + event.duration_ns, now_ns());
  EXPECT_EQ(event.bytes, 64);
  EXPECT_EQ(event.program, 7u);
}

TEST_F(JournalTest, ACompilationThatThrowsIsAFailedOne) {
  try {
    const Span span(Kind::kCompile, "bad");
    throw std::runtime_error("no");
  } catch (const std::runtime_error&) {
    const Span span(Kind::kCompile, "good, while an error is handled");
  }
  EXPECT_EQ(count_of(Kind::kCompileFailed).events, 1u);
  EXPECT_EQ(count_of(Kind::kCompile).events, 1u);
}

TEST_F(JournalTest, CutsHaveReasons) {
  add_cut(Cut::kHostRead, 12);
  add_cut(Cut::kHostRead, 3);
  add_cut(Cut::kExit);
  EXPECT_EQ(cuts(Cut::kHostRead), 2u);
  EXPECT_EQ(cuts(Cut::kExit), 1u);
  EXPECT_EQ(cuts(Cut::kCollective), 0u);
  EXPECT_EQ(count_of(Kind::kCut).events, 3u);
  EXPECT_EQ(events().at(0).nodes, 12);
  EXPECT_EQ(texts().at(events().at(0).text), "host read");
}

TEST_F(JournalTest, EveryNameIsItsOwn) {
  std::set<std::string> kinds;
  for (int i = 0; i < kNumKinds; ++i) kinds.insert(name(static_cast<Kind>(i)));
  EXPECT_EQ(kinds.size(), static_cast<size_t>(kNumKinds));
  std::set<std::string> reasons;
  for (int i = 0; i < kNumCuts; ++i) reasons.insert(name(static_cast<Cut>(i)));
  EXPECT_EQ(reasons.size(), static_cast<size_t>(kNumCuts));
}

TEST_F(JournalTest, ThreadsWriteTogether) {
  add(Kind::kWarning, "from the first thread", 0, 0);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([t] {
      name_thread("worker " + std::to_string(t), /*background=*/t == 0);
      for (int i = 0; i < 1000; ++i) add(Kind::kCompile, "p", i, 1);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(count_of(Kind::kCompile).events, 4000u);
  EXPECT_EQ(background_compiles(), 1000u);
  EXPECT_EQ(events().size(), 4001u);
  std::set<std::string> seen;
  const std::vector<std::string> names = thread_names();
  for (const Event& event : events()) seen.insert(names.at(event.thread));
  EXPECT_EQ(seen.size(), 5u);
  EXPECT_EQ(seen.count("worker 3"), 1u);
}

TEST_F(JournalTest, ATracerSeesSpans) {
  static std::vector<std::string> seen;
  seen.clear();
  static constexpr Tracer kTracer{
      [](Kind kind, std::string_view text, uint64_t, int64_t, int64_t) noexcept -> void* {
        seen.push_back(std::string("begin ") + name(kind) + " " + std::string(text));
        return &seen;
      },
      [](void* span, bool failed) noexcept {
        EXPECT_EQ(span, &seen);
        seen.push_back(failed ? "failed" : "end");
      }};
  {
    const Span before(Kind::kOpLaunch, "unseen");
  }
  set_tracer(&kTracer);
  EXPECT_TRUE(traced());
  {
    const Span span(Kind::kOpLaunch, "add");  // though such events are not kept
    set_tracer(nullptr);                      // a span that has begun still ends
  }
  EXPECT_FALSE(traced());
  {
    const Span after(Kind::kOpLaunch, "unseen");
  }
  set_tracer(&kTracer);
  try {
    const Span span(Kind::kCompile, "mul");
    throw 1;
  } catch (int) {
  }
  set_tracer(nullptr);
  EXPECT_EQ(seen, (std::vector<std::string>{"begin op_launch add", "end", "begin compile mul",
                                            "failed"}));
  EXPECT_EQ(count_of(Kind::kOpLaunch).events, 3u);
  EXPECT_EQ(count_of(Kind::kCompileFailed).events, 1u);
}

TEST_F(JournalTest, TextsAreBounded) {
  for (int i = 0; i < 20000; ++i) add(Kind::kWarning, "text " + std::to_string(i), 0, 0);
  EXPECT_LE(texts().size(), 16384u);
  EXPECT_EQ(texts().at(events().back().text), "(others)");
}

}  // namespace
}  // namespace torch_tpu::base::journal
