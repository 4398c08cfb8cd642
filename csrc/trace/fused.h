// A piece of the trace as one program. Parameters: the externals in order, then all scalars and
// random states in one array of u32, then those scalars that need f64. Results: the values somebody
// outside holds, then the flags of all checks in one array.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "csrc/trace/code.h"
#include "csrc/trace/dependencies.h"
#include "csrc/trace/form.h"
#include "csrc/trace/trace.h"

namespace torch_tpu::trace {

// How the packed scalars of a fused program lie in its u32 array: f32 one word each, then s64 and
// random states two words each, the lower one first, then the sizes that a bounded program runs
// with.
struct ScalarLayout {
  uint32_t f32 = 0;
  uint32_t f64 = 0;
  uint32_t s64 = 0;
  uint32_t rng = 0;  // u64 numbers, two per node that draws
  uint32_t sizes = 0;
  uint32_t words() const { return f32 + 2 * s64 + 2 * rng + sizes; }
};

// A program for all sizes up to a bound; see bounded.h.
struct Bounds;
class Family;

struct FusedProgram final : public c10::intrusive_ptr_target {
  FusedProgram(const Segment& segment, const Signature& signature);
  ~FusedProgram() override;

  // All that lowering needs. Fixed.
  std::vector<uint32_t> words;  // the signature's
  uint64_t hash;                // of the words: for this process only
  std::vector<ProgramPtr> nodes;
  std::vector<uint32_t> alive;
  std::vector<Signature::Donation> donated;
  size_t num_externals;
  ScalarLayout scalars;
  struct Check {
    const ops::ValueCheck* what;  // owned by the node's program
    uint32_t node;
  };
  std::vector<Check> checks;
  Dependencies dependencies;
  int64_t new_bytes = 0;  // of its results, less what is donated
  uint64_t fingerprint;   // of the ops and how they are wired: the same in every process
  std::string name;       // "fused_<fingerprint>"

  // What was new about it when it was first met, against the program that begins most like it.
  struct News {
    bool alone = true;  // there was none
    size_t at = 0;      // the first op that differs
    ProgramPtr before;  // null: the other one has no more ops
    ProgramPtr after;   // null: this one has no more
  };
  News news;
  // The number of ops from the start that have the same names.
  size_t alike(const FusedProgram& other) const;

  Code code;  // until it is ready, and for good where it fails, the ops run one by one
  std::atomic<uint64_t> sights{0};
  std::atomic<uint64_t> runs{0};  // as one program

  // Of a bounded program only: what it serves. Its nodes are those of the piece it was made for.
  std::unique_ptr<const Bounds> bounds;
  // Of a piece: the program that serves it with others, and the sizes to run that with.
  struct Service {
    c10::intrusive_ptr<FusedProgram> program;
    Point sizes{};
  };
  const Service* service() const noexcept { return service_.load(std::memory_order_acquire); }
  // And those of the same structure. The threads that launch on several devices may ask for both at
  // once: who looks for them holds the mutex.
  std::shared_ptr<Family> family() const;
  std::mutex& family_mutex() const noexcept { return family_mutex_; }
  const std::shared_ptr<Family>& joined() const noexcept { return family_; }  // under the mutex
  void join(std::shared_ptr<Family> family) noexcept;                         // under the mutex
  void serve(Service service);  // under the mutex; later ones serve better

  // All nodes can be lowered (one that came from the disk cache first has to be called again).
  bool lowerable() const;
  // Words that mean the same in every process: for the disk cache.
  Key stable_key() const;

 private:
  mutable std::mutex family_mutex_;
  std::shared_ptr<Family> family_;
  std::vector<std::unique_ptr<const Service>> kept_services_;  // readers may hold an older one
  std::atomic<const Service*> service_{nullptr};
};

using FusedPtr = c10::intrusive_ptr<FusedProgram>;

// Calls visit(node, where its references begin among the words) for each node.
template <typename Visit>
void for_each_node(const FusedProgram& program, Visit&& visit) {
  size_t at = 0;
  for (size_t n = 0; n < program.nodes.size(); ++n) {
    const size_t refs = at + 1;
    visit(n, refs);
    at = refs + static_cast<size_t>(program.nodes[n]->num_inputs);
  }
}

// The module. Thread-safe.
std::string lower_fused(const FusedProgram& program);

}  // namespace torch_tpu::trace
