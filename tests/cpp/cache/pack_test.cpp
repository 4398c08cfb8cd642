// Packs: what goes in comes out; damage and strangers are refused with a reason.
#include "csrc/cache/pack.h"

#include <csignal>
#include <cstring>

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "csrc/cache/bytes.h"
#include "tests/cpp/cache/test_folder.h"

namespace torch_tpu::cache {
namespace {

namespace fs = std::filesystem;
using Key = std::vector<uint64_t>;

std::vector<std::string> entries(int count) {
  std::vector<std::string> out;
  for (int i = 0; i < count; ++i) {
    const Key key{static_cast<uint64_t>(i), 7};
    out.push_back(encode_entry(test_fingerprint().digest(), key, "blob " + std::to_string(i)));
  }
  return out;
}

std::string error_of(const std::string& path, const Fingerprint& here) {
  try {
    Pack::open(path, here);
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "";
}

TEST(Pack, HoldsItsEntries) {
  const TestFolder folder;
  const std::string path = folder / "a.pack";
  write_pack(path, test_fingerprint(), entries(20));
  const Pack pack = Pack::open(path, test_fingerprint());
  EXPECT_EQ(pack.size(), 20u);
  for (uint64_t i = 0; i < 20; ++i) EXPECT_EQ(pack.load(Key{i, 7}), "blob " + std::to_string(i));
  EXPECT_FALSE(pack.load(Key{20, 7}));
  write_pack(path, test_fingerprint(), {});
  EXPECT_EQ(Pack::open(path, test_fingerprint()).size(), 0u);
}

TEST(Pack, SaysWhatDiffers) {
  const TestFolder folder;
  const std::string path = folder / "a.pack";
  write_pack(path, test_fingerprint("1"), {});
  const std::string error = error_of(path, test_fingerprint("2"));
  EXPECT_NE(error.find("plugin_version: 1 there, 2 here"), error.npos) << error;
  EXPECT_EQ(error.find("torch: "), error.npos) << error;
  EXPECT_NE(error.find(path), error.npos) << error;
}

// In any byte, of the front as of the programs.
TEST(Pack, DamageIsFound) {
  const TestFolder folder;
  const std::string path = folder / "a.pack";
  write_pack(path, test_fingerprint(), entries(3));
  const std::string good = read_file(path);
  for (size_t size = 0; size < good.size(); ++size) {
    write_file(path, good.substr(0, size));
    EXPECT_NE(error_of(path, test_fingerprint()), "") << size;
  }
  for (size_t i = 0; i < good.size(); ++i) {
    std::string bad = good;
    bad[i] = static_cast<char>(bad[i] ^ (1 << (i % 8)));
    write_file(path, bad);
    EXPECT_NE(error_of(path, test_fingerprint()), "") << "byte " << i;
  }
  for (const size_t size : {1, 7, 64}) {
    write_file(path, good + std::string(size, '\0'));
    EXPECT_NE(error_of(path, test_fingerprint()).find("too long"), std::string::npos);
  }
  // Sound programs, but not those of the index.
  const size_t each = entries(1)[0].size();
  const size_t front = good.size() - 3 * each;
  write_file(path, good.substr(0, front) + good.substr(front + each, each) +
                       good.substr(front, each) + good.substr(front + 2 * each));
  const std::string error = error_of(path, test_fingerprint());
  EXPECT_NE(error.find("is damaged (program 1 of 3). Copy it again"), error.npos) << error;
  write_file(path, "no pack at all, but long enough to be one");
  EXPECT_NE(error_of(path, test_fingerprint()).find("is not a pack"), std::string::npos);
  EXPECT_NE(error_of(folder / "none", test_fingerprint()).find("No such file"), std::string::npos);
  write_file(path, good);
  EXPECT_EQ(error_of(path, test_fingerprint()), "");
}

TEST(Pack, WhatChangesLaterIsFoundWhenItIsLookedUp) {
  const TestFolder folder;
  const std::string path = folder / "a.pack";
  write_pack(path, test_fingerprint(), entries(2));
  const Pack pack = Pack::open(path, test_fingerprint());
  fs::resize_file(path, fs::file_size(path) - 3);
  EXPECT_EQ(pack.load(Key{0, 7}), "blob 0");
  EXPECT_THROW(pack.load(Key{1, 7}), BadBytes);
}

TEST(Pack, OnlyFilesThatNobodyElseCanWrite) {
  const TestFolder folder;
  const std::string path = folder / "a.pack";
  write_pack(path, test_fingerprint(), entries(2));
  fs::create_symlink(path, folder / "link");  // named by the user, so followed
  EXPECT_EQ(error_of(folder / "link", test_fingerprint()), "");
  ASSERT_EQ(chmod(path.c_str(), 0646), 0);
  for (const std::string& name : {path, folder / "link"}) {
    const std::string error = error_of(name, test_fingerprint());
    EXPECT_NE(error.find("others may write " + name + " (mode 0646"), error.npos) << error;
    EXPECT_NE(error.find("chmod go-w"), error.npos) << error;
  }
  ASSERT_EQ(chmod(path.c_str(), 0644), 0);
  if (geteuid() != 0) return;  // only root can give a file away
  ASSERT_EQ(chown(path.c_str(), 12345, 12345), 0);
  const std::string error = error_of(path, test_fingerprint());
  EXPECT_NE(error.find("belongs to user 12345"), error.npos) << error;
  EXPECT_NE(error.find("make a copy of your own"), error.npos) << error;
}

TEST(Pack, WhatIsNoFileOrHugeIsRefused) {
  const TestFolder folder;
  EXPECT_NE(error_of(folder.path(), test_fingerprint()).find("is a folder"), std::string::npos);
  ASSERT_EQ(mkfifo((folder / "pipe").c_str(), 0600), 0);
  EXPECT_NE(error_of(folder / "pipe", test_fingerprint()).find("is a pipe"), std::string::npos);
  const std::string path = folder / "a.pack";
  write_pack(path, test_fingerprint(), entries(1));
  std::string start = read_file(path).substr(0, 20);
  const uint64_t front = uint64_t{1} << 39;
  std::memcpy(start.data() + 12, &front, 8);
  write_file(path, start);
  fs::resize_file(path, uint64_t{1} << 40);
  EXPECT_NE(error_of(path, test_fingerprint()).find("index is too large"), std::string::npos);
}

// In a child, as the limit stays.
TEST(Pack, AFullDiskLeavesTheOldOne) {
  const TestFolder folder;
  const std::string path = folder / "a.pack";
  write_pack(path, test_fingerprint(), entries(1));
  const pid_t child = fork();
  if (child == 0) {
    std::signal(SIGXFSZ, SIG_IGN);
    rlimit limit{512, 512};
    setrlimit(RLIMIT_FSIZE, &limit);
    try {
      write_pack(path, test_fingerprint(), entries(50));
    } catch (const std::runtime_error& error) {
      _exit(std::string(error.what()).find("cannot be written: File too large") == std::string::npos
                ? 2
                : 0);
    }
    _exit(1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(Pack::open(path, test_fingerprint()).size(), 1u);
  EXPECT_EQ(std::distance(fs::directory_iterator(folder.path()), {}), 1);
}

TEST(Fingerprint, SurvivesTheRoundTrip) {
  const Fingerprint one = test_fingerprint();
  const auto again = Fingerprint::parse(one.serialize());
  ASSERT_TRUE(again);
  EXPECT_TRUE(again->digest() == one.digest());
  EXPECT_EQ(again->differences(one), "");
  const std::string bytes = one.serialize();
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_FALSE(Fingerprint::parse(bytes.substr(0, size))) << size;
  }
}

TEST(Fingerprint, LibrariesHaveIds) {
  const std::string own = library_id(reinterpret_cast<const void*>(&library_id));
  EXPECT_GE(own.size(), 32u);
  EXPECT_EQ(own, library_id(reinterpret_cast<const void*>(&Fingerprint::current)));
  EXPECT_NE(own, library_id(reinterpret_cast<const void*>(&std::printf)));
}

}  // namespace
}  // namespace torch_tpu::cache
