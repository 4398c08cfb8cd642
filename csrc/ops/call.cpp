#include "csrc/ops/call.h"

#include <c10/core/DefaultDtype.h>
#include <c10/util/Exception.h>

#include "csrc/ops/helpers.h"
#include "csrc/ops/source.h"
#include "csrc/stablehlo/axis.h"

namespace torch_tpu::ops {

DType to_dtype(c10::ScalarType type) {
  switch (type) {
    case c10::ScalarType::Bool:
      return DType::kBool;
    case c10::ScalarType::Char:
      return DType::kS8;
    case c10::ScalarType::Short:
      return DType::kS16;
    case c10::ScalarType::Int:
      return DType::kS32;
    case c10::ScalarType::Long:
      return DType::kS64;
    case c10::ScalarType::Byte:
      return DType::kU8;
    case c10::ScalarType::UInt16:
      return DType::kU16;
    case c10::ScalarType::UInt32:
      return DType::kU32;
    case c10::ScalarType::UInt64:
      return DType::kU64;
    case c10::ScalarType::Float8_e4m3fn:
      return DType::kF8E4M3FN;
    case c10::ScalarType::Float8_e5m2:
      return DType::kF8E5M2;
    case c10::ScalarType::Float8_e4m3fnuz:
      return DType::kF8E4M3FNUZ;
    case c10::ScalarType::Float8_e5m2fnuz:
      return DType::kF8E5M2FNUZ;
    case c10::ScalarType::BFloat16:
      return DType::kBF16;
    case c10::ScalarType::Half:
      return DType::kF16;
    case c10::ScalarType::Float:
      return DType::kF32;
    case c10::ScalarType::Double:
      return DType::kF64;
    case c10::ScalarType::ComplexHalf:
      return DType::kC32;
    case c10::ScalarType::ComplexFloat:
      return DType::kC64;
    case c10::ScalarType::ComplexDouble:
      return DType::kC128;
    default:
      break;
  }
  TORCH_CHECK_TYPE(false, "dtype ", c10::toString(type), " is not supported on device tpu");
}

c10::ScalarType to_scalar_type(DType dtype) {
  switch (dtype) {
    case DType::kBool:
      return c10::ScalarType::Bool;
    case DType::kS8:
      return c10::ScalarType::Char;
    case DType::kS16:
      return c10::ScalarType::Short;
    case DType::kS32:
      return c10::ScalarType::Int;
    case DType::kS64:
      return c10::ScalarType::Long;
    case DType::kU8:
      return c10::ScalarType::Byte;
    case DType::kU16:
      return c10::ScalarType::UInt16;
    case DType::kU32:
      return c10::ScalarType::UInt32;
    case DType::kU64:
      return c10::ScalarType::UInt64;
    case DType::kF8E4M3FN:
      return c10::ScalarType::Float8_e4m3fn;
    case DType::kF8E5M2:
      return c10::ScalarType::Float8_e5m2;
    case DType::kF8E4M3FNUZ:
      return c10::ScalarType::Float8_e4m3fnuz;
    case DType::kF8E5M2FNUZ:
      return c10::ScalarType::Float8_e5m2fnuz;
    case DType::kBF16:
      return c10::ScalarType::BFloat16;
    case DType::kF16:
      return c10::ScalarType::Half;
    case DType::kF32:
      return c10::ScalarType::Float;
    case DType::kF64:
      return c10::ScalarType::Double;
    case DType::kC64:
      return c10::ScalarType::ComplexFloat;
    case DType::kC128:
      return c10::ScalarType::ComplexDouble;
    case DType::kC32:
      return c10::ScalarType::ComplexHalf;
  }
  return c10::ScalarType::Undefined;
}

DType compute_dtype(c10::ScalarType type) {
  return type == c10::ScalarType::ComplexHalf ? DType::kC64 : to_dtype(type);
}

const Argument* Source::find(std::string_view name) const {
  for (const Argument& argument : arguments) {
    if (argument.name != name) continue;
    if (argument.varies) throw stablehlo::Unproven("the argument " + std::string(name) + " varies");
    return &argument;
  }
  return nullptr;
}

const Argument& Source::at(std::string_view name) const {
  const Argument* argument = find(name);
  TORCH_INTERNAL_ASSERT(argument != nullptr, "a lowering asked for argument '", std::string(name),
                        "', which the schema does not have");
  return *argument;
}

bool Call::has(std::string_view name) const {
  const Argument* argument = source_.find(name);
  return argument != nullptr && argument->present;
}

Value Call::tensor(std::string_view name) {
  Value value = optional_tensor(name);
  TORCH_INTERNAL_ASSERT(value.defined(), "a lowering needs tensor '", std::string(name),
                        "', which was not given");
  return value;
}

Value Call::optional_tensor(std::string_view name) {
  const Argument& argument = source_.at(name);
  return argument.tensors.empty() ? Value() : argument.tensors[0];
}

Values Call::tensors(std::string_view name) { return source_.at(name).tensors; }

DType Call::dtype(std::string_view name) const {
  const Argument& argument = source_.at(name);
  TORCH_INTERNAL_ASSERT(!argument.infos.empty());
  return compute_dtype(argument.infos[0].dtype);
}

bool Call::is_number(std::string_view name) const {
  const Argument& argument = source_.at(name);
  return !argument.infos.empty() && argument.infos[0].number;
}

bool Call::contiguous(std::string_view name) const {
  const Argument& argument = source_.at(name);
  TORCH_INTERNAL_ASSERT(!argument.infos.empty());
  return argument.infos[0].contiguous;
}

namespace {

int64_t int_of(const c10::IValue& value) {
  if (value.isBool()) return value.toBool() ? 1 : 0;
  if (value.isSymInt()) return value.toSymInt().guard_int(__FILE__, __LINE__);
  return value.toInt();
}

}  // namespace

int64_t Call::integer(std::string_view name) const { return int_of(source_.at(name).value); }

int64_t Call::integer_or(std::string_view name, int64_t otherwise) const {
  return has(name) ? integer(name) : otherwise;
}

bool Call::flag(std::string_view name) const { return source_.at(name).value.toBool(); }

bool Call::flag_or(std::string_view name, bool otherwise) const {
  return has(name) ? flag(name) : otherwise;
}

Dims Call::ints(std::string_view name) const {
  const c10::IValue& value = source_.at(name).value;
  if (value.isNone()) return {};
  if (value.isInt()) return {value.toInt()};
  if (value.isIntList()) return value.toIntVector();
  Dims out;
  for (const c10::IValue& item : value.toListRef()) out.push_back(int_of(item));
  return out;
}

std::vector<double> Call::floats(std::string_view name) const {
  const c10::IValue& value = source_.at(name).value;
  return value.isNone() ? std::vector<double>() : value.toDoubleVector();
}

std::vector<bool> Call::flags(std::string_view name) const {
  std::vector<bool> out;
  for (bool flag : source_.at(name).value.toBoolList()) out.push_back(flag);
  return out;
}

std::string Call::string(std::string_view name) const {
  const c10::IValue& value = source_.at(name).value;
  return value.isString() ? value.toStringRef() : std::string();
}

std::optional<DType> Call::dtype_arg(std::string_view name) const {
  const Argument* argument = source_.find(name);
  if (argument == nullptr || argument->value.isNone()) return std::nullopt;
  return compute_dtype(argument->value.toScalarType());
}

Value Call::scalar(std::string_view name, DType dtype) {
  Values all = scalars(name, dtype);
  TORCH_INTERNAL_ASSERT(all.size() == 1, "argument '", std::string(name), "' is not one scalar");
  return all[0];
}

Values Call::scalars(std::string_view name, DType dtype) {
  const Argument& argument = source_.at(name);
  Values out;
  if (argument.known) return {b.scalar(*argument.known, dtype)};
  for (const Value& value : argument.scalars) {
    const bool again = !out.empty() && value.id() == argument.scalars[0].id();
    out.push_back(again ? out[0] : cast(value, dtype));
  }
  if (out.empty() && !argument.tensors.empty()) out.push_back(cast(argument.tensors[0], dtype));
  return out;
}

std::optional<Number> Call::known(std::string_view name) const { return source_.at(name).known; }

DType Call::kind_of_scalar(std::string_view name, size_t i) const {
  const c10::ScalarType type = source_.at(name).scalar_types.at(i);
  if (c10::isComplexType(type)) return DType::kC128;
  if (c10::isFloatingType(type)) return DType::kF64;
  return type == c10::ScalarType::Bool ? DType::kBool : DType::kS64;
}

bool Call::is_float_scalar(std::string_view name) const {
  const Argument& argument = source_.at(name);
  return !argument.scalar_types.empty() && c10::isFloatingType(argument.scalar_types[0]);
}

namespace {

// PyTorch's promotion: tensors with dimensions outrank 0-d tensors, which outrank Python numbers,
// unless the lower one is of a higher kind (float over int).
struct Promotion {
  c10::ScalarType dim = c10::ScalarType::Undefined;
  c10::ScalarType zero_dim = c10::ScalarType::Undefined;
  c10::ScalarType wrapped = c10::ScalarType::Undefined;
};

c10::ScalarType promote(c10::ScalarType a, c10::ScalarType b) {
  if (a == c10::ScalarType::Undefined) return b;
  if (b == c10::ScalarType::Undefined) return a;
  return c10::promoteTypes(a, b);
}

c10::ScalarType combine(c10::ScalarType higher, c10::ScalarType lower) {
  if (c10::isComplexType(higher)) return higher;
  if (c10::isFloatingType(higher)) {
    return c10::isComplexType(lower) ? c10::toComplexType(higher) : higher;
  }
  if (higher == c10::ScalarType::Bool || c10::isFloatingType(lower) || c10::isComplexType(lower)) {
    return promote(higher, lower);
  }
  return higher != c10::ScalarType::Undefined ? higher : lower;
}

c10::ScalarType number_type(c10::ScalarType type) {
  const c10::ScalarType standard = c10::get_default_dtype_as_scalartype();
  if (c10::isComplexType(type)) return c10::toComplexType(standard);
  if (c10::isFloatingType(type)) return standard;
  return type;
}

}  // namespace

DType Call::common_dtype(std::initializer_list<std::string_view> names) const {
  Promotion state;
  for (std::string_view name : names) {
    const Argument* argument = source_.find(name);
    if (argument == nullptr || !argument->present) continue;
    for (const TensorInfo& info : argument->infos) {
      if (info.dtype == c10::ScalarType::Undefined) continue;
      if (info.dim > 0) {
        state.dim = promote(state.dim, info.dtype);
      } else if (info.wrapped_number) {
        state.wrapped = promote(state.wrapped, number_type(info.dtype));
      } else {
        state.zero_dim = promote(state.zero_dim, info.dtype);
      }
    }
    for (c10::ScalarType type : argument->scalar_types) {
      state.wrapped = promote(state.wrapped, number_type(type));
    }
  }
  return compute_dtype(combine(state.dim, combine(state.zero_dim, state.wrapped)));
}

Value Call::rng_state() {
  TORCH_INTERNAL_ASSERT(source_.rng_state.defined(),
                        "a lowering draws random numbers but its entry is not marked random");
  return source_.rng_state;
}

void Source::check(Builder& b, const Value& value, int64_t low, int64_t high, ValueCheck what) {
  const Type type(DType::kS64, value.dims());
  check(b, value, b.splat_int(low, type), b.splat_int(high, type), std::move(what));
}

void Source::check(Builder& b, const Value& value, const Value& low, const Value& high,
                   ValueCheck what) {
  if (stablehlo::product(value.dims()) == 0) return;
  const Value wide = cast(value, DType::kS64);
  const Type type = wide.type();
  const auto limit = [&](const Value& x) {
    return b.broadcast_to(cast(x, DType::kS64), type.dims);
  };
  const Value bad = b.or_(b.lt(wide, limit(low)), b.ge(wide, limit(high)));
  const Value none = b.splat_int(kNoViolation, type);
  const Value init = b.splat_int(kNoViolation, Type(DType::kS64, {}));
  checks.push_back({b.reduce(b.select(bad, wide, none), init, range(type.rank()), Reduction::kMax),
                    std::move(what)});
}

void Call::counted(size_t i, const Value& count, Dims sizes, Dims order) {
  if (order.empty()) order = range(static_cast<int64_t>(sizes.size()));
  source_.counted.push_back({i, cast(count, DType::kS64), std::move(sizes), std::move(order)});
}

void Call::check_index(const Value& index, int64_t low, int64_t high, std::string message) {
  source_.check(b, index, low, high, {std::move(message), ValueCheck::Kind::kIndex});
}

void Call::check_index(const Value& index, const Value& low, const Value& high,
                       std::string message) {
  source_.check(b, index, low, high, {std::move(message), ValueCheck::Kind::kIndex});
}

void Call::check_range(const Value& value, int64_t low, int64_t high, std::string message) {
  source_.check(b, value, low, high, {std::move(message), ValueCheck::Kind::kValue});
}

void Call::check_range(const Value& value, const Value& low, const Value& high,
                       std::string message) {
  source_.check(b, value, low, high, {std::move(message), ValueCheck::Kind::kValue});
}

void Call::check_info(const Value& info, std::string api_name) {
  const bool matrix = info.rank() == 0;
  if (info.numel() == 0) return;
  const Value flat = b.reshape(cast(info, DType::kS64), {info.numel()});
  const Value element = b.iota(flat.type(), 0);
  const Value none = b.splat_int(INT64_MAX, flat.type());
  const Value failed = b.ne(flat, zeros_like(flat));
  // The first element that failed; its info, which may be negative, in the lower half.
  const Value low = b.and_(flat, b.splat_int(0xffffffff, flat.type()));
  const Value high = b.shift_left(element, b.splat_int(32, flat.type()));
  const Value init = b.splat_int(INT64_MAX, Type(DType::kS64, {}));
  const Value first =
      b.reduce(b.select(failed, b.or_(high, low), none), init, {0}, Reduction::kMin);
  const Value fine = b.splat_int(kNoViolation, first.type());
  source_.checks.push_back(
      {b.select(b.eq(first, init), fine, first),
       {std::move(api_name), matrix ? ValueCheck::Kind::kMatrix : ValueCheck::Kind::kBatch}});
}

}  // namespace torch_tpu::ops
