#include "csrc/trace/bounded.h"

#include <algorithm>
#include <bit>

#include "csrc/stablehlo/axis.h"
#include "csrc/trace/piece.h"
#include "csrc/trace/sized_node.h"

namespace torch_tpu::trace {
namespace {

using stablehlo::Builder;
using stablehlo::Dims;
using stablehlo::Type;
using stablehlo::Unproven;
using stablehlo::Value;
using stablehlo::Values;

constexpr int64_t kSmallestBound = 16;

using FormsRef = std::span<const Form>;

bool varies(FormsRef forms) {
  return std::any_of(forms.begin(), forms.end(), [](const Form& form) { return form.varies(); });
}

// The sizes of the buffers that a program takes and gives.
struct Boundary {
  std::vector<FormsRef> externals;
  std::vector<FormsRef> results;  // beside FusedProgram::alive
};

Boundary find_boundary(const FusedProgram& piece, const Forms& forms, const Point& n) {
  Boundary out;
  out.externals.resize(piece.num_externals);
  std::vector<FormsRef> outputs;
  FormsRef rest = forms.numbers;
  for_each_node(piece, [&](size_t at, size_t refs) {
    Node node = piece.nodes[at]->node();
    const NodeForms here = take_forms(rest, n, node);
    for (size_t i = 0; i < node.tensors.size(); ++i) {
      if (node.tensors[i].input < 0) continue;
      const uint32_t ref = piece.words[refs + static_cast<size_t>(node.tensors[i].input)];
      if (!is_internal(ref)) out.externals[index_of(ref)] = here.tensors[i].base;
    }
    for (size_t i = 0; i < node.results.size(); ++i) {
      const Result& result = node.results[i];
      if (!result.defined) continue;
      outputs.push_back(result.write >= 0 && !result.whole
                            ? here.tensors[static_cast<size_t>(result.write)].base
                            : here.results[i]);
    }
  });
  for (uint32_t k : piece.alive) out.results.push_back(outputs[k]);
  return out;
}

}  // namespace

int64_t next_bound(int64_t size, Grid grid) {
  const int64_t power =
      std::max(kSmallestBound, static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(size))));
  if (grid == Grid::kPowers) return power;
  const int64_t step = std::max<int64_t>(power / 8, 1);
  return std::max(kSmallestBound, (size + step - 1) / step * step);
}

bool Bounds::serves(const Point& sizes) const {
  for (size_t s = 0; s < symbols; ++s) {
    if (sizes[s] < low[s] || sizes[s] > high[s]) return false;
  }
  return true;
}

Bounds plan_bounds(const FusedProgram& piece, std::shared_ptr<const Forms> forms,
                   const Point& sizes, Grid grid) {
  const Boundary boundary = find_boundary(piece, *forms, sizes);
  // Sizes that are n and something share a bound, so that the cache of keys a step leaves is as
  // long as the one the next step takes.
  Point most{};
  std::array<bool, kMaxSymbols> any{};
  const auto look = [&](const std::vector<FormsRef>& all) {
    for (FormsRef each : all) {
      for (const Form& form : each) {
        const auto s = form.sum_with();
        if (!s) continue;
        most[*s] = any[*s] ? std::max(most[*s], form.constant()) : form.constant();
        any[*s] = true;
      }
    }
  };
  look(boundary.externals);
  look(boundary.results);
  Bounds out;
  out.symbols = count_symbols(*forms);
  out.low.fill(1);
  out.high.fill(1);
  out.bound.fill(1);
  for (size_t s = 0; s < out.symbols; ++s) {
    out.bound[s] = next_bound(sizes[s] + most[s], grid);
    out.high[s] = out.bound[s] - most[s];
    out.low[s] = 2;
  }
  const auto& tie = forms->tie;
  const auto follow = [&] {
    if (!tie) return;
    out.low[1] = tie->at(out.low);
    out.high[1] = tie->at(out.high);
    out.bound[1] = out.high[1] + std::max<int64_t>(most[1], 0);
  };
  follow();
  // Sizes of 1 and 0 mean something else: they repeat, and strides beside them are free.
  FormsRef rest = forms->numbers;
  for_each_node(piece, [&](size_t at, size_t) {
    Node node = piece.nodes[at]->node();
    const NodeForms here = take_forms(rest, sizes, node);
    const auto raise = [&](FormsRef each) {
      for (const Form& form : each) {
        if (!form.varies()) continue;
        if (!grows(form, out.low, out.high)) {
          throw Unproven("a size that shrinks as another one grows");
        }
        for (bool more = true; more && form.at(out.low) < 2;) {
          more = false;
          for (size_t s = 0; s < out.symbols; ++s) {
            const bool moves = tie ? s == 0 : form.has(s);
            if (!moves || out.low[s] >= out.high[s]) continue;
            ++out.low[s];
            more = true;
          }
          follow();
        }
      }
    };
    for (const TensorForms& tensor : here.tensors) {
      raise(tensor.sizes);
      raise(tensor.base);
    }
    for (FormsRef each : here.results) raise(each);
  });
  const auto room = [&](FormsRef each) {
    Shape dims;
    if (!varies(each)) return dims;
    for (const Form& form : each) {
      const auto s = form.sum_with();
      dims.push_back(s ? out.bound[*s] : form.at(out.high));
    }
    return dims;
  };
  for (FormsRef each : boundary.externals) out.externals.push_back(room(each));
  for (FormsRef each : boundary.results) out.results.push_back(room(each));
  out.forms = std::move(forms);
  return out;
}

namespace {

// From the buffer's size to what the ops compute with, and what counts of that.
Value enter(Builder& b, Value value, FormsRef sizes, const Point& high, const Symbols& symbols) {
  for (size_t d = 0; d < sizes.size(); ++d) {
    if (!sizes[d].varies()) continue;
    const auto dim = static_cast<int64_t>(d);
    value = b.slice_dim(value, dim, 0, sizes[d].at(high));
    value = b.vary(value, dim, symbols.size_of(sizes[d]));
  }
  return value;
}

// Merged dimensions are packed: in a buffer what counts comes first.
Value leave(Builder& b, Value value, const Shape& room) {
  if (room.empty()) return value;
  Dims high;
  for (int64_t d = 0; d < value.rank(); ++d) {
    value = b.trust(b.pack(value, d), d);
    high.push_back(room[static_cast<size_t>(d)] - value.dims()[static_cast<size_t>(d)]);
  }
  return b.pad(value, b.scalar(0, value.dtype()), Dims(high.size(), 0), high);
}

}  // namespace

std::string lower_bounded(const FusedProgram& program) {
  const Bounds& bounds = *program.bounds;
  const Boundary boundary = find_boundary(program, *bounds.forms, bounds.high);
  std::vector<Type> types = external_types(program);
  Builder b;
  Values externals;
  for (size_t i = 0; i < types.size(); ++i) {
    const Shape& room = bounds.externals[i];
    if (!room.empty()) types[i].dims.assign(room.begin(), room.end());
    externals.push_back(b.parameter(types[i]));
  }
  ScalarReader scalars(b, program.scalars);
  const Symbols symbols(b, scalars, bounds);
  for (size_t i = 0; i < types.size(); ++i) {
    externals[i] = enter(b, externals[i], boundary.externals[i], bounds.high, symbols);
  }
  FormsRef rest = bounds.forms->numbers;
  const auto prepare = [&](Node& node, NodeInputs& inputs) {
    NodeForms forms = take_forms(rest, bounds.high, node);
    if (node.entry->random && node.entry->bounded == ops::Bounded::kNo) {
      for (FormsRef sizes : forms.results) {
        if (varies(sizes)) throw Unproven(node.name + " draws as many numbers as vary");
      }
    }
    auto sizes = sized_node(b, node, std::move(forms), bounds, symbols);
    inputs.sizes = sizes.get();
    return sizes;
  };
  const PieceOutputs all = lower_nodes(b, program, externals, scalars, prepare);
  Values results;
  for (size_t i = 0; i < program.alive.size(); ++i) {
    results.push_back(leave(b, all.values[program.alive[i]], bounds.results[i]));
  }
  return finish_piece(b, std::move(results), all.flags, program.name);
}

}  // namespace torch_tpu::trace
