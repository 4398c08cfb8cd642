// A family: pieces of the trace that differ in sizes only. It decides when a piece gets a program
// of its own and when one program up to a bound serves many: a function of the pieces met and of
// nothing else, so every process that runs the same code decides alike.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
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

  // What serves the piece together with others, if it is time for that: `bounds` of programs there
  // are none of yet, the first that can be had, else `program`, which may still be compiled by
  // another thread. Both null: nothing does. `soon`: one program costs less than what else it takes
  // to run the piece, so two sizes are enough. `roomy`: there is memory for more room than these
  // sizes need.
  struct Service {
    FusedPtr program;
    std::vector<Bounds> bounds;  // the best first
    Point n{};
  };
  Service serve(const FusedProgram& piece, bool soon, bool roomy);
  // A program for bounds that serve() or plan_ahead() gave. It may still be without code.
  void keep(FusedPtr program);
  // The program with the least room that has code and serves what `service` serves.
  FusedPtr best(const FusedProgram::Service& service) const;
  // Bounds of a program that is worth compiling while `service` serves the piece, whose `sights`th
  // sight this is: one with less room for sizes that keep coming, or the next larger one for sizes
  // that keep growing. Null: none is.
  std::unique_ptr<Bounds> plan_ahead(const FusedProgram& piece,
                                     const FusedProgram::Service& service, uint64_t sights);
  // It cannot be lowered: the pieces of these forms stay programs of their own.
  void refuse(const std::shared_ptr<const Forms>& forms, std::string why);

  std::string refusal() const;  // of the newest forms; empty: none was

 private:
  struct Variant {
    std::shared_ptr<const Forms> forms;
    std::set<Point> met;                 // sizes
    std::map<Point, FusedPtr> programs;  // by bound, with and without code
    std::map<Point, uint64_t> asked;     // by bound, of programs there are none of
    std::string refusal;
  };
  Variant* find(const Numbers& numbers, Point& n);
  Variant* learn(const Numbers& numbers, size_t sizes, Point& n);
  static FusedPtr known_program(const Variant& variant, const Point& n);
  static std::unique_ptr<Bounds> first_bounds(const FusedProgram& piece, const Variant& variant,
                                              const Point& n, bool roomy);
  static std::optional<Point> next_sizes(const Variant& variant,
                                         const FusedProgram::Service& service);
  std::unique_ptr<Bounds> planned(const FusedProgram& piece, const Variant& variant, const Point& n,
                                  Grid grid) const;

  const std::shared_ptr<const Key> structure_;
  mutable std::mutex mutex_;
  std::vector<Numbers> recent_;  // the last of the different sizes
  uint64_t distinct_ = 0;
  std::vector<Variant> variants_;
};

}  // namespace torch_tpu::trace
