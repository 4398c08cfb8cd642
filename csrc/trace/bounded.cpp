#include "csrc/trace/bounded.h"

#include <algorithm>
#include <bit>

#include "csrc/stablehlo/axis.h"
#include "csrc/trace/lower.h"
#include "csrc/trace/scalar_reader.h"
#include "csrc/trace/view.h"

namespace torch_tpu::trace {
namespace {

using stablehlo::Axis;
using stablehlo::Builder;
using stablehlo::Dims;
using stablehlo::DType;
using stablehlo::Factor;
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

int64_t bucket(int64_t size) {
  return std::max(kSmallestBound, static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(size))));
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
    Node node = *piece.nodes[at]->node;
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

Bounds plan_bounds(const FusedProgram& piece, std::shared_ptr<const Forms> forms, int64_t n) {
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
  out.bound = bucket(n + most);
  out.high = out.bound - most;
  out.low = out.bound == kSmallestBound ? 2 : out.bound / 2 - most + 1;
  // Sizes of 1 and 0 mean something else: they repeat, and strides beside them are free.
  FormsRef rest = *forms;
  for_each_node(piece, [&](size_t at, size_t) {
    Node node = *piece.nodes[at]->node;
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

// Which values do not depend on where they stand: their first elements are those of a smaller size.
bool is_uniform(const Node& node) {
  const std::string_view name = node.entry->name;
  return name == "fill.Scalar" || name == "fill.Tensor" || name == "zero" ||
         name.starts_with("arange");
}

class SizedNode final : public NodeSizes {
 public:
  SizedNode(Builder& b, const Node& node, const NodeForms& forms, const Bounds& bounds,
            const Size& n)
      : b_(b), node_(node), forms_(forms), bounds_(bounds), n_(n) {}

  Value read(size_t tensor, const Value& base) override {
    const TensorArg& arg = node_.tensors[tensor];
    const TensorForms& forms = forms_.tensors[tensor];
    const DType dtype = ops::to_dtype(arg.dtype);
    if (!varies(forms.strides) && !varies(forms.base_strides) && !has_gaps(base) &&
        (varies(forms.sizes) || forms.offset.varies())) {
      return declare(read_box(arg, forms, base, dtype), forms.sizes);
    }
    if (forms.offset.varies()) {
      throw Unproven(node_.name + " reads a view whose place and strides vary");
    }
    const Value value = read_view(base, arg.base_strides, arg.geometry, dtype);
    compare(value, forms.sizes, "what it reads");
    return value;
  }

  Value unwritten(size_t tensor, const Value& value) override {
    return declare(value, forms_.tensors[tensor].sizes);
  }

  Value result(size_t index, const Value& value) override {
    const FormsRef sizes = forms_.results[index];
    if (value.type().is_static() && varies(sizes) && is_uniform(node_)) {
      return declare(value, sizes);
    }
    compare(value, sizes, "its result");
    return value;
  }

 private:
  Size size_of(const Form& form) const {
    if (form.c2 != 0) throw Unproven(node_.name + " has a size that is a square");
    return n_ * form.c1 + form.c0;
  }

  // Merged dimensions: what counts does not lie together.
  bool has_gaps(const Value& value) const {
    for (int64_t d = 0; d < value.rank(); ++d) {
      if (value.type().varies(d) && b_.axis(value, d).size() != 1) return true;
    }
    return false;
  }

  // The value, of which the elements within the sizes count.
  Value declare(const Value& value, FormsRef sizes) {
    Value out = value;
    for (size_t d = 0; d < sizes.size(); ++d) {
      const auto dim = static_cast<int64_t>(d);
      out = b_.trust(out, dim);
      if (sizes[d].varies()) out = b_.vary(out, dim, size_of(sizes[d]));
    }
    return out;
  }

  // The strides are the same for all n, so each element of the true view is where it is in that of
  // the bound. The place may vary: it is known at run time.
  Value read_box(const TensorArg& arg, const TensorForms& forms, const Value& base, DType dtype) {
    Value storage = base;
    for (int64_t d = 0; d < base.rank(); ++d) storage = b_.trust(storage, d);
    const Type whole(base.dtype(), base.dims());
    int64_t needed = 1;
    for (size_t i = 0; i < arg.geometry.sizes.size(); ++i) {
      needed += (arg.geometry.sizes[i] - 1) * arg.geometry.strides[i];
    }
    const int64_t last =
        needed + std::max(forms.offset.at(bounds_.low), forms.offset.at(bounds_.high));
    if (!forms.offset.varies() && last <= whole.numel()) {
      return read_view(storage, arg.base_strides, arg.geometry, dtype);
    }
    if (base.dtype() != dtype) throw Unproven(node_.name + " reads a view of another dtype");
    Geometry flat;  // the storage in its own order
    flat.sizes = {whole.numel()};
    flat.strides = {1};
    storage = read_view(storage, arg.base_strides, flat, dtype);
    if (last > whole.numel()) {
      storage = b_.pad(storage, b_.scalar(0, dtype), {0}, {last - whole.numel()});
    }
    Geometry view = arg.geometry;
    if (forms.offset.varies()) {
      storage = b_.dynamic_slice(storage, {b_.size_value(size_of(forms.offset))}, {needed});
      view.offset = 0;
    }
    return read_view(storage, flat.strides, view, dtype);
  }

  // What counts is what the sizes say, for every n that is served.
  void compare(const Value& value, FormsRef sizes, const char* what) {
    for (size_t d = 0; d < sizes.size(); ++d) {
      if (counts_are(value, static_cast<int64_t>(d), sizes[d])) continue;
      throw Unproven(node_.name + ": " + what + " has another size than is known, " +
                     value.type().str());
    }
  }

  bool counts_are(const Value& value, int64_t dim, const Form& form) {
    if (!value.type().varies(dim)) return !form.varies();
    const Axis& axis = b_.axis(value, dim);
    if (axis.size() == 1 && form.c2 == 0 && axis[0].size == size_of(form)) return true;
    for (int64_t n = bounds_.low; n <= bounds_.high; ++n) {
      int64_t count = 1;
      for (const Factor& factor : axis) {
        count *= factor.varies ? b_.evaluate(factor.size, {n}) : factor.extent;
      }
      if (count != form.at(n)) return false;
    }
    return true;
  }

  Builder& b_;
  const Node& node_;
  const NodeForms& forms_;
  const Bounds& bounds_;
  const Size& n_;
};

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
  std::vector<Type> types(program.num_externals);
  for_each_node(program, [&](size_t at, size_t refs) {
    for (const TensorArg& tensor : program.nodes[at]->node->tensors) {
      if (tensor.input < 0) continue;
      const uint32_t ref = program.words[refs + static_cast<size_t>(tensor.input)];
      if (!is_internal(ref)) types[index_of(ref)] = tensor.base;
    }
  });
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
  Values outputs;
  Values flags;
  FormsRef rest = *bounds.forms;
  for_each_node(program, [&](size_t at, size_t refs) {
    Node node = *program.nodes[at]->node;
    const NodeForms forms = take_forms(rest, bounds.high, node);
    if (forms.writes_part) throw Unproven(node.name + " writes a view that varies");
    if (node.entry->random) {
      for (FormsRef sizes : forms.results) {
        if (varies(sizes)) throw Unproven(node.name + " draws as many numbers as vary");
      }
    }
    SizedNode sizes(b, node, forms, bounds, n);
    NodeInputs inputs;
    inputs.sizes = &sizes;
    for (int i = 0; i < node.num_inputs; ++i) {
      const uint32_t ref = program.words[refs + static_cast<size_t>(i)];
      inputs.bases.push_back(is_internal(ref) ? outputs[index_of(ref)] : externals[index_of(ref)]);
    }
    inputs.packs = scalars.packs(node.pack_sizes);
    if (node.entry->random) inputs.rng_state = scalars.rng_state();
    NodeOutputs out = lower_into(b, node, inputs);
    for (Value& value : out.results) {
      if (value.defined()) outputs.push_back(std::move(value));
    }
    for (const ops::PendingCheck& check : out.checks) flags.push_back(b.reshape(check.flag, {1}));
  });
  Values results;
  for (size_t i = 0; i < program.alive.size(); ++i) {
    results.push_back(leave(b, outputs[program.alive[i]], bounds.results[i]));
  }
  if (!flags.empty()) results.push_back(b.concatenate(flags, 0));
  return b.finish(results, program.name);
}

}  // namespace torch_tpu::trace
