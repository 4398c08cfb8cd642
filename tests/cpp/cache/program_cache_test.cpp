// The program cache: structural equality, first one in wins, bounded size, threads.
#include "csrc/cache/program_cache.h"

#include <thread>
#include <vector>

#include <gtest/gtest.h>

namespace torch_tpu::cache {
namespace {

trace::Key key_of(uint64_t a, uint64_t b) {
  trace::Key key;
  key.add(a);
  key.add(b);
  return key;
}

// Null where nothing is known.
trace::ProgramPtr as_program(const trace::Answer& answer) {
  return trace::is_known(answer) ? std::get<trace::ProgramPtr>(answer) : trace::ProgramPtr();
}

trace::ProgramPtr program(const char* name) {
  auto out = c10::make_intrusive<trace::Program>();
  out->name = name;
  return out;
}

TEST(ProgramCache, FindsWhatWasInserted) {
  ProgramCache cache(100);
  const trace::Key key = key_of(1, 2);
  EXPECT_FALSE(as_program(cache.find(key, key.hash())));
  cache.insert(key, key.hash(), program("a"));
  const trace::ProgramPtr found = as_program(cache.find(key, key.hash()));
  ASSERT_TRUE(found);
  EXPECT_EQ(found->name, "a");
  const CacheStats stats = cache.stats();
  EXPECT_EQ(stats.hits, 1u);
  EXPECT_EQ(stats.misses, 1u);
  EXPECT_EQ(stats.programs, 1u);
}

TEST(ProgramCache, EqualHashesOfDifferentKeysAreDifferentPrograms) {
  ProgramCache cache(100);
  const uint64_t hash = 42;  // a forced collision
  cache.insert(key_of(1, 2), hash, program("a"));
  EXPECT_FALSE(as_program(cache.find(key_of(2, 1), hash)));
  cache.insert(key_of(2, 1), hash, program("b"));
  EXPECT_EQ(as_program(cache.find(key_of(1, 2), hash))->name, "a");
  EXPECT_EQ(as_program(cache.find(key_of(2, 1), hash))->name, "b");
}

TEST(ProgramCache, TheFirstOfTwoBuildersWins) {
  ProgramCache cache(100);
  const trace::Key key = key_of(7, 7);
  EXPECT_EQ(as_program(cache.insert(key, key.hash(), program("first")))->name, "first");
  EXPECT_EQ(as_program(cache.insert(key, key.hash(), program("second")))->name, "first");
  EXPECT_EQ(cache.stats().programs, 1u);
}

TEST(ProgramCache, EvictsTheLeastRecentlyUsed) {
  ProgramCache cache(64);
  for (uint64_t i = 0; i < 64; ++i) cache.insert(key_of(i, 0), key_of(i, 0).hash(), program("x"));
  const trace::Key kept = key_of(0, 0);
  ASSERT_TRUE(as_program(cache.find(kept, kept.hash())));  // now the most recent
  for (uint64_t i = 64; i < 72; ++i) cache.insert(key_of(i, 0), key_of(i, 0).hash(), program("x"));
  EXPECT_TRUE(as_program(cache.find(kept, kept.hash())));
  const trace::Key dropped = key_of(1, 0);
  EXPECT_FALSE(as_program(cache.find(dropped, dropped.hash())));
  EXPECT_LE(cache.stats().programs, 64u);
  EXPECT_GE(cache.stats().evictions, 8u);
}

TEST(ProgramCache, GrowsPastItsFirstTable) {
  ProgramCache cache(100000);
  for (uint64_t i = 0; i < 5000; ++i) {
    const trace::Key key = key_of(i, i * 3);
    cache.insert(key, key.hash(), program("x"));
  }
  for (uint64_t i = 0; i < 5000; ++i) {
    const trace::Key key = key_of(i, i * 3);
    EXPECT_TRUE(as_program(cache.find(key, key.hash())));
  }
  cache.clear();
  EXPECT_EQ(cache.stats().programs, 0u);
}

TEST(ProgramCache, ThreadsShareIt) {
  ProgramCache cache(256);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&cache] {
      for (uint64_t i = 0; i < 2000; ++i) {
        const trace::Key key = key_of(i % 400, 1);
        if (!as_program(cache.find(key, key.hash()))) cache.insert(key, key.hash(), program("x"));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_LE(cache.stats().programs, 256u);
  EXPECT_EQ(cache.stats().hits + cache.stats().misses, 8000u);
}

TEST(ProgramCache, TellsAboutItsPrograms) {
  ProgramCache cache(100);
  const trace::Key key = key_of(1, 1);
  cache.insert(key, key.hash(), program("good"));
  EXPECT_TRUE(as_program(cache.find(key, key.hash())));
  as_program(cache.find(key, key.hash()))->runs = 3;
  cache.insert(
      key_of(2, 2), 2,
      std::make_shared<const trace::Refusal>(trace::Refusal{"bad", "not for these arguments"}));
  cache.insert(key_of(3, 3), 3, std::make_shared<const trace::Resizes>());
  std::vector<ProgramInfo> infos = cache.programs();
  ASSERT_EQ(infos.size(), 2u);
  if (infos[0].name == "bad") std::swap(infos[0], infos[1]);
  EXPECT_EQ(infos[0].name, "good");
  EXPECT_EQ(infos[0].hits, 2u);
  EXPECT_EQ(infos[0].runs, 3u);
  EXPECT_EQ(infos[0].state, ProgramInfo::State::kSeenOnce);  // nobody compiled it
  EXPECT_EQ(memory_of(infos[0]).argument_bytes, 0);          // it has no executable
  EXPECT_EQ(infos[1].state, ProgramInfo::State::kFailed);
  EXPECT_EQ(infos[1].reason, "not for these arguments");
}

TEST(ProgramInfo, OtherKeepersAreAskedToo) {
  const size_t before = all_programs().size();
  add_program_source([] {
    ProgramInfo info;
    info.name = "fused";
    info.fused = true;
    info.state = ProgramInfo::State::kCompiling;
    return std::vector<ProgramInfo>{info};
  });
  const std::vector<ProgramInfo> infos = all_programs();
  ASSERT_EQ(infos.size(), before + 1);
  EXPECT_TRUE(infos.back().fused);
  EXPECT_STREQ(name(infos.back().state), "compiling");
}

TEST(Key, TextAndShapesAreCompared) {
  trace::Key a, b, c;
  a.add_text("mean");
  b.add_text("mean");
  c.add_text("mean ");
  EXPECT_TRUE(a == b);
  EXPECT_FALSE(a == c);
  EXPECT_EQ(a.hash(), b.hash());
}

}  // namespace
}  // namespace torch_tpu::cache
