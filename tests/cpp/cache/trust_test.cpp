// Files in the folder of programs that somebody else could have written, or that are no files: they
// are not used, are said once, and give way to what is compiled instead.
#include <cstring>
#include <functional>

#include <gtest/gtest.h>
#include <pwd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "csrc/cache/disk_cache.h"
#include "tests/cpp/cache/test_folder.h"

namespace torch_tpu::cache {
namespace {

namespace fs = std::filesystem;
using Key = std::vector<uint64_t>;

// A cache with one entry, whose file the tests then change.
struct OneEntry {
  TestFolder folder;
  Warnings warnings;
  DiskCache cache{folder.path(), test_fingerprint(), 0, warnings.sink()};
  Key key{1, 2};
  std::string path;

  OneEntry() {
    cache.store(key, "hello");
    path = entry_files(folder.path()).at(0);
  }
  // Not used, said once; and what is compiled instead takes the file's place.
  void expect_refused(const std::string& why) {
    EXPECT_FALSE(cache.load(key));
    EXPECT_FALSE(cache.load(key));
    EXPECT_EQ(cache.stats().refused, 2u);
    EXPECT_EQ(cache.stats().misses, 2u);
    ASSERT_EQ(warnings.texts.size(), 1u);
    for (const std::string& part : {why, path, std::string("machine code")}) {
      EXPECT_NE(warnings.texts[0].find(part), std::string::npos) << warnings.texts[0];
    }
    cache.store(key, "again");
    EXPECT_EQ(cache.load(key), "again");
    EXPECT_EQ(warnings.texts.size(), 1u);
  }
};

TEST(Trust, AFileOfSomebodyElseIsRefused) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can give a file away";
  OneEntry one;
  ASSERT_EQ(chown(one.path.c_str(), 12345, 0), 0);
  one.expect_refused("belongs to user 12345");
}

TEST(Trust, AFileThatAllMayWriteIsRefused) {
  OneEntry one;
  ASSERT_EQ(chmod(one.path.c_str(), 0602), 0);
  one.expect_refused("chmod go-w");
}

TEST(Trust, AFileThatAGroupMayWriteIsRefused) {
  if (geteuid() != 0) GTEST_SKIP() << "the group of this user may be private";
  OneEntry one;
  ASSERT_EQ(chmod(one.path.c_str(), 0660), 0);
  one.expect_refused("mode 0660");
}

// "daemon" has a group of its own on every Linux. Null where this process cannot become it.
const passwd* another_user() {
  const passwd* user = geteuid() == 0 ? getpwnam("daemon") : nullptr;
  return user != nullptr && user->pw_gid != 0 ? user : nullptr;
}

// Runs `body` as that user in a process of its own; what it returns.
bool as_user(const passwd& user, const std::function<bool()>& body) {
  const pid_t child = fork();
  if (child == 0) {
    const bool became = setgid(user.pw_gid) == 0 && setuid(user.pw_uid) == 0;
    _exit(became && body() ? 0 : 1);
  }
  int status = 0;
  return waitpid(child, &status, 0) == child && status == 0;
}

// With umask 002 everything is writable by the user's group, which has no other member.
TEST(Trust, AFileOfRootAndOneOfThePrivateGroupAreUsed) {
  const passwd* user = another_user();
  if (user == nullptr) GTEST_SKIP() << "only root can become somebody else";
  const TestFolder folder;
  ASSERT_EQ(chmod(folder.path().c_str(), 0711), 0);
  const std::string inner = folder / "cache";
  fs::create_directory(inner);
  ASSERT_EQ(chown(inner.c_str(), user->pw_uid, user->pw_gid), 0);
  ASSERT_EQ(chmod(inner.c_str(), 0700), 0);
  const auto stored = [&] {
    Warnings warnings;
    DiskCache cache(inner, test_fingerprint(), 0, warnings.sink());
    cache.store(Key{1}, "x");
    return cache.load(Key{1}) == "x" && warnings.texts.empty();
  };
  const auto found = [&] {
    Warnings warnings;
    DiskCache cache(inner, test_fingerprint(), 0, warnings.sink());
    return cache.load(Key{1}) == "x" && warnings.texts.empty();
  };
  EXPECT_TRUE(as_user(*user, stored));
  const std::string path = entry_files(inner).at(0);
  ASSERT_EQ(chmod(path.c_str(), 0664), 0);
  EXPECT_TRUE(as_user(*user, found));
  ASSERT_EQ(chown(path.c_str(), 0, 0), 0);
  ASSERT_EQ(chmod(path.c_str(), 0644), 0);
  EXPECT_TRUE(as_user(*user, found));
  ASSERT_EQ(chmod(path.c_str(), 0664), 0);  // root's group is nobody's own
  EXPECT_FALSE(as_user(*user, found));
}

TEST(Trust, FoldersWithoutPermissionAreNoDisaster) {
  const passwd* user = another_user();
  if (user == nullptr) GTEST_SKIP() << "only root can become somebody else";
  const TestFolder folder;
  ASSERT_EQ(chown(folder.path().c_str(), user->pw_uid, user->pw_gid), 0);
  // Neither read nor written: off, said once.
  ASSERT_EQ(chmod(folder.path().c_str(), 0), 0);
  EXPECT_TRUE(as_user(*user, [&] {
    Warnings warnings;
    DiskCache cache(folder.path(), test_fingerprint(), 0, warnings.sink());
    for (int i = 0; i < 3; ++i) {
      cache.store(Key{1}, "x");
      if (cache.load(Key{1})) return false;
    }
    return warnings.texts.size() == 1 &&
           warnings.texts[0].find("Permission denied") != std::string::npos;
  }));
  ASSERT_EQ(chmod(folder.path().c_str(), 0700), 0);
  const auto use = [&](size_t expected) {
    Warnings warnings;
    DiskCache cache(folder.path(), test_fingerprint(), 0, warnings.sink());
    cache.store(Key{1}, "x");
    cache.store(Key{2}, "y");
    return cache.load(Key{1}) == "x" && warnings.texts.size() == expected;
  };
  EXPECT_TRUE(as_user(*user, [&] { return use(0); }));
  // Read only: what is there is used, and that nothing is kept is said once.
  const std::string home = folder / test_fingerprint().folder_name();
  ASSERT_EQ(chmod(home.c_str(), 0500), 0);
  EXPECT_TRUE(as_user(*user, [&] { return use(1); }));
}

TEST(Trust, APipeOrALinkInPlaceOfAFileIsRefused) {
  OneEntry one;
  fs::remove(one.path);
  ASSERT_EQ(mkfifo(one.path.c_str(), 0600), 0);
  one.expect_refused("is a pipe");
  OneEntry two;
  fs::rename(two.path, two.folder / "elsewhere");
  fs::create_symlink(two.folder / "elsewhere", two.path);
  two.expect_refused("is a link");
  OneEntry three;
  fs::remove(three.path);
  fs::create_symlink("/dev/zero", three.path);
  three.expect_refused("is a link");
}

TEST(Trust, AFolderInPlaceOfAFileIsNoDisaster) {
  OneEntry one;
  fs::remove(one.path);
  fs::create_directory(one.path);
  write_file(one.path + "/file", "x");
  EXPECT_FALSE(one.cache.load(one.key));
  one.cache.store(one.key, "again");
  EXPECT_FALSE(one.cache.load(one.key));
  one.cache.store(Key{7}, "others are kept");
  EXPECT_EQ(one.cache.load(Key{7}), "others are kept");
  ASSERT_EQ(one.warnings.texts.size(), 1u);
  EXPECT_NE(one.warnings.texts[0].find("is a folder"), std::string::npos) << one.warnings.texts[0];
}

// Neither is read: there would be no memory for it.
TEST(Trust, AHugeFileIsDropped) {
  OneEntry one;
  ASSERT_EQ(truncate(one.path.c_str(), int64_t{1} << 40), 0);
  EXPECT_FALSE(one.cache.load(one.key));
  EXPECT_FALSE(fs::exists(one.path));
  one.cache.store(one.key, "again");
  EXPECT_EQ(one.cache.load(one.key), "again");

  const std::string good = read_file(one.path);
  const uint64_t blob = uint64_t{6} << 30;  // a header that says so itself
  std::string start = good.substr(0, kEntryStartBytes);
  std::memcpy(start.data() + 16, &blob, 8);
  write_file(one.path, start);
  ASSERT_EQ(truncate(one.path.c_str(), static_cast<int64_t>(blob + good.size() - 5)), 0);
  EXPECT_FALSE(one.cache.load(one.key));
  EXPECT_FALSE(fs::exists(one.path));
  EXPECT_EQ(one.cache.stats().damaged, 2u);
  EXPECT_EQ(one.warnings.texts.size(), 1u);
}

}  // namespace
}  // namespace torch_tpu::cache
