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
using stablehlo::Size;
using stablehlo::Type;
using stablehlo::Unproven;
using stablehlo::Value;
using stablehlo::Values;
using FormsRef = std::span<const Form>;

bool varies(FormsRef forms) {
  return std::any_of(forms.begin(), forms.end(), [](const Form& form) { return form.varies(); });
}

// Whether strides can be functions of sizes. Where the base is of one size, or a stride becomes
// less when a size grows, it is by chance that forms were found: a tensor and its transpose differ
// too.
bool follow_sizes(const TensorForms& forms) {
  if (!varies(forms.base)) return !varies(forms.strides) && !varies(forms.base_strides);
  const auto falls = [](const Form& form) {
    return std::any_of(form.terms.begin() + 1, form.terms.end(), [](int64_t f) { return f < 0; });
  };
  return std::ranges::none_of(forms.strides, falls) &&
         std::ranges::none_of(forms.base_strides, falls);
}

// Which values do not depend on where they stand: their first elements are those of a smaller size.
bool is_uniform(const Node& node) {
  const std::string_view name = node.entry->name;
  return name == "fill.Scalar" || name == "fill.Tensor" || name == "zero" ||
         name.starts_with("arange");
}

// A base as a view of it needs it: row-major, with dimensions that the view takes parts of.
struct Base {
  std::vector<Form> sizes;
  std::vector<Form> strides;
};

bool is_row_major(const Base& base) {
  std::optional<Form> step = Form(1);
  for (size_t j = base.sizes.size(); j-- > 0;) {
    if (base.sizes[j] == Form(1)) continue;
    if (!step || !(base.strides[j] == *step)) return false;
    step = multiply(*step, base.sizes[j]);
  }
  return base.sizes.size() == base.strides.size();
}

class SizedNode final : public NodeSizes {
 public:
  SizedNode(Builder& b, const Node& node, NodeForms forms, const Bounds& bounds,
            const Symbols& symbols)
      : b_(b), node_(node), forms_(std::move(forms)), bounds_(bounds), symbols_(symbols) {}

  Value read(size_t tensor, const Value& base, const Place& place) override {
    const TensorArg& arg = node_.tensors[tensor];
    const TensorForms& forms = forms_.tensors[tensor];
    const DType dtype = ops::to_dtype(arg.dtype);
    const bool whole = std::ranges::equal(forms.sizes, forms.base) &&
                       std::ranges::equal(forms.strides, forms.base_strides) &&
                       forms.offset == Form{} && base.dtype() == dtype && place.starts.empty();
    if (whole) {
      return compare(base, forms.sizes, "what it reads");
    }
    if (const Value value = read_dense(arg, forms, base, dtype, place); value.defined()) {
      return value;
    }
    std::string why = node_.name + " reads a view whose place and strides vary";
    if (!forms.offset.varies() && follow_sizes(forms)) {
      try {
        const Value value = read_view(base, arg.base_strides, arg.geometry, dtype, place);
        return compare(value, forms.sizes, "what it reads");
      } catch (const Unproven& error) {
        why = error.what();
      }
    }
    // Elements have to move.
    if (base.dtype() == dtype && place.starts.empty()) {
      if (const auto fine = split(forms)) {
        const auto steps = find_steps(forms, *fine);
        if (steps) {
          return declare(read_steps(arg, forms, *steps, split_value(base, forms, *fine), place),
                         forms.sizes);
        }
      }
    }
    if (has_gaps(base)) {
      const Value value = read_dense(arg, forms, packed(base), dtype, place);
      if (value.defined()) return value;
    }
    throw Unproven(why);
  }

  // Merged dimensions have gaps. An op that counts positions gets them packed; one that does not
  // gets all dimensions of one size alike.
  void arrange(Values& reads) override {
    const bool anywhere = node_.entry->bounded == ops::Bounded::kAny;
    if (node_.entry->bounded == ops::Bounded::kNo) return;
    std::vector<std::pair<Form, Axis>> merged;
    for (int pass = 0; pass < 2; ++pass) {
      for (size_t i = 0; i < reads.size(); ++i) {
        for (int64_t d = 0; reads[i].defined() && d < reads[i].rank(); ++d) {
          if (!reads[i].type().varies(d)) continue;
          const bool gaps = b_.axis(reads[i], d).size() != 1;
          if (!anywhere) {
            reads[i] = b_.pack(reads[i], d);
            continue;
          }
          const Form& form = forms_.tensors[i].sizes[static_cast<size_t>(d)];
          const auto known = std::ranges::find(merged, form, &std::pair<Form, Axis>::first);
          if (known != merged.end()) {
            reads[i] = b_.relayout(reads[i], d, Axis(known->second));
          } else if (gaps) {
            merged.emplace_back(form, b_.axis(reads[i], d));
          }
        }
      }
    }
  }

  Value write(size_t tensor, const Value& base, const Value& update, const Place& place) override {
    const TensorArg& arg = node_.tensors[tensor];
    const TensorForms& forms = forms_.tensors[tensor];
    if (!varies(forms.sizes) && !varies(forms.strides) && !forms.offset.varies() &&
        !varies(forms.base) && !varies(forms.base_strides)) {
      return write_view(base, arg.base_strides, arg.geometry, update, place);
    }
    if (base.dtype() == update.dtype()) {
      const Value part = packed(update);
      const Base plain = base_of(forms);
      if (const auto steps = find_steps(forms, plain)) {
        const Value written = write_steps(arg, forms, *steps, packed(base), part, place);
        return declare(written, forms.base);
      }
      const auto fine = place.starts.empty() ? split(forms) : std::nullopt;
      if (const auto steps = fine ? find_steps(forms, *fine) : std::nullopt) {
        const Value under = split_value(base, forms, *fine);
        const Value written = write_steps(arg, forms, *steps, under, part, place);
        return b_.reshape(declare(written, fine->sizes), base.dims());
      }
    }
    throw Unproven(node_.name + " writes a view that varies");
  }

  Value unwritten(size_t tensor, const Value& value) override {
    return declare(value, forms_.tensors[tensor].sizes);
  }

  Value result(size_t index, const Value& value) override {
    const FormsRef sizes = forms_.results[index];
    if (value.type().is_static() && varies(sizes) && is_uniform(node_)) {
      return declare(value, sizes);
    }
    const bool part = node_.entry->name == "slice_backward";
    return compare(part ? zeros_around(value, sizes) : value, sizes, "its result");
  }

 private:
  bool starts_at_0() const {
    for (const NodeArg& arg : node_.args) {
      if (arg.name == "start") return arg.value.isNone() || arg.value.toInt() == 0;
    }
    return false;
  }

  // The gradient of a part that varies of a whole that does not: zero wherever the part is not. To
  // pad it has made it so; where nothing had to be padded, that is left to do.
  Value zeros_around(const Value& value, FormsRef sizes) {
    Value out = value;
    for (size_t d = 0; d < sizes.size(); ++d) {
      const auto dim = static_cast<int64_t>(d);
      if (sizes[d].varies() || !out.type().varies(dim)) continue;
      if (node_.tensors[0].geometry.sizes[d] == out.dims()[d] && starts_at_0()) {
        out = b_.fill_rest(out, b_.scalar(0, out.dtype()), {dim});
      }
      out = b_.trust(out, dim);
    }
    return out;
  }

  Size size_of(const Form& form) const { return symbols_.size_of(form); }

  // A place in a buffer, as a number of the program.
  Value place_of(const Form& form) {
    if (most(form, bounds_.low, bounds_.high) > INT32_MAX) {
      throw Unproven(node_.name + " reads a view of a place too far away");
    }
    return b_.size_value(size_of(form));
  }

  // Merged dimensions: what counts does not lie together.
  bool has_gaps(const Value& value) const {
    for (int64_t d = 0; d < value.rank(); ++d) {
      if (value.type().varies(d) && b_.axis(value, d).size() != 1) return true;
    }
    return false;
  }

  Value packed(Value value) {
    for (int64_t d = 0; d < value.rank(); ++d) value = b_.pack(value, d);
    return value;
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

  // A view of a base in which what counts comes first; undefined where it is none of these.
  Value read_dense(const TensorArg& arg, const TensorForms& forms, const Value& base, DType dtype,
                   const Place& place) {
    if (has_gaps(base)) return {};
    if (!varies(forms.strides) && !varies(forms.base_strides) &&
        (varies(forms.sizes) || forms.offset.varies()) && place.starts.empty()) {
      return declare(read_box(arg, forms, base, dtype), forms.sizes);
    }
    if (base.dtype() != dtype) return {};
    const auto steps = find_steps(forms, base_of(forms));
    if (!steps) return {};
    return declare(read_steps(arg, forms, *steps, base, place), forms.sizes);
  }

  // The strides are the same for all sizes, so each element of the true view is where it is in that
  // of the bound. The place may vary: it is known at run time.
  Value read_box(const TensorArg& arg, const TensorForms& forms, const Value& base, DType dtype) {
    Value storage = base;
    for (int64_t d = 0; d < base.rank(); ++d) storage = b_.trust(storage, d);
    const Type whole(base.dtype(), base.dims());
    int64_t needed = 1;
    for (size_t i = 0; i < arg.geometry.sizes.size(); ++i) {
      needed += (arg.geometry.sizes[i] - 1) * arg.geometry.strides[i];
    }
    const int64_t last = needed + most(forms.offset, bounds_.low, bounds_.high);
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
      storage = b_.dynamic_slice(storage, {place_of(forms.offset)}, {needed});
      view.offset = 0;
    }
    return read_view(storage, flat.strides, view, dtype);
  }

  static Base base_of(const TensorForms& forms) {
    return {{forms.base.begin(), forms.base.end()},
            {forms.base_strides.begin(), forms.base_strides.end()}};
  }

  // The base with dimensions split where the view's strides say: [4 n, 8] of which a view has the
  // stride 8 n is [4, n, 8]. None where that does not come out, or nothing is split.
  std::optional<Base> split(const TensorForms& forms) {
    const Base base = base_of(forms);
    if (!is_row_major(base)) return {};
    const auto size = [&](const Form& form) { return form.at(bounds_.high); };
    std::vector<std::vector<Form>> inner(base.sizes.size());  // per dimension, what strides count
    for (size_t i = 0; i < forms.sizes.size(); ++i) {
      if (forms.sizes[i] == Form(1) || forms.strides[i] == Form()) continue;
      size_t j = 0;
      while (j < base.sizes.size() &&
             (base.sizes[j] == Form(1) || size(base.strides[j]) > size(forms.strides[i]))) {
        ++j;
      }
      if (j == base.sizes.size()) return {};
      const auto rows = divide(forms.strides[i], base.strides[j]);
      if (!rows) return {};
      if (!(*rows == Form(1))) inner[j].push_back(*rows);
    }
    Base out;
    for (size_t j = 0; j < base.sizes.size(); ++j) {
      std::sort(inner[j].begin(), inner[j].end(),
                [&](const Form& a, const Form& b) { return size(a) > size(b); });
      inner[j].erase(std::unique(inner[j].begin(), inner[j].end()), inner[j].end());
      inner[j].push_back(Form(1));
      Form rest = base.sizes[j];
      for (const Form& rows : inner[j]) {
        const auto part = divide(rest, rows);
        const auto stride = multiply(base.strides[j], rows);
        if (!part || !stride) return {};
        out.sizes.push_back(*part);
        out.strides.push_back(*stride);
        rest = rows;
      }
    }
    if (out.sizes.size() == base.sizes.size()) return {};
    return out;
  }

  // The base so split; what counts comes first along each dimension.
  Value split_value(Value base, const TensorForms& forms, const Base& fine) {
    Dims dims;
    size_t at = 0;
    for (size_t j = 0; j < forms.base.size(); ++j) {
      Axis axis;
      int64_t extent = 1;
      const int64_t whole = base.dims()[j];
      do {
        const Form& part = fine.sizes[at++];
        dims.push_back(part.at(bounds_.high));
        extent *= dims.back();
        if (part == Form(1)) continue;
        if (!part.varies() && !axis.empty() && !axis.back().varies) {
          axis.back().extent *= dims.back();
        } else {
          axis.push_back({dims.back(), part.varies(), part.varies() ? size_of(part) : Size()});
        }
      } while (extent < whole);
      const auto dim = static_cast<int64_t>(j);
      base = base.type().varies(dim) ? b_.relayout(base, dim, axis) : base;
    }
    while (at < fine.sizes.size()) dims.push_back(fine.sizes[at++].at(bounds_.high));
    return b_.reshape(base, dims);
  }

  // A view that takes a part of some dimensions of its base, in any order: where each begins, and
  // which dimension of the view it is (-1: one element of it is taken).
  struct Step {
    Form start;
    int64_t dim = -1;
  };
  // Row-major bases only: the place of the first element says where it is along each dimension.
  std::optional<std::vector<Step>> find_steps(const TensorForms& forms, const Base& base) {
    if (!is_row_major(base)) return {};
    std::vector<Step> steps(base.sizes.size());
    for (size_t i = 0; i < forms.sizes.size(); ++i) {
      if (forms.sizes[i] == Form(1) || forms.strides[i] == Form()) continue;
      size_t j = 0;
      while (j < steps.size() && (base.sizes[j] == Form(1) || steps[j].dim >= 0 ||
                                  !(base.strides[j] == forms.strides[i]))) {
        ++j;
      }
      if (j == steps.size()) return {};
      steps[j].dim = static_cast<int64_t>(i);
    }
    // Guessed from the corners of the sizes served, then proven for all of them.
    const Point &low = bounds_.low, &high = bounds_.high;
    const auto at_low = starts_at(low, forms, base);
    const auto at_n = starts_at({high[0], low[1]}, forms, base);
    const auto at_m = starts_at({low[0], high[1]}, forms, base);
    Form rest = forms.offset;
    for (size_t j = 0; j < steps.size(); ++j) {
      if (base.sizes[j] == Form(1)) continue;
      const int64_t n = high[0] == low[0] ? 0 : (at_n[j] - at_low[j]) / (high[0] - low[0]);
      const int64_t m = high[1] == low[1] ? 0 : (at_m[j] - at_low[j]) / (high[1] - low[1]);
      Form& start = steps[j].start;
      start = Form({at_low[j] - n * low[0] - m * low[1], n, m, 0, 0, 0, 0, 0});
      const auto skipped = multiply(start, base.strides[j]);
      if (!skipped) return {};
      rest = rest - *skipped;
      const Form taken =
          steps[j].dim < 0 ? Form(1) : forms.sizes[static_cast<size_t>(steps[j].dim)];
      if (least(start, low, high) < 0) return {};
      if (least(without_tie(base.sizes[j] - start - taken), low, high) < 0) return {};
    }
    if (!(rest == Form())) return {};
    return steps;
  }

  // As a function of n, where m is one.
  Form without_tie(const Form& form) const {
    const auto& tie = bounds_.forms->tie;
    if (!tie || form.terms[2] == 0) return form;
    const auto part = multiply(*tie, form.terms[2]);
    return form - Form::term(2, form.terms[2]) + part.value_or(Form());
  }

  static std::vector<int64_t> starts_at(const Point& point, const TensorForms& forms,
                                        const Base& base) {
    std::vector<int64_t> starts(base.sizes.size(), 0);
    int64_t rest = forms.offset.at(point);
    for (size_t j = 0; j < base.sizes.size(); ++j) {
      const int64_t stride = base.strides[j].at(point);
      if (base.sizes[j] == Form(1) || stride <= 0) continue;
      starts[j] = rest / stride;
      rest %= stride;
    }
    return starts;
  }

  // Where the view begins along dimension j of its base.
  Value start_of(const std::vector<Step>& steps, size_t j, const Place& place) {
    if (!place.starts.empty() && place.starts[j].defined()) {
      return b_.convert(place.starts[j], DType::kS32);
    }
    const Form& start = steps[j].start;
    return start.varies() ? place_of(start) : b_.scalar(start.constant(), DType::kS32);
  }

  // How many elements along dimension j the base needs for the view of the bound, which may reach
  // beyond it: the true view ends within the base, wherever it begins.
  int64_t reach(const TensorForms& forms, const std::vector<Step>& steps, size_t j, int64_t length,
                int64_t extent, const Place& place) const {
    const Form& start = steps[j].start;
    const int64_t end = length + most(start, bounds_.low, bounds_.high);
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
        x = b_.slice_dim(x, dim, start.constant(), start.constant() + length);
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

  // The value, of which what counts is what the sizes say, for all that are served. A size of
  // another making (a part was taken, a window moved) is replaced by what is known of it.
  Value compare(Value value, FormsRef sizes, const char* what) {
    for (size_t d = 0; d < sizes.size(); ++d) {
      const auto dim = static_cast<int64_t>(d);
      if (!counts_are(value, dim, sizes[d])) {
        throw Unproven(node_.name + ": " + what + " has another size than is known, " +
                       value.type().str());
      }
      if (value.type().varies(dim) && b_.axis(value, dim).size() == 1) {
        value = b_.vary(value, dim, size_of(sizes[d]));
      }
    }
    return value;
  }

  bool counts_are(const Value& value, int64_t dim, const Form& form) {
    if (!value.type().varies(dim)) return !form.varies();
    const Size size = b_.size_of(b_.axis(value, dim));
    if (size == size_of(form)) return true;
    // Not of the same making, as where a part was taken: for each of the sizes, if they are few.
    constexpr int64_t kFew = int64_t{1} << 20;
    const Point &low = bounds_.low, &high = bounds_.high;
    if ((high[0] - low[0] + 1) * (high[1] - low[1] + 1) > kFew) return false;
    for (int64_t n = low[0]; n <= high[0]; ++n) {
      const auto& tie = bounds_.forms->tie;
      const int64_t first = tie ? tie->at({n, 1}) : low[1];
      for (int64_t m = first; m <= (tie ? first : high[1]); ++m) {
        if (b_.evaluate(size, {n, m}) != form.at({n, m})) return false;
      }
    }
    return true;
  }

  Builder& b_;
  const Node& node_;
  const NodeForms forms_;
  const Bounds& bounds_;
  const Symbols& symbols_;
};

}  // namespace

Symbols::Symbols(Builder& b, ScalarReader& scalars, const Bounds& bounds) {
  std::array<Size, kMaxSymbols> symbols{Size(1), Size(1)};
  for (size_t s = 0; s < bounds.symbols; ++s) {
    symbols[s] = b.new_size(scalars.size(static_cast<int64_t>(s)));
  }
  if (const auto& tie = bounds.forms->tie) {
    symbols[1] = b.times(symbols[0], symbols[0]) + tie->constant();
  }
  for (size_t i = 0; i < Form::kTerms; ++i) {
    powers_[i] = Size(1);
    for (int k = 0; k < Form::kPowers[i].n; ++k) powers_[i] = b.times(powers_[i], symbols[0]);
    for (int k = 0; k < Form::kPowers[i].m; ++k) powers_[i] = b.times(powers_[i], symbols[1]);
  }
}

Size Symbols::size_of(const Form& form) const {
  Size out(form.constant());
  for (size_t i = 1; i < Form::kTerms; ++i) {
    if (form.terms[i] != 0) out = out + powers_[i] * form.terms[i];
  }
  return out;
}

std::unique_ptr<NodeSizes> sized_node(Builder& b, const Node& node, NodeForms forms,
                                      const Bounds& bounds, const Symbols& symbols) {
  return std::make_unique<SizedNode>(b, node, std::move(forms), bounds, symbols);
}

}  // namespace torch_tpu::trace
