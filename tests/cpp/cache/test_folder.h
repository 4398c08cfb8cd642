// A folder for one test, removed afterwards, and what the tests of the disk cache share.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "csrc/cache/disk_cache.h"

namespace torch_tpu::cache {

class TestFolder {
 public:
  TestFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "torch_tpu_test_XXXXXX").string();
    path_ = mkdtemp(name.data());
  }
  ~TestFolder() {
    std::error_code ignored;
    std::filesystem::permissions(path_, std::filesystem::perms::owner_all, ignored);
    std::filesystem::remove_all(path_, ignored);
  }
  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

// Takes what a cache warns of.
struct Warnings {
  std::vector<std::string> texts;
  DiskCache::Warn sink() {
    return [this](const std::string& text) { texts.push_back(text); };
  }
};

inline Fingerprint test_fingerprint(const std::string& version = "1") {
  return Fingerprint({{"platform", "cpu"}, {"plugin_version", version}, {"torch", "2.13.0"}});
}

inline std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream out;
  out << file.rdbuf();
  return out.str();
}

inline void write_file(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

// The entries below a cache folder.
inline std::vector<std::string> entry_files(const std::string& folder) {
  std::vector<std::string> out;
  for (const auto& file : std::filesystem::recursive_directory_iterator(folder)) {
    if (file.path().extension() == ".program") out.push_back(file.path().string());
  }
  return out;
}

}  // namespace torch_tpu::cache
