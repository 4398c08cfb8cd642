// One collective (or message) of a group, from the call to its end.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Work.hpp>

#include "csrc/distributed/host_memory.h"
#include "csrc/distributed/turns.h"
#include "csrc/trace/promise.h"
#include "csrc/trace/trace.h"

namespace torch_tpu::distributed {

using WorkPtr = c10::intrusive_ptr<c10d::Work>;

struct Collective {
  // What it is. Ranks must agree on op and detail, unless `local_detail` (sizes that may differ).
  std::string op;      // "all_reduce"
  std::string detail;  // "f32 [64, 64] SUM"
  bool local_detail = false;
  int peer = -1;         // of a message: the other rank, in the group
  bool message = false;  // between two ranks: does not count as a collective
  bool receives = false;
  bool rooted = false;  // it may be done here before all ranks have called it
  std::chrono::milliseconds timeout{0};

  // Filled by the group.
  uint64_t seq = 0;
  uint64_t fingerprint = 0;
  bool agree = false;  // first use: ranks compare before it runs
  trace::IssueLine line;
  uint64_t record = 0;     // in the flight recorder
  int64_t bytes = 0;       // that it reads, or for who only receives, writes
  int device = 0;          // of its tensors
  int64_t started_ns = 0;  // by the journal's clock; 0: not yet
  bool profiled = false;   // a profiler waits for its end
  std::chrono::steady_clock::time_point issued;
  trace::PromisePtr promise = std::make_shared<trace::Promise>();
  std::shared_ptr<Turn> turn;  // null unless in_turn
  int source_rank = -1;        // of a message from anyone, once it is there

  bool on_device = false;  // its operands go into a program and need not be computed before
  bool in_turn = false;    // starts after what was called before on its device, of any group

  // What it reads and writes, and how the transport is asked. `start` runs when all operands are
  // there, in the order of the calls; `finish` after the transport, before destinations are
  // delivered.
  std::vector<Operand> operands;
  std::vector<Destination> destinations;
  std::function<std::vector<WorkPtr>(Collective&)> start;
  std::function<void(Collective&)> finish;

  std::string where() const;  // " at train.py:12 in f", or ""; the first time takes the GIL

 private:
  mutable std::mutex words_;  // not held while the GIL is taken
  mutable std::string site_;  // the line in words, once somebody asked: the group or its watchdog
};

using CollectivePtr = std::shared_ptr<Collective>;

}  // namespace torch_tpu::distributed
