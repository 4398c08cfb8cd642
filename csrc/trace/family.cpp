#include "csrc/trace/family.h"

#include <algorithm>

#include "csrc/stablehlo/axis.h"

namespace torch_tpu::trace {
namespace {

constexpr size_t kSizesToLearn = 3;  // different sizes that make a dimension one that varies
constexpr size_t kSizesAtLeast = 2;  // where waiting for the third costs more than it may save
constexpr size_t kMaxVariants = 8;   // ways to vary that a family may have
// How much larger than needed the bound of a program may be that is there already. To run in it
// costs less than to compile another one, up to many runs.
constexpr int64_t kMostRoom = 4;
// A piece that a bounded program serves has to come again so much more often before it is compiled
// for its own sizes, which at best takes half the time.
constexpr uint64_t kBoundedPatience = 32;

}  // namespace

bool describe(const FusedProgram& piece, Key& structure, Numbers& numbers) {
  bool known = true;
  for_each_node(piece, [&](size_t n, size_t refs) {
    const Program& program = *piece.nodes[n];
    structure.add(program.key.data()[1]);  // settings outside the arguments
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

// The one with the least room.
FusedPtr Family::known_program(const Variant& variant, const Point& n, const Point& bound) {
  FusedPtr best;
  int64_t least = 0;
  for (const auto& [room, program] : variant.programs) {
    const bool fits = room[0] <= bound[0] * kMostRoom && room[1] <= bound[1] * kMostRoom;
    if (!fits || !program->bounds->serves(n) || (best && room[0] * room[1] >= least)) continue;
    best = program;
    least = room[0] * room[1];
  }
  return best;
}

// The first bound has to serve two sizes: then it is known that they go on changing. Null: it does
// not.
std::unique_ptr<Bounds> Family::first_bounds(const FusedProgram& piece, const Variant& variant,
                                             const Point& n) {
  Point most = n;
  for (const Point& met : variant.met) {
    for (size_t s = 0; s < kMaxSymbols; ++s) {
      if (met[s] <= n[s] * kMostRoom) most[s] = std::max(most[s], met[s]);
    }
  }
  auto bounds = std::make_unique<Bounds>(plan_bounds(piece, variant.forms, most));
  const auto served =
      std::ranges::count_if(variant.met, [&](const Point& sizes) { return bounds->serves(sizes); });
  return served < 2 ? nullptr : std::move(bounds);
}

Family::Service Family::serve(const FusedProgram& piece, bool soon) {
  Service out;
  const std::lock_guard lock(mutex_);
  const size_t sizes_needed = soon ? kSizesAtLeast : kSizesToLearn;
  if (distinct_ < sizes_needed) return out;
  Key structure;
  Numbers numbers;
  describe(piece, structure, numbers);
  Variant* variant = find(numbers, out.n);
  if (variant == nullptr) variant = learn(numbers, sizes_needed, out.n);
  if (variant == nullptr || !variant->refusal.empty()) return out;
  try {
    auto bounds = std::make_unique<Bounds>(plan_bounds(piece, variant->forms, out.n));
    if (!bounds->serves(out.n)) return out;
    variant->met.insert(out.n);
    out.program = known_program(*variant, out.n, bounds->bound);
    if (out.program) return out;
    if (variant->programs.empty()) bounds = first_bounds(piece, *variant, out.n);
    if (!bounds) return out;
    bounds->structure = structure_;
    out.bounds = std::move(bounds);
  } catch (const stablehlo::Unproven& error) {
    variant->refusal = error.what();
  }
  return out;
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
