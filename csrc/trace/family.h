// A family: pieces of the trace that differ in sizes only. It decides when a piece gets a program
// of its own and when one program up to a bound serves many: a function of the pieces met and of
// nothing else, so every process that runs the same code decides alike.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "csrc/trace/bounded.h"
#include "csrc/trace/fused.h"

namespace torch_tpu::trace {

// The structure and the numbers of a piece. False when it can be in no family. The piece must be
// lowerable.
bool describe(const FusedProgram& piece, Key& structure, Numbers& numbers);

// Thread-safe.
class Family {
 public:
  explicit Family(Key structure) : structure_(std::make_shared<const Key>(std::move(structure))) {}
  const Key& structure() const { return *structure_; }

  // A piece of other sizes than those before.
  void add(Numbers numbers);

  // How often a piece must be met before it gets a program of its own. Sizes that change all the
  // time have to come again more often than there are of them.
  uint64_t sights_needed(bool has_bounded) const;

  // What serves the piece together with others, if it is time for that: `bounds` of a program there
  // is none of yet, else `program`. Both null: nothing does. `soon`: one program costs less than
  // what else it takes to run the piece, so two sizes are enough.
  struct Service {
    FusedPtr program;
    std::unique_ptr<Bounds> bounds;
    Point n{};
  };
  Service serve(const FusedProgram& piece, bool soon);
  // The program for the bounds that serve() gave.
  void keep(FusedPtr program);
  // It cannot be lowered: the pieces of these forms stay programs of their own.
  void refuse(const std::shared_ptr<const Forms>& forms, std::string why);

  std::string refusal() const;  // of the newest forms; empty: none was

 private:
  struct Variant {
    std::shared_ptr<const Forms> forms;
    std::set<Point> met;                 // sizes
    std::map<Point, FusedPtr> programs;  // by bound
    std::string refusal;
  };
  Variant* find(const Numbers& numbers, Point& n);
  Variant* learn(const Numbers& numbers, size_t sizes, Point& n);
  static FusedPtr known_program(const Variant& variant, const Point& n, const Point& bound);
  static std::unique_ptr<Bounds> first_bounds(const FusedProgram& piece, const Variant& variant,
                                              const Point& n);

  const std::shared_ptr<const Key> structure_;
  mutable std::mutex mutex_;
  std::vector<Numbers> recent_;  // the last of the different sizes
  uint64_t distinct_ = 0;
  std::vector<Variant> variants_;
};

}  // namespace torch_tpu::trace
