#include "csrc/dispatch/record/regions.h"

#include <optional>

#include <c10/core/WrapDimMinimal.h>
#include <c10/util/Exception.h>

#include "csrc/dispatch/record/recorder.h"
#include "csrc/ops/check_kind.h"
#include "csrc/stablehlo/annotate.h"
#include "csrc/stablehlo/regions.h"

namespace torch_tpu::dispatch {
namespace {

using stablehlo::AddCarry;
using stablehlo::Builder;
using stablehlo::DType;
using stablehlo::Type;
using stablehlo::Value;
using stablehlo::Values;
using Checks = std::vector<ops::PendingCheck>;

const Type kFlag(DType::kS64, {});
const Type kCounter(DType::kS32, {});

Recorder& recorder() {
  Recorder* current = Recorder::current();
  TORCH_CHECK(current != nullptr, "control flow is recorded only while a program is");
  return *current;
}

// One element as i1.
Value truth_of(Recorder& r, const at::Tensor& tensor, const char* what) {
  TORCH_CHECK(tensor.defined() && tensor.numel() == 1, what,
              " must be a bool or a tensor with one element");
  Builder& b = r.builder();
  const Value value = b.reshape(r.read(tensor), {});
  return value.dtype() == DType::kBool ? value : b.ne(value, b.splat(0, value.type()));
}

// How the tensors that come out of a region look.
struct Form {
  bool defined = false;
  c10::ScalarType dtype = c10::ScalarType::Undefined;
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;  // empty: row-major

  explicit Form(const at::Tensor& tensor) : defined(tensor.defined()) {
    if (!defined) return;
    dtype = tensor.scalar_type();
    sizes = tensor.sizes().vec();
    if (tensor.is_non_overlapping_and_dense()) strides = tensor.strides().vec();
  }
};

std::vector<Form> forms_of(const Tensors& tensors) {
  std::vector<Form> out;
  for (const at::Tensor& tensor : tensors) out.emplace_back(tensor);
  return out;
}

void check_same(const std::vector<Form>& expected, const std::vector<Form>& got, const char* what) {
  TORCH_CHECK(expected.size() == got.size(), "Expected to return same number of outputs but ", what,
              " returns ", got.size(), " item(s) instead of ", expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    const Form &a = expected[i], &b = got[i];
    TORCH_CHECK(a.defined == b.defined, "output ", i, " of ", what, ": expected ",
                a.defined ? "a tensor" : "None", " but got ", b.defined ? "a tensor" : "None");
    TORCH_CHECK(a.dtype == b.dtype, "output ", i, " of ", what, ": expected same dtype but got ",
                a.dtype, " and ", b.dtype);
    TORCH_CHECK(a.sizes == b.sizes, "output ", i, " of ", what, ": expected same size but got ",
                c10::IntArrayRef(a.sizes), " and ", c10::IntArrayRef(b.sizes));
  }
}

Values read_all(Recorder& r, const Tensors& tensors) {
  Values out;
  for (const at::Tensor& tensor : tensors) {
    if (tensor.defined()) out.push_back(r.read(tensor));
  }
  return out;
}

// The first of `values`, as many as there are defined forms.
Tensors make_all(Recorder& r, const std::vector<Form>& forms, const Values& values) {
  Tensors out;
  size_t next = 0;
  for (const Form& form : forms) {
    out.push_back(form.defined ? r.make(values[next++], form.dtype, form.strides) : at::Tensor());
  }
  return out;
}

// One element of a dim, which disappears.
Value slice_at(const Value& x, int64_t dim, const Value& index) {
  Builder& b = x.builder();
  stablehlo::Dims sizes = x.dims();
  Values starts(sizes.size(), b.splat_int(0, kCounter));
  starts[static_cast<size_t>(dim)] = index;
  sizes[static_cast<size_t>(dim)] = 1;
  const Value slice = b.dynamic_slice(x, starts, sizes);
  sizes.erase(sizes.begin() + dim);
  return b.reshape(slice, sizes);
}

Values flags_of(const Checks& checks) {
  Values out;
  for (const ops::PendingCheck& check : checks) out.push_back(check.flag);
  return out;
}

// Reports the flags that are the last of `values`.
void report(Recorder& r, const Checks& checks, const Values& values) {
  size_t next = values.size() - checks.size();
  for (const ops::PendingCheck& check : checks) r.add_check({values[next++], check.what});
}

// What a loop carries beside the caller's values, found while its body is built.
class Extras {
 public:
  Extras(Builder& b, const AddCarry& add) : b_(b), add_(add) {}

  // Which iteration is under way; for loops that do not count themselves.
  Value iteration() {
    if (!iteration_.defined()) {
      iteration_ = add_(Type(DType::kU64, {}), 0);
      next_.emplace_back();
      at_ = next_.size() - 1;
    }
    return iteration_;
  }
  void stack(const Value& y, int64_t length, const Value& counter) {
    stablehlo::Dims dims = y.dims();
    dims.insert(dims.begin(), length);
    const Value all = add_(Type(y.dtype(), dims), 0);
    dims[0] = 1;
    Values starts(dims.size(), b_.splat_int(0, kCounter));
    starts[0] = counter;
    next_.push_back(b_.dynamic_update_slice(all, b_.reshape(y, dims), starts));
  }
  // One flag each, in which the first violation stays.
  void flags(const Checks& checks) {
    for (const ops::PendingCheck& check : checks) {
      const Value old = add_(kFlag, ops::kNoViolation);
      const Value fine = b_.eq(old, b_.splat_int(ops::kNoViolation, kFlag));
      next_.push_back(b_.select(fine, check.flag, old));
    }
  }
  void append_to(Values& results) {
    if (iteration_.defined()) {
      next_[at_] = b_.add(iteration_, b_.splat_int(1, iteration_.type()));
    }
    results.insert(results.end(), next_.begin(), next_.end());
  }

 private:
  Builder& b_;
  const AddCarry& add_;
  Values next_;  // in the order they were added
  Value iteration_;
  size_t at_ = 0;
};

}  // namespace

Tensors record_if(const at::Tensor& pred, const std::function<Tensors()>& on_true,
                  const std::function<Tensors()>& on_false) {
  Recorder& r = recorder();
  Builder& b = r.builder();
  const Value truth = truth_of(r, pred, "The predicate");
  const Value fine = b.splat_int(ops::kNoViolation, kFlag);
  std::optional<std::vector<Form>> forms;
  Checks checks;
  const auto arm = [&](const std::function<Tensors()>& branch) -> stablehlo::ArmBody {
    return [&] {
      Recorder::Scope scope(r);
      const Tensors results = branch();
      if (forms) {
        check_same(*forms, forms_of(results), "the false branch");
      } else {
        forms = forms_of(results);
      }
      checks.insert(checks.end(), scope.checks.begin(), scope.checks.end());
      return stablehlo::Arm{read_all(r, results), flags_of(scope.checks)};
    };
  };
  const Values values = stablehlo::if_else(b, truth, arm(on_true), arm(on_false), fine);
  report(r, checks, values);
  return make_all(r, *forms, values);
}

Tensors record_while(const Tensors& inits,
                     const std::function<at::Tensor(const Tensors&)>& condition,
                     const std::function<Tensors(const Tensors&)>& body) {
  Recorder& r = recorder();
  Builder& b = r.builder();
  const std::vector<Form> forms = forms_of(inits);
  for (const Form& form : forms) TORCH_CHECK(form.defined, "while_loop carries tensors, got None");
  Values starts = read_all(r, inits);
  const auto test = [&](const Tensors& carries) {
    return truth_of(r, condition(carries), "What cond_fn returns");
  };

  // A condition with checks or random numbers cannot stay in the loop's own condition, which
  // returns nothing else. The body then asks it for the next time, and its answer is carried. Asked
  // here to see which it is; nothing is left of it where it is not needed.
  Checks first_checks;
  bool carried = false;
  {
    Recorder::Scope scope(r);
    const Value first = test(inits);
    first_checks = scope.checks;
    carried = !scope.checks.empty() || scope.random();
    if (carried) starts.push_back(first);
  }
  if (carried) {
    for (const ops::PendingCheck& check : first_checks) r.add_check(check);
  }

  Checks checks;
  const auto step = [&](const Values& arguments, const AddCarry& add) {
    Extras extras(b, add);
    Recorder::Scope scope(r, [&] { return extras.iteration(); });
    const Tensors next = body(make_all(r, forms, arguments));
    check_same(forms, forms_of(next), "body_fn");
    Values results = read_all(r, next);
    if (carried) results.push_back(test(next));
    extras.flags(scope.checks);
    extras.append_to(results);
    checks = scope.checks;
    return results;
  };
  const auto goes_on = [&](const Values& arguments) -> Values {
    if (carried) return {arguments[forms.size()]};
    Recorder::Scope scope(r);
    const Value truth = test(make_all(r, forms, arguments));
    TORCH_INTERNAL_ASSERT(scope.checks.empty() && !scope.random());
    return {truth};
  };
  const Values values = stablehlo::growing_loop(b, starts, goes_on, step);
  report(r, checks, values);
  return make_all(r, forms, values);
}

Tensors record_scan(const Tensors& inits, const Tensors& xs, int64_t length,
                    const std::function<Tensors(const Tensors&)>& body, bool reverse) {
  Recorder& r = recorder();
  Builder& b = r.builder();
  TORCH_CHECK(length < INT32_MAX, "a scan over ", length, " elements");
  std::vector<Form> forms = forms_of(inits);
  for (const Form& form : forms) TORCH_CHECK(form.defined, "scan carries tensors, got None");
  const size_t num_carries = inits.size();
  Values starts = read_all(r, inits);
  starts.push_back(b.splat_int(0, kCounter));
  const Values sources = read_all(r, xs);

  Checks checks;
  const auto step = [&](const Values& arguments, const AddCarry& add) {
    const Value counter = arguments[num_carries];
    Recorder::Scope scope(r, [&] { return b.convert(counter, DType::kU64); });
    Tensors operands = make_all(r, forms, arguments);
    const Value at = reverse ? b.subtract(b.splat_int(length - 1, kCounter), counter) : counter;
    for (size_t i = 0; i < xs.size(); ++i) {
      operands.push_back(r.make(slice_at(sources[i], 0, at), xs[i].scalar_type()));
    }
    const Tensors given = body(operands);
    TORCH_CHECK(given.size() >= num_carries, "combine_fn must return the carries first");
    const Tensors next(given.begin(), given.begin() + static_cast<std::ptrdiff_t>(num_carries));
    check_same(forms, forms_of(next), "combine_fn");
    Values results = read_all(r, next);
    results.push_back(b.add(counter, b.splat_int(1, kCounter)));
    Extras extras(b, add);
    for (size_t i = num_carries; i < given.size(); ++i) {
      forms.emplace_back(given[i]);
      forms.back().strides.clear();  // stacks are row-major
      if (given[i].defined()) extras.stack(r.read(given[i]), length, at);
    }
    extras.flags(scope.checks);
    extras.append_to(results);
    checks = scope.checks;
    return results;
  };
  const auto goes_on = [&](const Values& arguments) -> Values {
    return {b.lt(arguments[num_carries], b.splat_int(length, kCounter))};
  };
  Values values = stablehlo::growing_loop(b, starts, goes_on, step);
  report(r, checks, values);
  values.erase(values.begin() + static_cast<std::ptrdiff_t>(num_carries));  // the counter
  return make_all(r, forms, values);
}

at::Tensor record_select(const at::Tensor& x, int64_t dim, const at::Tensor& index) {
  Recorder& r = recorder();
  Builder& b = r.builder();
  dim = c10::maybe_wrap_dim(dim, x.dim());
  const Type type(DType::kS64, {});
  const Value at = b.convert(b.reshape(r.read(index), {}), DType::kS64);
  const Value size = b.splat_int(x.size(dim), type);
  const Value bad = b.or_(b.lt(at, b.negate(size)), b.ge(at, size));
  r.add_check({b.select(bad, at, b.splat_int(ops::kNoViolation, type)),
               {c10::str("select(): index {} out of range for tensor of size ", x.sizes(),
                         " at dimension ", dim),
                ops::ValueCheck::Kind::kIndex}});
  const Value wrapped = b.select(b.lt(at, b.splat_int(0, type)), b.add(at, size), at);
  return r.make(slice_at(r.read(x), dim, b.convert(wrapped, DType::kS32)), x.scalar_type());
}

void record_assert(const at::Tensor& condition, std::string message) {
  Recorder& r = recorder();
  Builder& b = r.builder();
  const Value fine = b.splat_int(ops::kNoViolation, kFlag);
  r.add_check({b.select(truth_of(r, condition, "An assertion"), fine, b.splat_int(0, kFlag)),
               {std::move(message), ops::ValueCheck::Kind::kValue}});
}

void record_check(const at::Tensor& flag, const std::string& kind, std::string message) {
  Recorder& r = recorder();
  TORCH_CHECK(flag.dim() == 0 && flag.scalar_type() == at::kLong, "a flag is one int64");
  r.add_check({r.read(flag), {std::move(message), ops::check_kind(kind)}});
}

at::Tensor record_sharding(const at::Tensor& tensor, const std::string& sharding) {
  Recorder& r = recorder();
  return r.make(stablehlo::sharding_constraint(r.builder(), r.read(tensor), sharding),
                tensor.scalar_type());
}

}  // namespace torch_tpu::dispatch
