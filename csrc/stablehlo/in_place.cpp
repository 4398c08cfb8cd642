// Whether an update may be written over what it is computed from.
//
// XLA writes a dynamic_update_slice over its operand, and fuses into it what the update is computed
// from. It leaves that be where a slice of that operand is among it, but looks for the operand
// itself: with a reshape between the two it does not see that they are one array, and elements are
// read after they were overwritten (x[0] += 1; x[1:] = x[:-1].clone() repeated rows). An
// optimization barrier is gone before that. So whoever writes has to know.
#include <algorithm>
#include <unordered_map>

#include "csrc/base/hash.h"
#include "csrc/stablehlo/builder_impl.h"

namespace torch_tpu::stablehlo {
namespace {

int64_t bytes_of(const Type& type) { return product(type.dims) * dtype_bytes(type.dtype); }

// Element i of the result needs nothing but element i of each operand of the same shape.
bool is_elementwise(const Instruction& op) {
  if (op.form == Form::kSameType || op.form == Form::kAlias) return true;
  if (op.name.starts_with("chlo.")) return op.name != "chlo.top_k";
  for (std::string_view name : {"abs", "real", "imag", "is_finite", "complex", "select", "clamp",
                                "convert", "compare", "reduce_precision"}) {
    if (short_name(op.name) == name) return true;
  }
  return false;
}

// All values that some value is computed from, itself included.
class Sources {
 public:
  explicit Sources(const Graph& graph) : graph_(graph), reached_(graph.types.size(), kNot) {}

  // `own` is passed over where it is reached element by element. Below what `stop` says of an
  // instruction nothing is looked for.
  template <typename Stop>
  void add(int32_t from, int32_t own, const Stop& stop) {
    reach(from, kStraight);
    while (!open_.empty()) {
      const int32_t id = open_.back();
      open_.pop_back();
      const int32_t at = graph_.definition[static_cast<size_t>(id)];
      if (at < 0 || (id == own && reached_[static_cast<size_t>(id)] == kStraight)) continue;
      const Instruction& op = graph_.instructions[static_cast<size_t>(at)];
      if (!stop(op)) add_operands(op, id);
    }
  }

  bool has(int32_t id) const { return reached_[static_cast<size_t>(id)] != kNot; }
  const std::vector<int32_t>& all() const { return all_; }

 private:
  enum State : uint8_t { kNot, kStraight, kAround };

  void reach(int32_t id, State how) {
    State& state = reached_[static_cast<size_t>(id)];
    if (state >= how) return;
    if (state == kNot) all_.push_back(id);
    state = how;
    open_.push_back(id);
  }

  void add_operands(const Instruction& op, int32_t id) {
    const bool straight = reached_[static_cast<size_t>(id)] == kStraight && is_elementwise(op);
    const auto add = [&](int32_t operand) {
      const bool same = graph_.types[static_cast<size_t>(operand)].dims ==
                        graph_.types[static_cast<size_t>(id)].dims;
      reach(operand, straight && same ? kStraight : kAround);
    };
    for (int32_t operand : op.operands) add(operand);
    for (int32_t region : op.regions) add_region(region);
  }

  // Regions may use values from outside.
  void add_region(int32_t region) {
    const Block& block = graph_.blocks[static_cast<size_t>(region)];
    for (int32_t result : block.results) reach(result, kAround);
    for (int32_t at : block.instructions) {
      const Instruction& op = graph_.instructions[static_cast<size_t>(at)];
      for (int32_t operand : op.operands) reach(operand, kAround);
      for (int32_t inner : op.regions) add_region(inner);
    }
  }

  const Graph& graph_;
  std::vector<State> reached_;  // by value
  std::vector<int32_t> all_;
  std::vector<int32_t> open_;
};

// Values that are computed alike have one number: the compiler makes one array of them.
class Alike {
 public:
  explicit Alike(const Graph& graph) : graph_(graph) {}

  bool are(int32_t a, int32_t b) { return a == b || number(a) == number(b); }

 private:
  // By depth first, without recursion: graphs are deep.
  uint64_t number(int32_t id) {
    std::vector<int32_t> open = {id};
    while (!open.empty()) {
      const int32_t at = open.back();
      const Instruction* op = maker(at);
      bool ready = true;
      if (op != nullptr && !known_.contains(at)) {
        for (int32_t operand : op->operands) {
          if (known_.contains(operand)) continue;
          open.push_back(operand);
          ready = false;
        }
      }
      if (!ready) continue;
      open.pop_back();
      known_.try_emplace(at, compute(at, op));
    }
    return known_.at(id);
  }

  // Null: of nothing that can be compared.
  const Instruction* maker(int32_t id) const {
    const int32_t at = graph_.definition[static_cast<size_t>(id)];
    if (at < 0) return nullptr;
    const Instruction& op = graph_.instructions[static_cast<size_t>(at)];
    return op.side_effect || !op.regions.empty() ? nullptr : &op;
  }

  uint64_t compute(int32_t id, const Instruction* op) const {
    if (op == nullptr) return base::hash_mix(static_cast<uint64_t>(id), 0x9e3779b97f4a7c15ULL);
    uint64_t hash =
        base::hash_combine(base::hash_bytes(op->name), base::hash_bytes(op->attributes));
    hash = base::hash_combine(hash, static_cast<uint64_t>(id - op->first_result));
    const Type& type = graph_.types[static_cast<size_t>(id)];
    hash = base::hash_combine(hash, static_cast<uint64_t>(type.dtype));
    for (int64_t dim : type.dims) hash = base::hash_combine(hash, static_cast<uint64_t>(dim));
    for (int32_t operand : op->operands) hash = base::hash_combine(hash, known_.at(operand));
    return hash;
  }

  const Graph& graph_;
  std::unordered_map<int32_t, uint64_t> known_;
};

}  // namespace

bool Builder::reads_elsewhere(const Value& update, const Value& base, const Value& own) const {
  const Graph& graph = impl_->graph;
  const int32_t passed = own.defined() ? own.id() : -1;
  Sources read(graph);
  read.add(update.id(), passed, [](const Instruction&) { return false; });
  std::vector<int32_t> large;  // as large as the base
  for (int32_t id : read.all()) {
    const Type& type = graph.types[static_cast<size_t>(id)];
    if (id != passed && bytes_of(type) == bytes_of(base.type())) large.push_back(id);
  }
  if (large.empty()) return false;
  // The base may be simplified to any array of its size that it is computed from (-(-x) to x), but
  // not to those that it was written over by parts.
  Sources same(graph);
  same.add(base.id(), -1,
           [](const Instruction& op) { return op.name == "stablehlo.dynamic_update_slice"; });
  if (std::any_of(large.begin(), large.end(), [&](int32_t id) { return same.has(id); }))
    return true;
  Alike alike(graph);
  for (int32_t id : large) {
    for (int32_t other : same.all()) {
      if (bytes_of(graph.types[static_cast<size_t>(other)]) != bytes_of(base.type())) continue;
      if (alike.are(id, other)) return true;
    }
  }
  return false;
}

}  // namespace torch_tpu::stablehlo
