// The flight recorder: the last collectives of this process, for all groups, in a ring. Written
// when something goes wrong; `torch-tpu flight` lines up the files of several ranks.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "csrc/trace/trace.h"

namespace torch_tpu::distributed {

class Flight {
 public:
  enum class State : uint8_t { kQueued, kRunning, kDone, kFailed };

  struct Entry {
    uint64_t id = 0;
    std::string group;
    uint64_t seq = 0;  // within the group; messages between two ranks count for themselves
    std::string op;
    std::string detail;  // dtype and sizes, operation, root
    int peer = -1;       // of a message
    int rank = 0;        // whose call: ranks may be threads of one process
    bool on_device = false;
    int64_t bytes = 0;
    trace::IssueLine line;
    State state = State::kQueued;
    // Seconds since the epoch; 0: not yet.
    double issued = 0, started = 0, finished = 0;
    std::string error;
  };

  static Flight& get();

  // Takes the entry, stamps it, and returns its id.
  uint64_t add(Entry entry);
  void start(uint64_t id);
  void over_host(uint64_t id);  // after all
  void finish(uint64_t id, const std::string& error = {});
  std::vector<Entry> entries();  // oldest first
  void clear();

  // Writes rank<N>.json into the folder named by TORCH_TPU_FLIGHT, if any; returns the path, or "".
  // Never throws.
  std::string dump(const std::string& reason) noexcept;
  std::string json(const std::string& reason);
  void set_rank(int rank, int world_size);

 private:
  Flight();
  Entry* find(uint64_t id);

  std::mutex mutex_;
  std::vector<Entry> ring_;
  uint64_t next_ = 0;
  int rank_ = 0;
  int world_size_ = 1;
};

const char* name_of(Flight::State state) noexcept;
std::string quoted(const std::string& text);  // as JSON

}  // namespace torch_tpu::distributed
