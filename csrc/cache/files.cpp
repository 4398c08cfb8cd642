#include "csrc/cache/files.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <system_error>

#include <dirent.h>
#include <fcntl.h>
#include <grp.h>
#include <pwd.h>
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

// Calls getpwuid_r or getgrgid_r with enough room; null when there is no such entry.
template <typename Entry, typename Id>
Entry* look_up(int (*find)(Id, Entry*, char*, size_t, Entry**), Id id, Entry& entry,
               std::vector<char>& room) {
  constexpr size_t kMost = 1 << 20;
  Entry* found = nullptr;
  for (room.resize(1 << 12); room.size() <= kMost; room.resize(room.size() * 2)) {
    if (find(id, &entry, room.data(), room.size(), &found) != ERANGE) return found;
  }
  return nullptr;
}

// Many systems give each user a group of the same name with nobody else in it, and let its members
// write new files (umask 002). Root's group is none: containers put other users into it.
bool is_private_group(gid_t id) {
  if (id == 0 || geteuid() == 0) return false;
  std::vector<char> user_room, group_room;
  struct passwd user{};
  struct group group{};
  if (look_up(getpwuid_r, geteuid(), user, user_room) == nullptr || user.pw_gid != id ||
      look_up(getgrgid_r, id, group, group_room) == nullptr) {
    return false;
  }
  const std::string name = user.pw_name;
  if (name != group.gr_name) return false;
  char** last = group.gr_mem;
  while (*last != nullptr) ++last;
  return std::all_of(group.gr_mem, last, [&](const char* member) { return name == member; });
}

const char* kind_of(mode_t mode) {
  if (S_ISDIR(mode)) return "a folder";
  if (S_ISFIFO(mode)) return "a pipe";
  if (S_ISLNK(mode)) return "a link";
  if (S_ISSOCK(mode)) return "a socket";
  return "a device";
}

// What speaks against running code from a file; empty when nothing does.
std::string distrust(const struct stat& info, const std::string& shown) {
  if (!S_ISREG(info.st_mode)) return shown + " is " + kind_of(info.st_mode) + " and no file";
  if (info.st_uid != geteuid() && info.st_uid != 0) {
    return shown + " belongs to user " + std::to_string(info.st_uid) +
           ", neither to root nor to user " + std::to_string(geteuid()) + " of this process";
  }
  if ((info.st_mode & S_IWOTH) != 0 ||
      ((info.st_mode & S_IWGRP) != 0 && !is_private_group(info.st_gid))) {
    return "others may write " + shown + " (mode " + octal(info.st_mode) + "; `chmod go-w " +
           shown + "` ends that)";
  }
  return "";
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

File open_own_file(int parent, const std::string& name, const std::string& shown, Links links) {
  const int follow = links == Links::kFollow ? 0 : O_NOFOLLOW;
  File file(openat(parent, name.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | follow));
  struct stat info{};
  if (!file && errno == ELOOP && links == Links::kRefuse) info.st_mode = S_IFLNK;
  if (!file && errno == ENXIO) info.st_mode = S_IFSOCK;  // which cannot be opened
  if (file && fstat(file.fd(), &info) != 0) file = {};
  if (!file && info.st_mode == 0) return file;
  const std::string problem = distrust(info, shown);
  if (!problem.empty()) throw UnsafeFile(problem);
  return file;
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

uint64_t size_of(const File& file) {
  struct stat info{};
  return fstat(file.fd(), &info) == 0 ? static_cast<uint64_t>(info.st_size) : 0;
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
