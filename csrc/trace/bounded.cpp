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
using stablehlo::Size;
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

Boundary find_boundary(const FusedProgram& piece, const Forms& forms, int64_t n) {
  Boundary out;
  out.externals.resize(piece.num_externals);
  std::vector<FormsRef> outputs;
  FormsRef rest = forms;
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

// Sizes that are n and something: they share a bound, so that the cache of keys a step leaves is
// as long as the one the next step takes.
bool grows_with_n(const Form& form) { return form.c1 == 1 && form.c2 == 0; }

}  // namespace

int64_t next_bound(int64_t size, Grid grid) {
  const int64_t power =
      std::max(kSmallestBound, static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(size))));
  if (grid == Grid::kPowers) return power;
  const int64_t step = std::max<int64_t>(power / 8, 1);
  return std::max(kSmallestBound, (size + step - 1) / step * step);
}

Bounds plan_bounds(const FusedProgram& piece, std::shared_ptr<const Forms> forms, int64_t n,
                   Grid grid) {
  const Boundary boundary = find_boundary(piece, *forms, n);
  int64_t most = 0;
  bool any = false;
  const auto look = [&](const std::vector<FormsRef>& all) {
    for (FormsRef sizes : all) {
      for (const Form& form : sizes) {
        if (form.c1 < 0 || form.c2 != 0) {
          throw Unproven("a size that does not grow in step with the one that varies");
        }
        if (!grows_with_n(form)) continue;
        most = any ? std::max(most, form.c0) : form.c0;
        any = true;
      }
    }
  };
  look(boundary.externals);
  look(boundary.results);
  Bounds out;
  out.bound = next_bound(n + most, grid);
  out.high = out.bound - most;
  out.low = 2;
  // Sizes of 1 and 0 mean something else: they repeat, and strides beside them are free.
  FormsRef rest = *forms;
  for_each_node(piece, [&](size_t at, size_t) {
    Node node = piece.nodes[at]->node();
    const NodeForms here = take_forms(rest, n, node);
    const auto raise = [&](FormsRef sizes) {
      for (const Form& form : sizes) {
        if (!form.varies()) continue;
        if (form.c1 < 0 || form.c2 < 0) throw Unproven("a size that shrinks as another one grows");
        while (form.at(out.low) < 2 && out.low < out.high) ++out.low;
      }
    };
    for (const TensorForms& tensor : here.tensors) {
      raise(tensor.sizes);
      raise(tensor.base);
    }
    for (FormsRef sizes : here.results) raise(sizes);
  });
  const auto room = [&](FormsRef sizes) {
    Shape dims;
    if (!varies(sizes)) return dims;
    for (const Form& form : sizes) {
      dims.push_back(grows_with_n(form) ? out.bound : form.at(out.high));
    }
    return dims;
  };
  for (FormsRef sizes : boundary.externals) out.externals.push_back(room(sizes));
  for (FormsRef sizes : boundary.results) out.results.push_back(room(sizes));
  out.forms = std::move(forms);
  return out;
}

namespace {

// From the buffer's size to what the ops compute with, and what counts of that.
Value enter(Builder& b, Value value, FormsRef sizes, int64_t high, const Size& n) {
  for (size_t d = 0; d < sizes.size(); ++d) {
    if (!sizes[d].varies()) continue;
    const auto dim = static_cast<int64_t>(d);
    value = b.slice_dim(value, dim, 0, sizes[d].at(high));
    value = b.vary(value, dim, n * sizes[d].c1 + sizes[d].c0);
  }
  return value;
}

Value leave(Builder& b, Value value, const Shape& room) {
  if (room.empty()) return value;
  Dims high;
  for (int64_t d = 0; d < value.rank(); ++d) {
    if (value.type().varies(d) && b.axis(value, d).size() != 1) {
      throw Unproven("a result with merged dimensions, " + value.type().str());
    }
    value = b.trust(value, d);
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
  const Size n = b.new_size(scalars.size());
  for (size_t i = 0; i < types.size(); ++i) {
    externals[i] = enter(b, externals[i], boundary.externals[i], bounds.high, n);
  }
  FormsRef rest = *bounds.forms;
  const auto prepare = [&](Node& node, NodeInputs& inputs) {
    NodeForms forms = take_forms(rest, bounds.high, node);
    if (node.entry->random && node.entry->bounded == ops::Bounded::kNo) {
      for (FormsRef sizes : forms.results) {
        if (varies(sizes)) throw Unproven(node.name + " draws as many numbers as vary");
      }
    }
    auto sizes = sized_node(b, node, std::move(forms), bounds, n);
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
