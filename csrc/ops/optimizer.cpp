// Fused optimizer steps and gradient scaling: one program updates every parameter of a group.
// All of them write in place; each lowering returns the new values of the written lists in schema
// order. Rates, betas and decays are runtime values, so a schedule never recompiles.
#include "csrc/ops/elementwise.h"
#include "csrc/ops/table.h"

namespace torch_tpu::ops {
namespace {

constexpr DType kWide = DType::kF64;  // of step counts and what is derived from them

// A float hyperparameter (or a 0-d lr tensor), one for the whole group.
class Hyperparameter {
 public:
  Hyperparameter(Value wide) : wide_(wide) {}
  const Value& wide() const { return wide_; }
  Value as(DType dtype, const Dims& dims) const { return operand(wide_, dtype, dims); }

 private:
  Value wide_;  // 0-d
};

Value as_scalar(const Value& x) { return x.builder().reshape(x, {}); }

Hyperparameter hyper(Call& c, std::string_view name) { return {c.scalar(name, kWide)}; }

// lr of both overloads: a float, or a tensor on either device.
Hyperparameter learning_rate(Call& c) { return {as_scalar(c.scalar("lr", kWide))}; }

// What GradScaler passes: gradients are divided by grad_scale, and a found infinity skips the step.
class Scaling {
 public:
  explicit Scaling(Call& c)
      : scale_(c.optional_tensor("grad_scale")), found_inf_(c.optional_tensor("found_inf")) {
    if (scale_) {
      scale_ = as_scalar(scale_);
    }
    if (found_inf_) {
      skip_ = c.b.eq(as_scalar(found_inf_), ones_like(as_scalar(found_inf_)));
    }
  }

  Value unscaled(const Value& grad) const {
    return scale_ ? grad / operand(scale_, grad.dtype(), grad.dims()) : grad;
  }
  // `updated` rounded to the dtype of `old`, or `old` where the step is skipped.
  Value keep(const Value& updated, const Value& old) const {
    const Value rounded = cast(updated, old.dtype());
    return skip_ ? old.builder().select(skip_, old, rounded) : rounded;
  }

 private:
  Value scale_, found_inf_, skip_;
};

// --- Adam and AdamW ---------------------------------------------------------------------------

enum class Decay { kL2, kDecoupled };

template <Decay decay>
Values lower_fused_adam(Call& c) {
  const Values params = c.tensors("self"), grads = c.tensors("grads");
  const Values exp_avgs = c.tensors("exp_avgs"), exp_avg_sqs = c.tensors("exp_avg_sqs");
  const Values max_exp_avg_sqs = c.tensors("max_exp_avg_sqs"), steps = c.tensors("state_steps");
  const Hyperparameter lr = learning_rate(c);
  const Hyperparameter beta1 = hyper(c, "beta1"), beta2 = hyper(c, "beta2");
  const Hyperparameter weight_decay = hyper(c, "weight_decay"), eps = hyper(c, "eps");
  const Hyperparameter rest1 = 1.0 - beta1.wide(), rest2 = 1.0 - beta2.wide();
  const Hyperparameter shrink = lr.wide() * weight_decay.wide();
  const bool amsgrad = c.flag("amsgrad"), maximize = c.flag("maximize");
  const Scaling scaling(c);

  Values new_params, new_grads, new_avgs, new_avg_sqs, new_max_avg_sqs;
  for (size_t i = 0; i < params.size(); ++i) {
    const DType t = opmath(params[i].dtype());
    const Dims& dims = params[i].dims();
    // The corrections cancel (1 - 0.999^1), so they are taken in f64; only scalars are.
    const Value step = cast(as_scalar(steps[i]), kWide);
    const Hyperparameter correction1 = 1.0 - math::pow(beta1.wide(), step);
    const Hyperparameter correction2 = math::sqrt(1.0 - math::pow(beta2.wide(), step));
    const Hyperparameter step_size = lr.wide() / correction1.wide();

    Value param = cast(params[i], t);
    const Value unscaled = scaling.unscaled(cast(grads[i], t));
    Value grad = maximize ? -unscaled : unscaled;
    if constexpr (decay == Decay::kL2) {
      grad = grad + param * weight_decay.as(t, dims);
    } else {
      param = param - param * shrink.as(t, dims);
    }
    const Value old_avg = cast(exp_avgs[i], t), old_avg_sq = cast(exp_avg_sqs[i], t);
    const Value avg = math::lerp(old_avg, grad, rest1.as(t, dims));
    const Value avg_sq = old_avg_sq * beta2.as(t, dims) + rest2.as(t, dims) * grad * grad;
    Value second = avg_sq;
    if (amsgrad) {
      second = math::maximum(cast(max_exp_avg_sqs[i], t), avg_sq);
      new_max_avg_sqs.push_back(scaling.keep(second, max_exp_avg_sqs[i]));
    }
    const Value denominator = math::sqrt(second) / correction2.as(t, dims) + eps.as(t, dims);
    new_params.push_back(
        scaling.keep(param - step_size.as(t, dims) * avg / denominator, params[i]));
    new_grads.push_back(scaling.keep(unscaled, grads[i]));
    new_avgs.push_back(scaling.keep(avg, exp_avgs[i]));
    new_avg_sqs.push_back(scaling.keep(avg_sq, exp_avg_sqs[i]));
  }
  Values results = new_params;
  for (const Values* list : {&new_grads, &new_avgs, &new_avg_sqs}) {
    results.insert(results.end(), list->begin(), list->end());
  }
  // Without amsgrad the list may still hold tensors, which stay as they are.
  const Values& last = amsgrad ? new_max_avg_sqs : max_exp_avg_sqs;
  results.insert(results.end(), last.begin(), last.end());
  return results;
}

// --- SGD --------------------------------------------------------------------------------------

Values lower_fused_sgd(Call& c) {
  const Values params = c.tensors("self"), grads = c.tensors("grads");
  const Values buffers = c.tensors("momentum_buffer_list");  // empty without momentum
  const Hyperparameter lr = learning_rate(c);
  const Hyperparameter weight_decay = hyper(c, "weight_decay"), momentum = hyper(c, "momentum");
  const Hyperparameter fresh = 1.0 - hyper(c, "dampening").wide();
  const bool nesterov = c.flag("nesterov"), maximize = c.flag("maximize");
  const bool first = c.flag("is_first_step");
  const Scaling scaling(c);

  Values new_params, new_grads, new_buffers;
  for (size_t i = 0; i < params.size(); ++i) {
    const DType t = opmath(params[i].dtype());
    const Dims& dims = params[i].dims();
    const Value param = cast(params[i], t);
    const Value unscaled = scaling.unscaled(cast(grads[i], t));
    Value grad = maximize ? -unscaled : unscaled;
    grad = grad + param * weight_decay.as(t, dims);
    if (!buffers.empty()) {
      const Value old = cast(buffers[i], t);
      const Value buffer = first ? grad : momentum.as(t, dims) * old + fresh.as(t, dims) * grad;
      new_buffers.push_back(scaling.keep(buffer, buffers[i]));
      grad = nesterov ? grad + momentum.as(t, dims) * buffer : buffer;
    }
    new_params.push_back(scaling.keep(param - lr.as(t, dims) * grad, params[i]));
    new_grads.push_back(scaling.keep(unscaled, grads[i]));
  }
  Values results = new_params;
  results.insert(results.end(), new_grads.begin(), new_grads.end());
  results.insert(results.end(), new_buffers.begin(), new_buffers.end());
  return results;
}

// --- Adagrad ----------------------------------------------------------------------------------

// The overload with a tensor lr does not declare state_steps as written; neither changes them.
template <bool returns_steps>
Values lower_fused_adagrad(Call& c) {
  const Values params = c.tensors("self"), grads = c.tensors("grads");
  const Values sums = c.tensors("state_sums"), steps = c.tensors("state_steps");
  const Hyperparameter lr = learning_rate(c), lr_decay = hyper(c, "lr_decay");
  const Hyperparameter weight_decay = hyper(c, "weight_decay"), eps = hyper(c, "eps");
  const bool maximize = c.flag("maximize");
  const Scaling scaling(c);

  Values new_params, new_grads, new_sums;
  for (size_t i = 0; i < params.size(); ++i) {
    const DType t = opmath(params[i].dtype());
    const Dims& dims = params[i].dims();
    const Value step = cast(as_scalar(steps[i]), kWide);
    const Hyperparameter rate = lr.wide() / ((step - 1) * lr_decay.wide() + 1);
    const Value param = cast(params[i], t);
    const Value unscaled = scaling.unscaled(cast(grads[i], t));
    Value grad = maximize ? -unscaled : unscaled;
    grad = grad + param * weight_decay.as(t, dims);
    const Value sum = cast(sums[i], t) + grad * grad;
    const Value updated = param - grad * rate.as(t, dims) / (math::sqrt(sum) + eps.as(t, dims));
    new_params.push_back(scaling.keep(updated, params[i]));
    new_grads.push_back(scaling.keep(unscaled, grads[i]));
    new_sums.push_back(scaling.keep(sum, sums[i]));
  }
  Values results = new_params;
  results.insert(results.end(), new_grads.begin(), new_grads.end());
  results.insert(results.end(), new_sums.begin(), new_sums.end());
  if constexpr (returns_steps) {
    results.insert(results.end(), steps.begin(), steps.end());
  }
  return results;
}

// --- gradient scaling -------------------------------------------------------------------------

Values lower_amp_unscale(Call& c) {
  Builder& b = c.b;
  const Value found = c.tensor("found_inf");
  const Value inv_scale = as_scalar(c.tensor("inv_scale"));
  Value bad = b.ne(as_scalar(found), zeros_like(as_scalar(found)));
  Values results;
  for (const Value& grad : c.tensors("self")) {
    const Value infinite = b.not_(math::isfinite(grad));
    bad = b.or_(bad,
                b.reduce(infinite, b.scalar(0, DType::kBool), range(grad.rank()), Reduction::kOr));
    const DType t = opmath(grad.dtype());
    results.push_back(cast(cast(grad, t) * operand(inv_scale, t, grad.dims()), grad.dtype()));
  }
  results.push_back(b.reshape(cast(bad, found.dtype()), found.dims()));
  return results;
}

Values lower_amp_update_scale(Call& c) {
  Builder& b = c.b;
  const Value self = c.tensor("self"), tracker = c.tensor("growth_tracker");
  const Value scale = as_scalar(self), successes = as_scalar(tracker);
  const Value found = as_scalar(c.tensor("found_inf"));
  const Value bad = b.ne(found, zeros_like(found));
  const DType t = scale.dtype();
  const Value next = successes + 1;
  const Value due = b.eq(next, b.splat_int(c.integer("growth_interval"), next.type()));
  const Value grown = scale * c.scalar("scale_growth_factor", t);
  const Value good = b.select(b.and_(due, math::isfinite(grown)), grown, scale);
  const Value shrunk = scale * c.scalar("scale_backoff_factor", t);
  const Value count = b.select(b.or_(bad, due), zeros_like(next), next);
  return {b.reshape(b.select(bad, shrunk, good), self.dims()), b.reshape(count, tracker.dims())};
}

}  // namespace

void add_optimizer(Entries& t) {
  const std::pair<std::string_view, Lowering> steps[] = {
      {"_fused_adam_", lower_fused_adam<Decay::kL2>},
      {"_fused_adam_.tensor_lr", lower_fused_adam<Decay::kL2>},
      {"_fused_adamw_", lower_fused_adam<Decay::kDecoupled>},
      {"_fused_adamw_.tensor_lr", lower_fused_adam<Decay::kDecoupled>},
      {"_fused_sgd_", lower_fused_sgd},
      {"_fused_sgd_.tensor_lr", lower_fused_sgd},
      {"_fused_adagrad_", lower_fused_adagrad<true>},
      {"_fused_adagrad_.tensor_lr", lower_fused_adagrad<false>},
  };
  for (const auto& [name, lower] : steps) {
    t.push_back({.name = name, .lower = lower, .cpu_scalars = true});  // lr may be on the host
  }
  t.push_back({.name = "_amp_foreach_non_finite_check_and_unscale_", .lower = lower_amp_unscale});
  t.push_back({.name = "_amp_update_scale_", .lower = lower_amp_update_scale});
}

}  // namespace torch_tpu::ops
