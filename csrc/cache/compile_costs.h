// What compiling costs on the plugin at hand: a single op, and a piece of the trace as one program.
// "One program, or one for each op?" is decided by seconds. The platform's figures count until what
// is measured says something quite different, so that processes which do the same decide alike, on
// a busy machine too. Thread-safe.
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

  // Whether a piece of so many ops is there sooner than the programs of its ops, which that many
  // threads compile. `programs` may be less than their number where others will need them, too.
  bool piece_is_cheaper(size_t nodes, double programs, size_t threads) const;

  // How many single ops one op of a piece costs.
  double node_per_single() const;

 private:
  mutable std::mutex mutex_;
  const double known_;  // the platform's node_per_single
  double seconds_of_singles_ = 0;
  double seconds_of_pieces_ = 0;
  size_t singles_ = 0;
  size_t nodes_ = 0;
};

}  // namespace torch_tpu::cache
