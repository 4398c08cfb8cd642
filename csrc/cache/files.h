// The few file operations of the disk cache, over descriptors: what was checked stays what is used,
// whatever happens to the paths meanwhile.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace torch_tpu::cache {

// An open file or folder. Move-only.
class File {
 public:
  File() = default;
  explicit File(int fd) : fd_(fd) {}
  File(File&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  File& operator=(File&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~File() { close(); }
  int fd() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  bool close();  // false: errno says why

 private:
  int fd_ = -1;
};

// Whoever can write the folder can run code in our name.
class UnsafeFolder : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};
// Whoever could write the file, too. Also for what is no file at all.
class UnsafeFile : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Makes a folder and those above it, for the user alone. Existing ones are left as they are. Throws
// std::system_error.
void make_folders(const std::string& path);
void make_folder(int parent, const std::string& name);
// Opens a folder that belongs to this user and that no one else may write; else UnsafeFolder, with
// who and what to do. Throws std::system_error when it cannot be opened.
File open_own_folder(int parent, const std::string& name, const std::string& shown);

// Opens a regular file to read that this user or root owns and nobody else may write; else
// UnsafeFile, which says what it is, who could write it, and what makes it safe. Never waits for
// the other end of a pipe. An empty File, with errno, when it is not there or cannot be opened.
enum class Links { kRefuse, kFollow };
File open_own_file(int parent, const std::string& name, const std::string& shown, Links links);

std::vector<std::string> list_folder(const File& folder);  // without . and ..
uint64_t size_of(const File& file);
// `size` bytes from `offset`, or fewer when the file ends or fails.
std::string read_at(const File& file, uint64_t offset, uint64_t size);
int write_all(const File& file, std::string_view bytes);  // 0, or the error
int64_t modified(const File& file);                       // seconds

}  // namespace torch_tpu::cache
