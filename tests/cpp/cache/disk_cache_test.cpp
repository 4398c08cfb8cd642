// The folder of programs: what goes in comes out, damage is found, others' folders are refused, and
// nothing ever throws.
#include "csrc/cache/disk_cache.h"

#include <algorithm>
#include <csignal>
#include <thread>

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/cpp/cache/test_folder.h"

namespace torch_tpu::cache {
namespace {

namespace fs = std::filesystem;
using Key = std::vector<uint64_t>;

std::string blob_of(uint64_t seed, size_t size) {
  std::string out;
  for (size_t i = 0; i < size; ++i) out += static_cast<char>(seed * 131 + i * 7);
  return out;
}

TEST(DiskCache, KeepsBytesBetweenProcesses) {
  const TestFolder folder;
  Warnings warnings;
  const Key key{1, 2, 3};
  {
    DiskCache cache(folder / "a/b", test_fingerprint(), 0, warnings.sink());
    EXPECT_FALSE(cache.load(key));
    cache.store(key, "hello");
    EXPECT_EQ(cache.load(key), "hello");
    cache.store(key, "again");
  }
  DiskCache other(folder / "a/b", test_fingerprint(), 0, warnings.sink());
  EXPECT_EQ(other.load(key), "again");
  EXPECT_FALSE(other.load(Key{1, 2}));
  EXPECT_FALSE(other.load(Key{1, 2, 4}));
  EXPECT_EQ(other.stats().hits, 1u);
  EXPECT_EQ(other.stats().misses, 2u);
  EXPECT_TRUE(warnings.texts.empty());
  struct stat info{};
  ASSERT_EQ(stat((folder / "a/b").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0700u);
  ASSERT_EQ(stat(entry_files(folder.path()).at(0).c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
}

TEST(DiskCache, EmptyKeysAndBlobsAreFine) {
  const TestFolder folder;
  DiskCache cache(folder.path(), test_fingerprint(), 0);
  cache.store(Key{}, "");
  EXPECT_EQ(cache.load(Key{}), "");
}

TEST(DiskCache, FingerprintsDoNotMeet) {
  const TestFolder folder;
  const Key key{5};
  DiskCache one(folder.path(), test_fingerprint("1"), 0);
  DiskCache two(folder.path(), test_fingerprint("2"), 0);
  one.store(key, "one");
  EXPECT_FALSE(two.load(key));
  // Not even when somebody moves the files.
  const fs::path from = entry_files(folder.path()).at(0);
  two.store(Key{6}, "x");
  fs::copy(from, folder / test_fingerprint("2").folder_name() / from.filename());
  EXPECT_FALSE(two.load(key));
  EXPECT_EQ(two.stats().damaged, 0u);
  const std::string description =
      read_file(folder / test_fingerprint("1").folder_name() + "/namespace.json");
  EXPECT_NE(description.find("\"torch\": \"2.13.0\""), description.npos) << description;
}

// A flipped bit anywhere: header, counts, fingerprint, key, blob, checksum.
TEST(DiskCache, EveryFlippedBitIsFound) {
  const TestFolder folder;
  const Key key{11, 22};
  Warnings warnings;
  DiskCache cache(folder.path(), test_fingerprint(), 0, warnings.sink());
  cache.store(key, blob_of(3, 100));
  const std::string path = entry_files(folder.path()).at(0);
  const std::string good = read_file(path);
  for (size_t i = 0; i < good.size(); ++i) {
    std::string bad = good;
    bad[i] = static_cast<char>(bad[i] ^ (1 << (i % 8)));
    write_file(path, bad);
    EXPECT_FALSE(cache.load(key)) << "byte " << i;
    EXPECT_FALSE(fs::exists(path)) << "byte " << i;
  }
  EXPECT_EQ(cache.stats().damaged, good.size());
  ASSERT_EQ(warnings.texts.size(), 1u);  // once
  EXPECT_NE(warnings.texts[0].find(path), std::string::npos) << warnings.texts[0];
  cache.store(key, "new");
  EXPECT_EQ(cache.load(key), "new");
}

TEST(DiskCache, EveryTruncationIsFound) {
  const TestFolder folder;
  const Key key{11, 22};
  Warnings warnings;
  DiskCache cache(folder.path(), test_fingerprint(), 0, warnings.sink());
  cache.store(key, blob_of(3, 50));
  const std::string path = entry_files(folder.path()).at(0);
  const std::string good = read_file(path);
  for (size_t size = 0; size < good.size(); ++size) {
    write_file(path, good.substr(0, size));
    EXPECT_FALSE(cache.load(key)) << size;
  }
  write_file(path, good + "x");
  EXPECT_FALSE(cache.load(key));
  write_file(path, good);
  EXPECT_EQ(cache.load(key), blob_of(3, 50));
}

TEST(DiskCache, AFolderOthersMayWriteIsRefusedOnce) {
  const TestFolder folder;
  ASSERT_EQ(chmod(folder.path().c_str(), 0777), 0);
  Warnings warnings;
  DiskCache cache(folder.path(), test_fingerprint(), 0, warnings.sink());
  for (int i = 0; i < 3; ++i) {
    cache.store(Key{1}, "x");
    EXPECT_FALSE(cache.load(Key{1}));
  }
  EXPECT_FALSE(cache.on());
  EXPECT_TRUE(entry_files(folder.path()).empty());
  ASSERT_EQ(warnings.texts.size(), 1u);
  for (const std::string& part : {folder.path(), std::string("0777"), std::string("chmod go-w")}) {
    EXPECT_NE(warnings.texts[0].find(part), std::string::npos) << warnings.texts[0];
  }
}

TEST(DiskCache, AFolderOfSomebodyElseIsRefused) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can give a folder away";
  const TestFolder folder;
  ASSERT_EQ(chown(folder.path().c_str(), 12345, 12345), 0);
  Warnings warnings;
  DiskCache cache(folder.path(), test_fingerprint(), 0, warnings.sink());
  cache.store(Key{1}, "x");
  ASSERT_EQ(warnings.texts.size(), 1u);
  EXPECT_NE(warnings.texts[0].find("user 12345"), std::string::npos) << warnings.texts[0];
}

TEST(DiskCache, AnUnsafeSubfolderIsRefusedToo) {
  const TestFolder folder;
  const std::string inner = folder / test_fingerprint().folder_name();
  ASSERT_EQ(mkdir(inner.c_str(), 0700), 0);
  ASSERT_EQ(chmod(inner.c_str(), 0770), 0);
  Warnings warnings;
  DiskCache cache(folder.path(), test_fingerprint(), 0, warnings.sink());
  cache.store(Key{1}, "x");
  EXPECT_EQ(warnings.texts.size(), 1u);
  EXPECT_TRUE(entry_files(folder.path()).empty());
}

TEST(DiskCache, AFileInPlaceOfTheFolderIsNoDisaster) {
  const TestFolder folder;
  write_file(folder / "file", "");
  Warnings warnings;
  DiskCache cache(folder / "file", test_fingerprint(), 0, warnings.sink());
  cache.store(Key{1}, "x");
  EXPECT_FALSE(cache.load(Key{1}));
  EXPECT_EQ(warnings.texts.size(), 1u);
}

// In a child, as the limit stays: files may not grow past 512 bytes, which is what a full disk
// looks like to write().
TEST(DiskCache, AFullDiskIsReportedOnce) {
  const TestFolder folder;
  const pid_t child = fork();
  if (child == 0) {
    std::signal(SIGXFSZ, SIG_IGN);
    rlimit limit{512, 512};
    setrlimit(RLIMIT_FSIZE, &limit);
    Warnings warnings;
    DiskCache cache(folder.path(), test_fingerprint(), 0, warnings.sink());
    for (uint64_t i = 0; i < 5; ++i) cache.store(Key{i}, blob_of(i, 4000));
    const bool ok = warnings.texts.size() == 1 && !cache.load(Key{1}) &&
                    cache.stats().failures == 1 && entry_files(folder.path()).empty() &&
                    warnings.texts[0].find(folder.path()) != std::string::npos;
    _exit(ok ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  for (const auto& file : fs::recursive_directory_iterator(folder.path())) {
    EXPECT_TRUE(file.is_directory()) << file.path();  // no temporary file is left
  }
}

TEST(DiskCache, AReadOnlyFolderCanBeRead) {
  if (geteuid() == 0) GTEST_SKIP() << "root may write everywhere";
  const TestFolder folder;
  DiskCache(folder.path(), test_fingerprint(), 0).store(Key{1}, "x");
  const std::string inner = folder / test_fingerprint().folder_name();
  ASSERT_EQ(chmod(inner.c_str(), 0500), 0);
  Warnings warnings;
  DiskCache cache(folder.path(), test_fingerprint(), 0, warnings.sink());
  EXPECT_EQ(cache.load(Key{1}), "x");
  cache.store(Key{2}, "y");
  cache.store(Key{3}, "y");
  EXPECT_EQ(warnings.texts.size(), 1u);
  EXPECT_EQ(cache.load(Key{1}), "x");
  chmod(inner.c_str(), 0700);
}

TEST(DiskCache, ARemovedFolderIsMadeAgain) {
  const TestFolder folder;
  DiskCache cache(folder / "x", test_fingerprint(), 0);
  cache.store(Key{1}, "one");
  fs::remove_all(folder / "x");
  EXPECT_FALSE(cache.load(Key{1}));
  cache.store(Key{2}, "two");
  EXPECT_EQ(cache.load(Key{2}), "two");
}

void set_age(const std::string& path, int64_t seconds) {
  const time_t then = time(nullptr) - seconds;
  const timeval times[2] = {{then, 0}, {then, 0}};
  ASSERT_EQ(utimes(path.c_str(), times), 0);
}

TEST(DiskCache, TheOldestGoFirst) {
  const TestFolder folder;
  DiskCache unbounded(folder.path(), test_fingerprint(), 0);
  for (uint64_t i = 0; i < 20; ++i) {
    const auto before = entry_files(folder.path());
    unbounded.store(Key{i}, blob_of(i, 1000));
    for (const std::string& path : entry_files(folder.path())) {
      if (std::find(before.begin(), before.end(), path) == before.end()) {
        set_age(path, static_cast<int64_t>(100000 - i * 100));
      }
    }
  }
  EXPECT_TRUE(unbounded.load(Key{0}));  // a hit after a day makes it the newest
  DiskCache bounded(folder.path(), test_fingerprint(), 12 * 1100);
  bounded.evict();
  EXPECT_GE(bounded.stats().evictions, 8u);
  EXPECT_TRUE(bounded.load(Key{0}));
  EXPECT_FALSE(bounded.load(Key{1}));
  EXPECT_FALSE(bounded.load(Key{5}));
  EXPECT_TRUE(bounded.load(Key{19}));
}

TEST(DiskCache, StoresKeepToTheBound) {
  const TestFolder folder;
  const int64_t bound = 64 << 10;
  for (uint64_t i = 0; i < 300; ++i) {
    // As many short processes would: none of them sees the others' stores.
    DiskCache cache(folder.path(), test_fingerprint(std::to_string(i % 3)), bound);
    cache.store(Key{i}, blob_of(i, 2000));
    uintmax_t total = 0;
    for (const std::string& path : entry_files(folder.path())) total += fs::file_size(path);
    EXPECT_LE(total, 2u * bound);  // 64 stores of 2 KiB each look with probability 1/2: 2^-32
  }
  DiskCache cache(folder.path(), test_fingerprint(), bound);
  cache.store(Key{1000}, blob_of(1, 2 * bound));  // larger than all of it
  EXPECT_FALSE(cache.load(Key{1000}));
}

TEST(DiskCache, StaleTemporariesAndOldFoldersGo) {
  const TestFolder folder;
  DiskCache cache(folder.path(), test_fingerprint(), 1 << 20);
  cache.store(Key{1}, "x");
  const std::string home = folder / test_fingerprint().folder_name();
  write_file(home + "/tmp-1-1-old", "x");
  set_age(home + "/tmp-1-1-old", 7200);
  write_file(home + "/tmp-1-1-new", "x");
  const std::string gone = folder / test_fingerprint("0").folder_name();
  fs::create_directory(gone);
  write_file(gone + "/namespace.json", "{}");
  set_age(gone, 7200);
  fs::create_directory(folder / "mine");
  write_file(folder / "mine/tmp-1-1-old", "x");
  set_age(folder / "mine/tmp-1-1-old", 7200);
  cache.evict();
  EXPECT_FALSE(fs::exists(home + "/tmp-1-1-old"));
  EXPECT_TRUE(fs::exists(home + "/tmp-1-1-new"));
  EXPECT_FALSE(fs::exists(gone));
  EXPECT_TRUE(fs::exists(folder / "mine/tmp-1-1-old"));  // not a folder of ours
  EXPECT_EQ(cache.load(Key{1}), "x");
}

// Many writers of the same keys: a reader sees one of the values or none, never a mixture.
TEST(DiskCache, ProcessesAndThreadsShareIt) {
  const TestFolder folder;
  constexpr int kProcesses = 3, kRounds = 150;
  std::vector<pid_t> children;
  for (int p = 0; p < kProcesses; ++p) {
    const pid_t child = fork();
    if (child == 0) {
      Warnings warnings;
      DiskCache cache(folder.path(), test_fingerprint(), 200 << 10, warnings.sink());
      bool ok = true;
      for (int i = 0; i < kRounds; ++i) {
        const auto id = static_cast<uint64_t>(i % 17);
        const std::string blob = blob_of(id, 5000 + id);
        if (const auto found = cache.load(Key{id})) ok &= *found == blob;
        cache.store(Key{id}, blob);
      }
      _exit(ok && warnings.texts.empty() ? 0 : 1);
    }
    children.push_back(child);
  }
  DiskCache cache(folder.path(), test_fingerprint(), 200 << 10);
  std::vector<std::thread> threads;
  std::atomic<bool> ok{true};
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < kRounds; ++i) {
        const auto id = static_cast<uint64_t>(i % 17);
        if (const auto found = cache.load(Key{id})) {
          if (*found != blob_of(id, 5000 + id)) ok = false;
        }
        cache.store(Key{id}, blob_of(id, 5000 + id));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const pid_t child : children) {
    int status = 0;
    waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
  }
  EXPECT_TRUE(ok);
  EXPECT_EQ(cache.stats().damaged, 0u);
}

TEST(DiskCache, AKilledWriterLeavesNoHalfEntry) {
  const TestFolder folder;
  for (int round = 0; round < 10; ++round) {
    const pid_t child = fork();
    if (child == 0) {
      DiskCache cache(folder.path(), test_fingerprint(), 0);
      for (uint64_t i = 0;; ++i) cache.store(Key{i % 50}, blob_of(i % 50, 20000));
    }
    usleep(static_cast<useconds_t>(2000 + round * 3100));
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
  }
  DiskCache cache(folder.path(), test_fingerprint(), 0);
  for (uint64_t i = 0; i < 50; ++i) {
    if (const auto found = cache.load(Key{i})) {
      EXPECT_EQ(*found, blob_of(i, 20000));
    }
  }
  EXPECT_EQ(cache.stats().damaged, 0u);
}

}  // namespace
}  // namespace torch_tpu::cache
