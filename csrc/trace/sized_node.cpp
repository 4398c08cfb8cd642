#include "csrc/trace/sized_node.h"

#include <algorithm>
#include <optional>
#include <string>

#include "csrc/ops/call.h"
#include "csrc/stablehlo/axis.h"
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
using FormsRef = std::span<const Form>;

bool varies(FormsRef forms) {
  return std::any_of(forms.begin(), forms.end(), [](const Form& form) { return form.varies(); });
}

// Which values do not depend on where they stand: their first elements are those of a smaller size.
bool is_uniform(const Node& node) {
  const std::string_view name = node.entry->name;
  return name == "fill.Scalar" || name == "fill.Tensor" || name == "zero" ||
         name.starts_with("arange");
}

class SizedNode final : public NodeSizes {
 public:
  SizedNode(Builder& b, const Node& node, NodeForms forms, const Bounds& bounds, const Size& n)
      : b_(b), node_(node), forms_(std::move(forms)), bounds_(bounds), n_(n) {}

  Value read(size_t tensor, const Value& base, const Place& place) override {
    const TensorArg& arg = node_.tensors[tensor];
    const TensorForms& forms = forms_.tensors[tensor];
    const DType dtype = ops::to_dtype(arg.dtype);
    const bool whole = std::ranges::equal(forms.sizes, forms.base) &&
                       std::ranges::equal(forms.strides, forms.base_strides) &&
                       forms.offset == Form{} && base.dtype() == dtype && place.starts.empty();
    if (whole) {
      compare(base, forms.sizes, "what it reads");
      return base;
    }
    if (!varies(forms.strides) && !varies(forms.base_strides) && !has_gaps(base) &&
        (varies(forms.sizes) || forms.offset.varies()) && place.starts.empty()) {
      return declare(read_box(arg, forms, base, dtype), forms.sizes);
    }
    if (base.dtype() == dtype && !has_gaps(base)) {
      if (const auto steps = find_steps(arg, forms)) {
        return declare(read_steps(arg, forms, *steps, base, place), forms.sizes);
      }
    }
    if (forms.offset.varies()) {
      throw Unproven(node_.name + " reads a view whose place and strides vary");
    }
    const Value value = read_view(base, arg.base_strides, arg.geometry, dtype, place);
    compare(value, forms.sizes, "what it reads");
    return value;
  }

  Value write(size_t tensor, const Value& base, const Value& update, const Place& place) override {
    const TensorArg& arg = node_.tensors[tensor];
    const TensorForms& forms = forms_.tensors[tensor];
    if (!varies(forms.sizes) && !varies(forms.strides) && !forms.offset.varies() &&
        !varies(forms.base) && !varies(forms.base_strides)) {
      return write_view(base, arg.base_strides, arg.geometry, update, place);
    }
    const auto steps = base.dtype() == update.dtype() && !has_gaps(base) && !has_gaps(update)
                           ? find_steps(arg, forms)
                           : std::nullopt;
    if (!steps) throw Unproven(node_.name + " writes a view that varies");
    return declare(write_steps(arg, forms, *steps, base, update, place), forms.base);
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

  // A view that takes a part of some dimensions of its base, in any order: where each begins, as a
  // function of n, and which dimension of the view it is (-1: one element of it is taken).
  struct Step {
    Form start;
    int64_t dim = -1;
  };
  std::optional<std::vector<Step>> find_steps(const TensorArg& arg, const TensorForms& forms) {
    std::vector<Step> steps(forms.base.size());
    for (size_t i = 0; i < forms.sizes.size(); ++i) {
      if (forms.sizes[i] == Form{1, 0, 0} || forms.strides[i] == Form{}) continue;
      size_t j = 0;
      while (j < steps.size() && (forms.base[j] == Form{1, 0, 0} || steps[j].dim >= 0 ||
                                  !(forms.base_strides[j] == forms.strides[i]))) {
        ++j;
      }
      if (j == steps.size()) return {};
      steps[j].dim = static_cast<int64_t>(i);
    }
    // Row-major bases only: the place of the first element says where it is along each dimension.
    const auto starts_at = [&](int64_t n) -> std::optional<std::vector<int64_t>> {
      std::vector<int64_t> starts(steps.size(), 0);
      int64_t rest = forms.offset.at(n), step = 1;
      for (size_t j = steps.size(); j-- > 0;) {
        if (forms.base[j] == Form{1, 0, 0}) continue;
        if (forms.base_strides[j].at(n) != step) return {};
        step *= forms.base[j].at(n);
      }
      for (size_t j = 0; j < steps.size(); ++j) {
        if (forms.base[j] == Form{1, 0, 0}) continue;
        starts[j] = rest / forms.base_strides[j].at(n);
        rest %= forms.base_strides[j].at(n);
        const int64_t taken =
            steps[j].dim < 0 ? 1 : forms.sizes[static_cast<size_t>(steps[j].dim)].at(n);
        if (starts[j] + taken > forms.base[j].at(n)) return {};
      }
      return starts;
    };
    const int64_t low = bounds_.low, high = bounds_.high;
    const auto first = starts_at(low);
    const auto last = starts_at(high);
    if (!first || !last || arg.base_strides.size() != steps.size()) return {};
    for (size_t j = 0; j < steps.size(); ++j) {
      const int64_t rise = (*last)[j] - (*first)[j];
      const int64_t slope = high == low ? 0 : rise / (high - low);
      steps[j].start = {(*first)[j] - slope * low, slope, 0};
    }
    for (int64_t n = low; n <= high; ++n) {
      const auto starts = starts_at(n);
      if (!starts) return {};
      for (size_t j = 0; j < steps.size(); ++j) {
        if (steps[j].start.at(n) != (*starts)[j]) return {};
      }
    }
    return steps;
  }

  // Where the view begins along dimension j of its base.
  Value start_of(const std::vector<Step>& steps, size_t j, const Place& place) {
    if (!place.starts.empty() && place.starts[j].defined()) {
      return b_.convert(place.starts[j], DType::kS32);
    }
    const Form& start = steps[j].start;
    return start.varies() ? b_.size_value(size_of(start)) : b_.scalar(start.c0, DType::kS32);
  }

  // How many elements along dimension j the base needs for the view of the bound, which may reach
  // beyond it: the true view ends within the base, wherever it begins.
  int64_t reach(const TensorForms& forms, const std::vector<Step>& steps, size_t j, int64_t length,
                int64_t extent, const Place& place) const {
    const Form& start = steps[j].start;
    const int64_t end = length + std::max(start.at(bounds_.low), start.at(bounds_.high));
    const int64_t taken = steps[j].dim;
    const bool moves = !place.starts.empty() && place.starts[j].defined();
    const bool grows = taken >= 0 && forms.sizes[static_cast<size_t>(taken)].varies();
    return moves && grows ? end + extent : end;
  }

  Value longer(const Value& x, size_t dim, int64_t length) {
    if (length <= x.dims()[dim]) return x;
    Dims none(x.dims().size(), 0), more = none;
    more[dim] = length - x.dims()[dim];
    return b_.pad(x, b_.scalar(0, x.dtype()), none, more);
  }

  Value write_steps(const TensorArg& arg, const TensorForms& forms, const std::vector<Step>& steps,
                    const Value& base, const Value& update, const Place& place) {
    Value x = base;
    Values starts;
    Dims kept, order, window(steps.size(), 1);  // the update's dims that are some of the base's
    for (size_t j = 0; j < steps.size(); ++j) {
      x = b_.trust(x, static_cast<int64_t>(j));
      if (steps[j].dim >= 0) window[j] = arg.geometry.sizes[static_cast<size_t>(steps[j].dim)];
      x = longer(x, j, reach(forms, steps, j, window[j], x.dims()[j], place));
      starts.push_back(start_of(steps, j, place));
      if (steps[j].dim >= 0) order.push_back(steps[j].dim);
    }
    Dims sorted = order, permutation;
    std::sort(sorted.begin(), sorted.end());
    for (int64_t dim : sorted) kept.push_back(update.dims()[static_cast<size_t>(dim)]);
    for (int64_t dim : order) {
      permutation.push_back(std::find(sorted.begin(), sorted.end(), dim) - sorted.begin());
    }
    const Value part = b_.reshape(b_.transpose(b_.reshape(update, kept), permutation), window);
    x = update_part(x, part, starts, place.apart);
    for (size_t j = 0; j < steps.size(); ++j) {
      const auto dim = static_cast<int64_t>(j);
      x = b_.trust(x, dim);
      x = b_.slice_dim(x, dim, 0, base.dims()[j]);
    }
    return x;
  }

  Value read_steps(const TensorArg& arg, const TensorForms& forms, const std::vector<Step>& steps,
                   const Value& base, const Place& place) {
    Value x = base;
    Dims kept, order;
    for (size_t j = 0; j < steps.size(); ++j) {
      const auto dim = static_cast<int64_t>(j);
      x = b_.trust(x, dim);
      const int64_t length =
          steps[j].dim < 0 ? 1 : arg.geometry.sizes[static_cast<size_t>(steps[j].dim)];
      const Form& start = steps[j].start;
      x = longer(x, j, reach(forms, steps, j, length, x.dims()[j], place));
      const bool moves = !place.starts.empty() && place.starts[j].defined();
      if (start.varies() || moves) {
        Values starts(steps.size(), b_.scalar(0, DType::kS32));
        starts[j] = start_of(steps, j, place);
        Dims sizes = x.dims();
        sizes[j] = length;
        x = b_.dynamic_slice(x, starts, sizes);
      } else {
        x = b_.slice_dim(x, dim, start.c0, start.c0 + length);
      }
      if (steps[j].dim >= 0) {
        kept.push_back(length);
        order.push_back(steps[j].dim);
      }
    }
    x = b_.reshape(x, kept);
    // In the view's order, with what it repeats.
    Dims sorted = order, permutation;
    std::sort(sorted.begin(), sorted.end());
    for (int64_t dim : sorted) {
      permutation.push_back(std::find(order.begin(), order.end(), dim) - order.begin());
    }
    const Shape& sizes = arg.geometry.sizes;
    return b_.broadcast_in_dim(b_.transpose(x, permutation), {sizes.begin(), sizes.end()}, sorted);
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
  const NodeForms forms_;
  const Bounds& bounds_;
  const Size& n_;
};

}  // namespace

std::unique_ptr<NodeSizes> sized_node(Builder& b, const Node& node, NodeForms forms,
                                      const Bounds& bounds, const Size& n) {
  return std::make_unique<SizedNode>(b, node, std::move(forms), bounds, n);
}

}  // namespace torch_tpu::trace
