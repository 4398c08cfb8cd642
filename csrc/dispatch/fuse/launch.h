// Runs a piece of the trace: as one program when that is compiled, else op by op. Which of the two
// it was shows only in the time it takes.
#pragma once

#include "csrc/trace/fused.h"
#include "csrc/trace/trace.h"

namespace torch_tpu::dispatch {

// One per device; used by one thread at a time.
class Launcher {
 public:
  // Settles all outputs of the segment that somebody holds. Takes the segment's references.
  void run(trace::Segment& segment, int device);

 private:
  // `owner` is the program of `piece`, or a bounded one that serves it.
  void run_fused(const trace::FusedPtr& owner, const trace::FusedPtr& piece,
                 trace::Segment& segment, int device);
  void run_in_pieces(trace::Segment& segment, int device);
  void run_chain(trace::Segment& chain, int device);
  void run_singly(trace::Segment& segment, int device);
  void plan_donations(const trace::Segment& segment);

  trace::Signature signature_;
  std::vector<uint32_t> last_use_;           // per external, then per output: the node
  std::vector<trace::ProgramPtr> programs_;  // per node, what run_singly runs
};

}  // namespace torch_tpu::dispatch
