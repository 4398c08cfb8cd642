// Runs a piece of the trace: as one program when that is compiled, else op by op. Which of the two
// it was shows only in the time it takes.
#pragma once

#include <exception>
#include <string>
#include <vector>

#include "csrc/trace/fused.h"
#include "csrc/trace/trace.h"

namespace torch_tpu::dispatch {

// One per device; used by one thread at a time.
class Launcher {
 public:
  // Settles all outputs of the segment that somebody holds, but for those that find no room and
  // what depends on them: these calls are kept, and run again by retry(). Takes the segment's
  // references.
  void run(trace::Segment& segment, int device);
  void retry(int device);
  // Why there are calls left to be run again; null when there are none.
  std::exception_ptr no_room() const noexcept { return no_room_; }

  // What went wrong since this was last asked, for the threads that issued the calls.
  struct Failure {
    uint32_t thread = 0;
    std::exception_ptr error;
    bool no_room = false;  // the call runs again when there is some
  };
  std::vector<Failure> take_failures();

  // Nodes of a segment: ops over lists of tensors in a row.
  struct Chain {
    size_t begin = 0;
    size_t end = 0;
  };

 private:
  void run_best(trace::Segment& segment, int device);
  // `owner` is the program of `piece`, or a bounded one that serves it. False, and nothing has
  // happened, where it found no room.
  bool run_fused(const trace::FusedPtr& owner, const trace::FusedPtr& piece,
                 trace::Segment& segment, int device);
  void run_parts(trace::Segment& segment, const Chain& chain, int device);
  // These three are in run_singly.cpp.
  void run_singly(trace::Segment& segment, int device);
  bool run_node(trace::Segment& segment, size_t at, trace::Program& program, int device);
  void plan_donations(const trace::Segment& segment);

  void drop_unneeded(trace::Segment& segment);
  void fail(uint32_t thread, std::exception_ptr error, bool no_room = false) {
    failures_.push_back({thread, std::move(error), no_room});
  }

  trace::Signature signature_;
  std::vector<uint32_t> last_use_;           // per external, then per output: the node
  std::vector<trace::ProgramPtr> programs_;  // per node, what run_singly runs
  trace::Segment unfinished_;
  std::exception_ptr no_room_;
  bool retrying_ = false;  // of what was told already
  std::vector<Failure> failures_;
};

// "aten::add at file.py:12 in f".
std::string issued_by(const trace::Segment& segment, size_t node);

}  // namespace torch_tpu::dispatch
