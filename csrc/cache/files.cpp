#include "csrc/cache/files.h"

#include <cerrno>
#include <cstdio>
#include <system_error>

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

namespace torch_tpu::cache {
namespace {

[[noreturn]] void fail(int error) { throw std::system_error(error, std::generic_category()); }

std::string octal(mode_t mode) {
  char text[8];
  std::snprintf(text, sizeof(text), "%04o", static_cast<unsigned>(mode & 07777));
  return text;
}

}  // namespace

bool File::close() {
  const int fd = std::exchange(fd_, -1);
  return fd < 0 || ::close(fd) == 0;
}

void make_folder(int parent, const std::string& name) {
  if (mkdirat(parent, name.c_str(), 0700) != 0 && errno != EEXIST) fail(errno);
}

void make_folders(const std::string& path) {
  if (access(path.c_str(), F_OK) == 0) return;
  for (size_t at = path.find('/', 1);; at = path.find('/', at + 1)) {
    const std::string part = path.substr(0, at);
    if (access(part.c_str(), F_OK) != 0) make_folder(AT_FDCWD, part);
    if (at == path.npos) return;
  }
}

File open_own_folder(int parent, const std::string& name, const std::string& shown) {
  // The top folder may be a link of the user's; below it nothing is.
  const int follow = parent == AT_FDCWD ? 0 : O_NOFOLLOW;
  File folder(openat(parent, name.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | follow));
  struct stat info{};
  if (!folder || fstat(folder.fd(), &info) != 0) fail(errno);
  if (info.st_uid != geteuid()) {
    throw UnsafeFolder("the folder " + shown + " belongs to user " + std::to_string(info.st_uid) +
                       " and this process runs as user " + std::to_string(geteuid()) +
                       ". They are machine code, so only a folder of one's own is used.");
  }
  if ((info.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
    throw UnsafeFolder("others may write the folder " + shown + " (mode " + octal(info.st_mode) +
                       "). They are machine code, so only a private folder is used; `chmod go-w " +
                       shown + "` makes it one.");
  }
  return folder;
}

std::vector<std::string> list_folder(const File& folder) {
  std::vector<std::string> names;
  const int fd = openat(folder.fd(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return names;
  DIR* stream = fdopendir(fd);
  if (stream == nullptr) {
    ::close(fd);
    return names;
  }
  while (const dirent* entry = readdir(stream)) {
    const std::string name = entry->d_name;
    if (name != "." && name != "..") names.push_back(name);
  }
  closedir(stream);
  return names;
}

bool read_all(const File& file, std::string& bytes) {
  struct stat info{};
  if (fstat(file.fd(), &info) != 0 || !S_ISREG(info.st_mode)) return false;
  bytes = read_at(file, 0, static_cast<uint64_t>(info.st_size));
  return true;
}

std::string read_at(const File& file, uint64_t offset, uint64_t size) {
  std::string bytes(size, '\0');
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t n = pread(file.fd(), bytes.data() + done, bytes.size() - done,
                            static_cast<off_t>(offset + done));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    done += static_cast<size_t>(n);
  }
  bytes.resize(done);
  return bytes;
}

int write_all(const File& file, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = write(file.fd(), bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno;
    bytes.remove_prefix(static_cast<size_t>(n));
  }
  return 0;
}

int64_t modified(const File& file) {
  struct stat info{};
  return fstat(file.fd(), &info) == 0 ? static_cast<int64_t>(info.st_mtime) : 0;
}

}  // namespace torch_tpu::cache
