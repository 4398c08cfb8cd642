#include "csrc/trace/family.h"

#include <algorithm>

#include "csrc/stablehlo/axis.h"
#include "csrc/trace/settings_word.h"

namespace torch_tpu::trace {
namespace {

constexpr size_t kSizesToLearn = 3;  // different sizes that make a dimension one that varies
constexpr size_t kSizesAtLeast = 2;  // where waiting for the third costs more than it may save
constexpr size_t kMaxVariants = 8;   // ways to vary that a family may have
// How much larger than needed the bound of the first program may be, if sizes met ask for it; if
// they grow, it is twice as large, up to kLargestRoom: who meets a second size will meet more of
// them, and to run with room costs less than to wait for the compiler again.
constexpr int64_t kMostRoom = 4;
constexpr int64_t kRoomToGrow = 2;
constexpr int64_t kLargestRoom = 1024;
// A program that is there already may have even more: better ones are compiled meanwhile.
constexpr int64_t kMostRoomOfOld = 32;
// When a program with less room is worth compiling: sizes met for the first time count 1, sizes
// that come again kAgain. Half the room saves more than a quarter of it.
constexpr uint64_t kAgain = 8;
constexpr uint64_t kAskedForPower = 64;
constexpr uint64_t kAskedForQuarter = 256;
// A piece that a bounded program serves has to come again so much more often before it is compiled
// for its own sizes, which at best takes half the time.
constexpr uint64_t kBoundedPatience = 32;

}  // namespace

bool describe(const FusedProgram& piece, Key& structure, Numbers& numbers) {
  bool known = true;
  for_each_node(piece, [&](size_t n, size_t refs) {
    const Program& program = *piece.nodes[n];
    const uint64_t settings = program.key.data()[1];  // outside the arguments
    structure.add(settings);
    if (settings >> kOptionsShift != 0) {
      for (const size_t word : {2, 3}) structure.add(program.key.data()[word]);
    }
    for (int i = 0; i < program.num_inputs; ++i) {
      structure.add(uint64_t{piece.words[refs + static_cast<size_t>(i)]});
    }
    known = known && describe(program.node(), numbers, structure);
  });
  structure.add(~uint64_t{0});
  for (uint32_t k : piece.alive) structure.add(uint64_t{k});
  return known;
}

void Family::add(Numbers numbers) {
  const std::lock_guard lock(mutex_);
  ++distinct_;
  if (recent_.size() == kSizesToLearn) recent_.erase(recent_.begin());
  recent_.push_back(std::move(numbers));
}

uint64_t Family::sights_needed(bool has_bounded) const {
  const std::lock_guard lock(mutex_);
  if (has_bounded) return kBoundedPatience * distinct_;
  return distinct_ < kSizesToLearn ? 2 : distinct_ + 1;
}

Family::Variant* Family::find(const Numbers& numbers, Point& n) {
  for (auto at = variants_.rbegin(); at != variants_.rend(); ++at) {
    if (const auto size = solve(*at->forms, numbers)) {
      n = *size;
      return &*at;
    }
  }
  return nullptr;
}

// From the last different sizes, of which the piece is one.
Family::Variant* Family::learn(const Numbers& numbers, size_t sizes_needed, Point& n) {
  if (variants_.size() == kMaxVariants || recent_.size() < sizes_needed) return nullptr;
  if (recent_.back() != numbers) return nullptr;
  std::vector<const Numbers*> pieces;
  for (const Numbers& each : recent_) pieces.push_back(&each);
  std::vector<Point> sizes;
  auto forms = fit(pieces, sizes);
  if (!forms) return nullptr;
  Variant variant;
  variant.forms = std::make_shared<const Forms>(std::move(*forms));
  variant.met.insert(sizes.begin(), sizes.end());
  n = sizes.back();
  variants_.push_back(std::move(variant));
  return &variants_.back();
}

// Of those that have code the one with the least room; else the same of those being compiled.
FusedPtr Family::known_program(const Variant& variant, const Point& n) {
  FusedPtr best;
  int64_t least = 0;
  for (const auto& [room, program] : variant.programs) {
    const bool fits = room[0] * room[1] <= n[0] * n[1] * kMostRoomOfOld;
    if (!fits || !program->bounds->serves(n) || program->code.state() == Code::State::kFailed) {
      continue;
    }
    const bool ready = program->code.ready();
    const bool better = !best || (ready && !best->code.ready()) ||
                        (ready == best->code.ready() && room[0] * room[1] < least);
    if (!better) continue;
    best = program;
    least = room[0] * room[1];
  }
  return best;
}

// The first bound has to serve two sizes: then it is known that they go on changing. Null: it does
// not.
std::unique_ptr<Bounds> Family::first_bounds(const FusedProgram& piece, const Variant& variant,
                                             const Point& n, bool roomy) {
  Point room = n;
  for (size_t s = 0; s < count_symbols(*variant.forms); ++s) {
    bool grows = roomy;
    for (const Point& met : variant.met) {
      if (met[s] <= n[s] * kMostRoom) room[s] = std::max(room[s], met[s]);
      grows = grows && met[s] <= n[s];
    }
    if (grows) room[s] = std::max(room[s], std::min(n[s] * kRoomToGrow, kLargestRoom));
  }
  auto bounds = std::make_unique<Bounds>(plan_bounds(piece, variant.forms, room));
  const auto served =
      std::ranges::count_if(variant.met, [&](const Point& sizes) { return bounds->serves(sizes); });
  return served < 2 ? nullptr : std::move(bounds);
}

Family::Service Family::serve(const FusedProgram& piece, bool soon, bool roomy) {
  Service out;
  const std::lock_guard lock(mutex_);
  const size_t sizes_needed = soon ? kSizesAtLeast : kSizesToLearn;
  if (distinct_ < sizes_needed) return out;
  Key structure;
  Numbers numbers;
  describe(piece, structure, numbers);
  Variant* variant = find(numbers, out.n);
  if (variant == nullptr) variant = learn(numbers, sizes_needed, out.n);
  if (variant == nullptr) return out;
  // Also where larger bounds cannot be had.
  variant->met.insert(out.n);
  out.program = known_program(*variant, out.n);
  if (out.program || !variant->refusal.empty()) return out;
  try {
    auto bounds = variant->programs.empty() ? first_bounds(piece, *variant, out.n, roomy)
                                            : planned(piece, *variant, out.n, Grid::kPowers);
    if (!bounds || !bounds->serves(out.n)) return out;
    bounds->structure = structure_;
    out.bounds.push_back(std::move(*bounds));
    // What is not proven with so much room may be with less.
    Bounds tight = *planned(piece, *variant, out.n, Grid::kPowers);
    if (tight.bound != out.bounds[0].bound) out.bounds.push_back(std::move(tight));
  } catch (const stablehlo::Unproven& error) {
    variant->refusal = error.what();
  }
  return out;
}

std::unique_ptr<Bounds> Family::planned(const FusedProgram& piece, const Variant& variant,
                                        const Point& n, Grid grid) const {
  auto bounds = std::make_unique<Bounds>(plan_bounds(piece, variant.forms, n, grid));
  bounds->structure = structure_;
  return bounds;
}

FusedPtr Family::best(const FusedProgram::Service& service) const {
  const std::lock_guard lock(mutex_);
  for (const Variant& variant : variants_) {
    if (variant.forms != service.program->bounds->forms) continue;
    FusedPtr known = known_program(variant, service.sizes);
    if (known && known->code.ready()) return known;
  }
  return service.program;
}

std::unique_ptr<Bounds> Family::plan_ahead(const FusedProgram& piece,
                                           const FusedProgram::Service& service, uint64_t sights) {
  const Bounds& have = *service.program->bounds;
  const Point& n = service.sizes;
  const std::lock_guard lock(mutex_);
  const auto at = std::ranges::find(variants_, have.forms, &Variant::forms);
  if (at == variants_.end() || !at->refusal.empty()) return {};
  const auto worth = [&](Grid grid, uint64_t needed) {
    Point bound = have.bound;
    for (size_t s = 0; s < (have.forms->tie ? 1 : have.symbols); ++s) {
      bound[s] = next_bound(n[s] + have.bound[s] - have.high[s], grid);
    }
    if (have.forms->tie) {
      const int64_t high = bound[0] - (have.bound[0] - have.high[0]);
      bound[1] = have.forms->tie->at({high, 1}) + have.bound[1] - have.high[1];
    }
    if (bound == have.bound || at->programs.contains(bound)) return false;
    uint64_t& asked = at->asked[bound];
    asked += sights > 1 ? kAgain : 1;
    if (asked < needed) return false;
    asked = 0;  // if nothing comes of it, not every time
    return true;
  };
  try {
    std::unique_ptr<Bounds> out;
    if (worth(Grid::kPowers, kAskedForPower)) {
      out = planned(piece, *at, n, Grid::kPowers);
    } else if (worth(Grid::kQuarters, kAskedForQuarter)) {
      out = planned(piece, *at, n, Grid::kQuarters);
    } else if (sights == 1) {
      if (const auto next = next_sizes(*at, service)) {
        out = planned(piece, *at, *next, Grid::kPowers);
        return at->programs.contains(out->bound) ? nullptr : std::move(out);
      }
    }
    return out && out->serves(n) && !at->programs.contains(out->bound) ? std::move(out) : nullptr;
  } catch (const stablehlo::Unproven&) {  // not for those bounds
    return {};
  }
}

// Past the largest bound there is of a symbol, if the sizes grow and are near to it.
std::optional<Point> Family::next_sizes(const Variant& variant,
                                        const FusedProgram::Service& service) {
  const Bounds& have = *service.program->bounds;
  const Point& n = service.sizes;
  for (size_t s = 0; s < have.symbols; ++s) {
    bool grows = (n[s] + have.bound[s] - have.high[s]) * 4 > have.bound[s] * 3;
    for (const Point& met : variant.met) grows = grows && met[s] <= n[s];
    for (const auto& [bound, program] : variant.programs) {
      grows = grows && bound[s] <= have.bound[s];
    }
    if (!grows) continue;
    Point next = n;
    next[s] = have.high[s] + 1;
    return next;
  }
  return {};
}

void Family::keep(FusedPtr program) {
  const std::lock_guard lock(mutex_);
  for (Variant& variant : variants_) {
    if (variant.forms == program->bounds->forms) {
      variant.programs[program->bounds->bound] = program;
    }
  }
}

void Family::refuse(const std::shared_ptr<const Forms>& forms, std::string why) {
  const std::lock_guard lock(mutex_);
  for (Variant& variant : variants_) {
    if (variant.forms == forms) variant.refusal = why;
  }
}

std::string Family::refusal() const {
  const std::lock_guard lock(mutex_);
  return variants_.empty() ? std::string() : variants_.back().refusal;
}

}  // namespace torch_tpu::trace
