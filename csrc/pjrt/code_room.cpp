#include "csrc/pjrt/code_room.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <fstream>
#include <mutex>
#include <string>

#include <fcntl.h>
#include <unistd.h>

#include "csrc/pjrt/error.h"

namespace torch_tpu::pjrt {
namespace {

// More than a program was seen to map (3 to 20), so that the bound is not met between two counts.
constexpr int64_t kMostPerProgram = 32;

struct Room {
  std::mutex mutex;  // one thread at a time counts and makes room; the others wait for it
  std::atomic<int64_t> loads_left{0};
  std::atomic<int64_t> limit_for_tests{0};
  std::atomic<RoomMaker> maker{nullptr};
};

Room& room() {
  static auto* it = new Room;  // leaked: threads of the compile pool may outlive statics
  return *it;
}

int64_t system_limit() {
  static const int64_t limit = [] {
    int64_t number = 0;
    std::ifstream file("/proc/sys/vm/max_map_count");
    return file >> number ? number : 0;
  }();
  return limit;
}

// Lines of the file, read in pieces: with tens of thousands of mappings it has megabytes.
int64_t count_lines(const char* path) {
  const int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return 0;
  std::array<char, 65536> buffer;
  int64_t lines = 0;
  for (ssize_t n; (n = read(file, buffer.data(), buffer.size())) > 0;)
    lines += std::count(buffer.begin(), buffer.begin() + n, '\n');
  close(file);
  return lines;
}

}  // namespace

Mappings count_mappings() {
  const int64_t set = room().limit_for_tests.load();
  const int64_t limit = set > 0 ? set : system_limit();
  return {limit > 0 ? count_lines("/proc/self/maps") : 0, limit};
}

void set_room_maker(RoomMaker maker) { room().maker.store(maker); }

void set_mapping_limit(int64_t limit) {
  room().limit_for_tests.store(limit);
  room().loads_left.store(0);
}

void need_code_room() {
  Room& here = room();
  if (here.loads_left.fetch_sub(1, std::memory_order_relaxed) > 0) return;
  std::lock_guard lock(here.mutex);
  if (here.loads_left.load(std::memory_order_relaxed) > 0) return;  // another thread saw to it
  Mappings now = count_mappings();
  if (now.limit == 0) {
    here.loads_left.store(INT64_MAX);
    return;
  }
  const int64_t comfortable = now.limit / 4 * 3;
  const RoomMaker maker = here.maker.load();
  while (now.used > comfortable && maker != nullptr && maker()) now = count_mappings();
  if (now.used > now.limit - now.limit / 16)
    throw Error(PJRT_Error_Code_FAILED_PRECONDITION, "loading a program",
                "this process has " + std::to_string(now.used) + " memory mappings of the " +
                    std::to_string(now.limit) +
                    " that Linux allows it, and no compiled program is left to let go. Allow more: "
                    "sysctl -w vm.max_map_count=" +
                    std::to_string(now.limit * 4));
  here.loads_left.store(std::max<int64_t>(8, (comfortable - now.used) / kMostPerProgram));
}

}  // namespace torch_tpu::pjrt
