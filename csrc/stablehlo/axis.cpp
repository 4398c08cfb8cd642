// Builder: dimensions that vary. See axis.h.
#include "csrc/stablehlo/axis.h"

#include <algorithm>

#include "csrc/stablehlo/builder_impl.h"

namespace torch_tpu::stablehlo {

Size operator+(const Size& a, const Size& b) {
  Size out(a.constant + b.constant);
  out.terms = a.terms;
  for (const auto& [number, factor] : b.terms) {
    auto at = std::lower_bound(out.terms.begin(), out.terms.end(), number,
                               [](const auto& term, int32_t n) { return term.first < n; });
    if (at == out.terms.end() || at->first != number) {
      out.terms.insert(at, {number, factor});
    } else if ((at->second += factor) == 0) {
      out.terms.erase(at);
    }
  }
  return out;
}

Size operator+(const Size& a, int64_t b) { return a + Size(b); }

Size operator*(const Size& a, int64_t b) {
  if (b == 0) return Size(0);
  Size out = a;
  out.constant *= b;
  for (auto& term : out.terms) term.second *= b;
  return out;
}

bool Size::divisible(int64_t by) const {
  return constant % by == 0 &&
         std::ranges::all_of(terms, [&](const auto& term) { return term.second % by == 0; });
}

Size operator/(const Size& a, int64_t b) {
  Size out = a;
  out.constant /= b;
  for (auto& term : out.terms) term.second /= b;
  return out;
}

void unproven(std::string_view op, std::string_view what, const Type& type) {
  std::string text = "[";
  text.append(op).append("] a dimension that varies: ").append(what).append(", ");
  throw Unproven(text + type.str());
}

int32_t join_axes(std::string_view op, int32_t a, int32_t b, const Type& type) {
  if (a == kWhole || a == b) return b;
  if (b == kWhole) return a;
  unproven(op, "sizes that are not known to be equal", type);
}

Type unify_shapes(std::string_view op, const Values& xs) {
  Type out = xs[0].type();
  for (size_t i = 1; i < xs.size(); ++i) {
    const Type& type = xs[i].type();
    if (type.dims != out.dims) fail(op, "equal shapes", types_text(types_of(xs)));
    if (type.is_static() || type.axes == out.axes) continue;
    if (out.is_static()) {
      out.axes = type.axes;
      continue;
    }
    for (size_t d = 0; d < out.axes.size(); ++d) {
      out.axes[d] = join_axes(op, out.axes[d], type.axes[d], type);
    }
  }
  return out;
}

int32_t unify_dim(std::string_view op, const Value& a, int64_t a_dim, const Value& b,
                  int64_t b_dim) {
  if (a.dims()[a_dim] != b.dims()[b_dim]) {
    fail(op, "equal sizes of dimensions " + std::to_string(a_dim) + " and " + std::to_string(b_dim),
         types_text({a.type(), b.type()}));
  }
  return join_axes(op, axis_of(a.type(), a_dim), axis_of(b.type(), b_dim), a.type());
}

int32_t Builder::Impl::intern(Axis axis) {
  bool varies = false;
  for (const Factor& factor : axis) varies = varies || factor.varies;
  if (!varies) return kWhole;
  const auto at = std::find(axes.begin(), axes.end(), axis);
  if (at != axes.end()) return static_cast<int32_t>(at - axes.begin());
  axes.push_back(std::move(axis));
  return static_cast<int32_t>(axes.size()) - 1;
}

int32_t Builder::Impl::prefix(int64_t extent, const Size& size) {
  if (size == Size(extent)) return kWhole;
  return intern({{extent, true, size}});
}

const Size& Builder::Impl::prefix_size(std::string_view op, const Type& type, int64_t dim) const {
  const Axis& axis = axes.at(static_cast<size_t>(axis_of(type, dim)));
  if (axis.size() != 1) unproven(op, "merged with others", type);
  return axis[0].size;
}

Size Builder::Impl::derived(Number::Kind kind, const Size& of, int64_t k) {
  if (kind == Number::Kind::kFloorDiv && of.divisible(k)) return of / k;
  if (of.known()) {
    const int64_t n = of.constant;
    if (kind == Number::Kind::kMin) return Size(std::min(n, k));
    if (kind == Number::Kind::kMax) return Size(std::max(n, k));
    return Size(n >= 0 ? n / k : -((-n + k - 1) / k));
  }
  Number number;
  number.kind = kind;
  number.of = of;
  number.k = k;
  Size out;
  out.terms = {{this->number(std::move(number)), 1}};
  return out;
}

int32_t Builder::Impl::number(Number number) {
  const auto at = std::find(numbers.begin(), numbers.end(), number);
  const auto index = static_cast<int32_t>(at - numbers.begin());
  if (at == numbers.end()) numbers.push_back(std::move(number));
  return index;
}

// Multiplied out, so that equal sizes are equal objects.
Size Builder::times(const Size& a, const Size& b) {
  const auto factors_of = [&](int32_t index) -> std::vector<int32_t> {
    const Impl::Number& number = impl_->numbers.at(static_cast<size_t>(index));
    if (number.kind == Impl::Number::Kind::kProduct) return number.factors;
    return {index};
  };
  Size out = b * a.constant;
  out.constant = a.constant * b.constant;
  for (const auto& [left, left_factor] : a.terms) {
    if (b.constant != 0) {
      Size part;
      part.terms = {{left, left_factor * b.constant}};
      out = out + part;
    }
    for (const auto& [right, right_factor] : b.terms) {
      Impl::Number number;
      number.kind = Impl::Number::Kind::kProduct;
      number.factors = factors_of(left);
      const std::vector<int32_t> more = factors_of(right);
      number.factors.insert(number.factors.end(), more.begin(), more.end());
      std::sort(number.factors.begin(), number.factors.end());
      Size part;
      part.terms = {{impl_->number(std::move(number)), left_factor * right_factor}};
      out = out + part;
    }
  }
  return out;
}

Size Builder::size_of(const Axis& axis) {
  Size out(1);
  for (const Factor& factor : axis) {
    out = times(out, factor.varies ? factor.size : Size(factor.extent));
  }
  return out;
}

Size Builder::new_size(const Value& n) {
  impl_->graph.check("new_size", n);
  check_scalar("new_size", n, DType::kS32);
  if (impl_->graph.open.size() != 1) fail("new_size", "the function's own scope", "a region");
  Impl::Number number;
  number.value = n.id();
  for (const Impl::Number& other : impl_->numbers) {
    number.k += other.kind == Impl::Number::Kind::kGiven;
  }
  impl_->numbers.push_back(number);
  Size out;
  out.terms = {{static_cast<int32_t>(impl_->numbers.size()) - 1, 1}};
  return out;
}

Value Builder::size_value(const Size& size) {
  const Type type(DType::kS32, {});
  Value sum;
  for (const auto& [index, factor] : size.terms) {
    const Impl::Number number = impl_->numbers.at(static_cast<size_t>(index));
    Value term;
    switch (number.kind) {
      case Impl::Number::Kind::kGiven:
        term = impl_->graph.value(number.value);
        break;
      case Impl::Number::Kind::kFloorDiv:  // of what is not negative
        term = divide(size_value(number.of), splat_int(number.k, type));
        break;
      case Impl::Number::Kind::kMin:
        term = minimum(size_value(number.of), splat_int(number.k, type));
        break;
      case Impl::Number::Kind::kMax:
        term = maximum(size_value(number.of), splat_int(number.k, type));
        break;
      case Impl::Number::Kind::kProduct:
        for (int32_t each : number.factors) {
          Size one;
          one.terms = {{each, 1}};
          term = term.defined() ? multiply(term, size_value(one)) : size_value(one);
        }
        break;
    }
    if (factor != 1) term = multiply(term, splat_int(factor, type));
    sum = sum.defined() ? add(sum, term) : term;
  }
  if (!sum.defined()) return splat_int(size.constant, type);
  return size.constant == 0 ? sum : add(sum, splat_int(size.constant, type));
}

int64_t Builder::evaluate(const Size& size, const std::vector<int64_t>& numbers) const {
  int64_t sum = size.constant;
  for (const auto& [index, factor] : size.terms) {
    const Impl::Number& number = impl_->numbers.at(static_cast<size_t>(index));
    int64_t n = 0;
    switch (number.kind) {
      case Impl::Number::Kind::kGiven:
        n = numbers.at(static_cast<size_t>(number.k));
        break;
      case Impl::Number::Kind::kFloorDiv:
        n = evaluate(number.of, numbers) / number.k;
        break;
      case Impl::Number::Kind::kMin:
        n = std::min(evaluate(number.of, numbers), number.k);
        break;
      case Impl::Number::Kind::kMax:
        n = std::max(evaluate(number.of, numbers), number.k);
        break;
      case Impl::Number::Kind::kProduct:
        n = 1;
        for (int32_t each : number.factors) {
          Size one;
          one.terms = {{each, 1}};
          n *= evaluate(one, numbers);
        }
        break;
    }
    sum += factor * n;
  }
  return sum;
}

Value Builder::vary(const Value& x, int64_t dim, const Size& size) {
  impl_->graph.check("vary", x);
  check_dim("vary", dim, x.rank());
  return impl_->with_axis(x, dim, impl_->prefix(x.dims()[dim], size));
}

Value Builder::trust(const Value& x, int64_t dim) {
  impl_->graph.check("trust", x);
  check_dim("trust", dim, x.rank());
  return impl_->with_axis(x, dim, kWhole);
}

Value Builder::Impl::with_axis(const Value& x, int64_t dim, int32_t axis) {
  if (axis_of(x.type(), dim) == axis) return x;
  Axes all = axes_of(x.type());
  all[dim] = axis;
  return graph.emit1("alias", {x}, make_type(x.dtype(), x.dims(), std::move(all)), {},
                     Form::kAlias);
}

const Axis& Builder::axis(const Value& x, int64_t dim) const {
  impl_->graph.check("axis", x);
  check_dim("axis", dim, x.rank());
  return impl_->axes.at(static_cast<size_t>(axis_of(x.type(), dim)));
}

Value Builder::count(const Value& x, int64_t dim) {
  impl_->graph.check("count", x);
  check_dim("count", dim, x.rank());
  if (!x.type().varies(dim)) return splat_int(x.dims()[dim], Type(DType::kS32, {}));
  Value product;
  for (const Factor& factor : Axis(axis(x, dim))) {
    const Value n = size_value(factor.varies ? factor.size : Size(factor.extent));
    product = product.defined() ? multiply(product, n) : n;
  }
  return product;
}

Value Builder::counts(const Value& x, int64_t dim) {
  impl_->graph.check("counts", x);
  check_dim("counts", dim, x.rank());
  const Dims shape = x.dims();
  if (!x.type().varies(dim)) return splat_int(1, Type(DType::kBool, shape));
  const Axis factors = axis(x, dim);
  Dims box;
  for (const Factor& factor : factors) box.push_back(factor.extent);
  const Type positions(DType::kS32, box);
  Value mask;
  for (size_t i = 0; i < factors.size(); ++i) {
    if (!factors[i].varies) continue;
    const Value here = lt(iota(positions, static_cast<int64_t>(i)),
                          broadcast_to(size_value(factors[i].size), box));
    mask = mask.defined() ? and_(mask, here) : here;
  }
  return broadcast_in_dim(reshape(mask, {shape[dim]}), shape, {dim});
}

Value Builder::fill_rest(const Value& x, const Value& value, const Dims& dims) {
  impl_->graph.check("fill_rest", x);
  impl_->graph.check("fill_rest", value);
  check_scalar("fill_rest", value, x.dtype());
  Value mask;
  for (int64_t d : dims) {
    if (!x.type().varies(d)) continue;
    const Value here = counts(x, d);
    mask = mask.defined() ? and_(mask, here) : here;
  }
  if (!mask.defined()) return x;
  const Value filled = select(mask, x, broadcast_to(value, x.dims()));
  Value out = filled;
  for (int64_t d : dims) out = impl_->with_axis(out, d, kWhole);
  return out;
}

Value Builder::like(const Value& x, const Number& value) {
  impl_->graph.check("like", x);
  return splat(value, x.type());
}

}  // namespace torch_tpu::stablehlo
