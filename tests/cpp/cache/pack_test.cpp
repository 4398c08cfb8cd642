// Packs: what goes in comes out; damage and strangers are refused with a reason.
#include "csrc/cache/pack.h"

#include <gtest/gtest.h>

#include "tests/cpp/cache/test_folder.h"

namespace torch_tpu::cache {
namespace {

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

TEST(Pack, DamageIsFound) {
  const TestFolder folder;
  const std::string path = folder / "a.pack";
  write_pack(path, test_fingerprint(), entries(3));
  const std::string good = read_file(path);
  for (size_t size = 0; size < good.size(); size += 5) {
    write_file(path, good.substr(0, size));
    EXPECT_NE(error_of(path, test_fingerprint()), "") << size;
  }
  int served = 0;
  for (size_t i = 0; i < good.size(); ++i) {
    std::string bad = good;
    bad[i] = static_cast<char>(bad[i] ^ (1 << (i % 8)));
    write_file(path, bad);
    if (!error_of(path, test_fingerprint()).empty()) continue;
    // The front is sound, so one entry is not: it is not served, the others are.
    const Pack pack = Pack::open(path, test_fingerprint());
    int found = 0;
    for (uint64_t k = 0; k < 3; ++k) {
      if (const auto blob = pack.load(Key{k, 7})) {
        EXPECT_EQ(*blob, "blob " + std::to_string(k));
        ++found;
      }
    }
    EXPECT_EQ(found, 2) << "byte " << i;
    ++served;
  }
  EXPECT_GT(served, 0);
  write_file(path, "no pack at all, but long enough to be one");
  EXPECT_NE(error_of(path, test_fingerprint()).find("is not a pack"), std::string::npos);
  EXPECT_NE(error_of(folder / "none", test_fingerprint()).find("No such file"), std::string::npos);
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
