// A recorded module that XLA partitions over several devices of this process, and runs on all of
// them at once: what torch_tpu.spmd stands on. An argument is one plain tensor per device, its
// part. Recording is GraphRecording::module; the annotations are torch_tpu/spmd's.
#pragma once

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "csrc/dispatch/sharded/sharded_code.h"
#include "csrc/ops/source.h"

namespace torch_tpu::dispatch {

struct ShardedModule {
  struct Output {
    int write;  // the argument whose new contents it is, or -1 for a result of the call
    c10::ScalarType dtype;
  };
  std::string name;
  std::string text;
  std::vector<int> devices;  // in the order of the mesh
  std::vector<Output> outputs;
  std::vector<ops::ValueCheck> checks;  // one s64 result each, after the outputs
  uint64_t draws = 0;
  bool checks_differ = false;  // from device to device: each has parts of its own
};

// Immutable; may be run by several threads.
class ShardedProgram final : public c10::intrusive_ptr_target {
 public:
  using Parts = std::vector<at::Tensor>;  // one per device

  // Compiles, or loads from disk. Throws pjrt::Error when the compiler does not take the text.
  explicit ShardedProgram(ShardedModule module);

  // One list of parts per argument; an empty one is the generator's state. Gives the results that
  // are not writes; those are in the arguments then.
  std::vector<Parts> run(const std::vector<Parts>& args);

  const trace::Code& code() const { return code_.code(); }

 private:
  const ShardedModule module_;
  ShardedCode code_;
};

}  // namespace torch_tpu::dispatch
