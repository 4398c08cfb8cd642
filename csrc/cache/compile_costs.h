// What compiling costs on the plugin at hand: a single op, and a piece of the trace as one program.
// Starts from figures of the platform and follows what is measured, so that "one program, or one
// for each op?" is decided by seconds. Thread-safe.
#pragma once

#include <cstddef>
#include <mutex>

#include "csrc/pjrt/plugin.h"

namespace torch_tpu::cache {

class CompileCosts {
 public:
  static CompileCosts& get();
  explicit CompileCosts(pjrt::PlatformKind kind);

  void note_single(double seconds);
  // Of a piece with that many ops, compiled to be there soon.
  void note_piece(size_t nodes, double seconds);

  // Seconds until they are there, with so many threads at work. `programs` may be less than their
  // number where some will be of use to others, too.
  double singles(double programs, size_t threads) const;
  double piece(size_t nodes) const;

 private:
  mutable std::mutex mutex_;
  double single_;
  double node_;
  const double fixed_;  // of a piece, whatever is in it
};

}  // namespace torch_tpu::cache
