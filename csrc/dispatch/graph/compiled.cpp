#include "csrc/dispatch/graph/compiled.h"

#include <list>
#include <mutex>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zero.h>

#include "csrc/base/digest.h"
#include "csrc/cache/program_store.h"
#include "csrc/device/checks.h"
#include "csrc/device/generator.h"
#include "csrc/device/tensor.h"
#include "csrc/dispatch/call/mode.h"
#include "csrc/dispatch/fuse/pending.h"
#include "csrc/dispatch/program/build.h"
#include "csrc/dispatch/record/recorder.h"
#include "csrc/dispatch/record/varying.h"
#include "csrc/dispatch/run/execute.h"

namespace torch_tpu::dispatch {
namespace {

using stablehlo::DType;

trace::Geometry geometry_of(const c10::TensorImpl& impl) {
  trace::Geometry geometry;
  geometry.sizes = trace::to_shape(impl.sizes());
  geometry.strides = trace::to_shape(impl.strides());
  geometry.offset = impl.storage_offset();
  return geometry;
}

// Weak, so that a report does not keep programs alive.
struct Registry {
  std::mutex mutex;
  std::list<c10::weak_intrusive_ptr<CompiledGraph>> all;
};

Registry& registry() {
  static auto* made = new Registry();
  return *made;
}

}  // namespace

trace::ValuePtr value_of(const at::Tensor& tensor) {
  device::Cell* cell = device::cell_of(*tensor.unsafeGetTensorImpl());
  trace::ValuePtr value = cell->load();
  if (value) return value;
  if (tensor.unsafeGetTensorImpl()->unsafe_storage().nbytes() == 0) {
    value = device::upload(at::empty({0}, tensor.options().device(c10::kCPU)), cell->device());
    cell->store(value);
  } else {
    const RecordingPause pause;
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    const at::Tensor whole = tensor.is_non_overlapping_and_dense() ? tensor : tensor.detach();
    at::zero_(const_cast<at::Tensor&>(whole));
    value = cell->load();
  }
  return value;
}

void remember(const CompiledPtr& graph) {
  Registry& known = registry();
  std::lock_guard lock(known.mutex);
  known.all.remove_if([](const auto& weak) { return weak.expired(); });
  known.all.emplace_back(graph);
}

namespace {

// The true tensor over a result at the bound.
at::Tensor cut(const at::Tensor& whole, const BoundedResult& how,
               const std::vector<int64_t>& numbers) {
  trace::Shape sizes = how.sizes;
  for (size_t d = 0; d < sizes.size(); ++d) {
    if (how.numbers[d] >= 0) sizes[d] = numbers[static_cast<size_t>(how.numbers[d])];
  }
  trace::ValuePtr value = device::cell_of(*whole.unsafeGetTensorImpl())->load();
  const int device = whole.device().index();
  if (how.packed) {
    trace::Shape strides(sizes.size(), 1);
    int64_t step = 1;
    for (size_t i = how.order.size(); i-- > 0;) {
      const auto d = static_cast<size_t>(how.order[i]);
      strides[d] = step;
      step *= std::max<int64_t>(sizes[d], 1);
    }
    return device::make_prefix_tensor(sizes, strides, whole.scalar_type(), device,
                                      std::move(value));
  }
  return device::make_tensor(sizes, whole.strides(), whole.scalar_type(), device, std::move(value));
}

}  // namespace

CompiledGraph::View::View(const at::Tensor& tensor)
    : View(tensor.scalar_type(), geometry_of(*tensor.unsafeGetTensorImpl())) {
  conj = tensor.is_conj();
  neg = tensor.is_neg();
}

bool CompiledGraph::View::fits(const at::Tensor& tensor) const {
  const c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  return tensor.scalar_type() == dtype && impl.sizes() == trace::ShapeRef(geometry.sizes) &&
         impl.strides() == trace::ShapeRef(geometry.strides) &&
         impl.storage_offset() == geometry.offset && impl.is_conj() == conj && impl.is_neg() == neg;
}

at::Tensor CompiledGraph::View::over(const at::Tensor& base) const {
  at::Tensor out = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(base.storage()), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
      c10::scalarTypeToTypeMeta(dtype));
  c10::TensorImpl* impl = out.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(geometry.sizes, geometry.strides, geometry.offset);
  if (conj) impl->_set_conj(true);
  if (neg) impl->_set_neg(true);
  // A write to either is noticed by who saved the other for backward.
  if (!base.is_inference() && !out.is_inference()) {
    impl->set_version_counter(base.unsafeGetTensorImpl()->version_counter());
  }
  return out;
}

// A table by address: compiled optimizers come with hundreds of arguments at every step.
bool CompiledGraph::shares_alike(const std::vector<at::Tensor>& tensors) const {
  if (!writes_ && bases_.size() == inputs_.size()) return true;  // who reads may share or not
  struct Slot {
    const device::Cell* cell = nullptr;
    size_t base = 0;
  };
  thread_local std::vector<Slot> table;
  size_t slots = 16;
  while (slots < 2 * tensors.size()) slots *= 2;
  table.assign(slots, {});
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (inputs_[i].padded) continue;  // read only, and a base of its own
    const device::Cell* cell = device::cell_of(*tensors[i].unsafeGetTensorImpl());
    const size_t base = inputs_[i].base;
    size_t at = (reinterpret_cast<uintptr_t>(cell) / alignof(device::Cell)) & (slots - 1);
    while (table[at].cell != nullptr && table[at].cell != cell) at = (at + 1) & (slots - 1);
    const bool first = bases_[base] == i;
    if (first != (table[at].cell == nullptr) || (!first && table[at].base != base)) return false;
    table[at] = {cell, base};
  }
  return true;
}

bool CompiledGraph::accepts(const std::vector<at::Tensor>& tensors, Values& values) const {
  if (tensors.size() != inputs_.size()) return false;
  values.clear();
  for (size_t i = 0; i < tensors.size(); ++i) {
    const Input& input = inputs_[i];
    const c10::TensorImpl& impl = *tensors[i].unsafeGetTensorImpl();
    if (impl.device_type() != c10::DeviceType::PrivateUse1 || impl.device().index() != device_) {
      return false;
    }
    const bool first = bases_[input.base] == i;
    if (input.padded) {
      if (tensors[i].scalar_type() != input.view.dtype) return false;
      for (size_t d = 0; d < input.base_sizes.size(); ++d) {
        if (impl.sizes()[d] > input.base_sizes[d]) return false;
      }
      values.emplace_back();  // made when it runs
      continue;
    }
    if (!input.view.fits(tensors[i])) return false;
    if (!first) continue;  // over a value that was looked at
    trace::ValuePtr value = value_of(tensors[i]);
    if (!fits(input, value)) return false;
    values.push_back(std::move(value));
  }
  return shares_alike(tensors);
}

bool CompiledGraph::fits(const Input& input, const trace::ValuePtr& value) const {
  return value && value->dtype() == input.value_dtype &&
         value->dims() == trace::ShapeRef(input.base_sizes) &&
         value->strides() == trace::ShapeRef(input.base_strides);
}

bool CompiledGraph::lease_written(const std::vector<at::Tensor>& tensors, Values& values,
                                  device::Leases& leases) const {
  const auto cell = [&](const trace::Runnable::Output& output) {
    const at::Tensor& first = tensors[bases_[static_cast<size_t>(output.write)]];
    return device::cell_of(*first.unsafeGetTensorImpl());
  };
  for (const auto& output : program_->outputs) {
    if (output.write >= 0) leases.add(cell(output));
  }
  leases.begin();
  for (const auto& output : program_->outputs) {
    if (output.write < 0) continue;
    const auto at = static_cast<size_t>(output.write);
    const trace::ValuePtr& now = leases.of(cell(output)).value();
    if (now == values[at]) continue;
    if (!fits(inputs_[bases_[at]], now)) return false;
    values[at] = now;
  }
  return true;
}

std::optional<std::vector<at::Tensor>> CompiledGraph::run(std::vector<at::Tensor>& tensors,
                                                          Values& values,
                                                          const std::vector<int64_t>& numbers,
                                                          const std::vector<float>& floats) {
  trace::Runnable& program = *program_;
  launch_pending(device_, Cut::kCompiledCall);  // it may hold what this call could take
  ensure_compiled(program);
  device::Leases leases;
  if (writes_ && !lease_written(tensors, values, leases)) return std::nullopt;
  Execution run;
  trace::GuardUnion guards;
  for (size_t i = 0; i < bases_.size(); ++i) {
    const Input& input = inputs_[bases_[i]];
    if (input.padded) values[i] = padded_value(tensors[bases_[i]], input.base_sizes);
    run.args.push_back(values[i]->obtain_raw());
    if (!values[i]->guards()) continue;
    if (writes_) device::raise_violations(values[i]->guards());  // before it goes into an argument
    guards.add(values[i]->guards());
  }
  run.s64 = numbers;
  run.f32 = floats;
  if (program.draws > 0) {
    const auto [seed, offset] = device::generator_for(std::nullopt, device_).reserve(program.draws);
    run.rng[0] = seed;
    run.rng[1] = offset;
  }
  const auto cell_of_argument = [&](int argument) {
    const at::Tensor& first = tensors[bases_[static_cast<size_t>(argument)]];
    return device::cell_of(*first.unsafeGetTensorImpl());
  };
  for (const trace::Runnable::Output& output : program.outputs) {
    if (output.write < 0) continue;
    const trace::ValuePtr& old = values[static_cast<size_t>(output.write)];
    if (leases.of(cell_of_argument(output.write)).take(old, /*references=*/1)) continue;
    run.keep.push_back(output.write);
    run.kept_bytes += old->bytes();
  }
  execute(program, run, device_, issue_line(), base::journal::Kind::kLaunch);
  const trace::FlagsPtr flags =
      take_flags(program_, run.outs, run.outs.size() - program.checks.size());
  const trace::GuardsPtr inherited = guards.take();
  const auto guard = [&](trace::DeviceValue& value, bool written) {
    if (!inherited && !flags) return;
    trace::GuardUnion all;
    all.add(inherited);
    for (uint32_t i = 0; flags && i < flags->size(); ++i) all.add(flags, i, !written);
    value.guard(all.take());
  };

  size_t next = 0;
  std::vector<at::Tensor> fresh;
  fresh.reserve(program.outputs.size());
  for (const trace::Runnable::Output& output : program.outputs) {
    if (!output.defined) {
      fresh.emplace_back();
      continue;
    }
    if (output.write >= 0) {
      values[static_cast<size_t>(output.write)].reset();
      leases.of(cell_of_argument(output.write)).forget();  // its memory is counted once
    }
    auto value = c10::make_intrusive<trace::DeviceValue>(
        run.outs.take(next++), output.value_dtype, output.base_sizes, output.base_strides, device_);
    guard(*value, output.write >= 0);
    if (output.write >= 0) {
      tensors[bases_[static_cast<size_t>(output.write)]].unsafeGetTensorImpl()->bump_version();
      leases.of(cell_of_argument(output.write)).put(std::move(value));
      fresh.emplace_back();
    } else {
      fresh.push_back(device::make_tensor(output.sizes, output.strides, output.dtype, device_,
                                          std::move(value)));
    }
  }
  leases.end();
  std::vector<at::Tensor> results;
  results.reserve(results_.size());
  for (size_t i = 0; i < results_.size(); ++i) {
    const Result& result = results_[i];
    const at::Tensor& base = result.from >= 0 ? fresh[static_cast<size_t>(result.from)]
                                              : tensors[static_cast<size_t>(-1 - result.from)];
    results.push_back(result.view ? result.view->over(base) : base);
    if (result.early) device::cell_of(*base.unsafeGetTensorImpl())->load()->read_early();
    if (result.from >= 0 && i < bounds_.size() && bounds_[i]) {
      results.back() = cut(results.back(), *bounds_[i], numbers);
    }
  }
  if (flags) device::raise_known(*flags);
  if (mode() == base::Mode::kDebug) {
    trace::Ledger::of(device_).synchronize();
    device::raise_unreported();
  }
  return results;
}

trace::Key key_of_text(const std::string& text) {
  // The text says all; the words before it only keep it apart from the keys of ops.
  static constexpr uint64_t kTag = base::hash_bytes("torch_tpu compiled graph");
  const base::Digest digest = base::digest(text);
  trace::Key key;
  key.add(kTag);
  key.add(digest.high);
  key.add(digest.low);
  key.add(uint64_t{text.size()});
  return key;
}

void compile_by_text(trace::Runnable& program, std::string text) {
  program.key = key_of_text(text);
  program.fingerprint = base::hash_bytes(text);
  cache::ProgramStore& store = cache::ProgramStore::get();
  program.stored = store.find_code(program.key);
  program.text = std::move(text);
  ensure_compiled(program);
  if (program.code.origin() == trace::Code::Origin::kCompiled) {
    store.store_code(program.key, program.code);
  }
}

std::vector<cache::ProgramInfo> compiled_programs() {
  std::vector<CompiledPtr> alive;
  {
    Registry& known = registry();
    std::lock_guard lock(known.mutex);
    for (const auto& weak : known.all) {
      if (CompiledPtr graph = weak.lock()) alive.push_back(std::move(graph));
    }
  }
  std::vector<cache::ProgramInfo> out;
  for (const CompiledPtr& graph : alive) {
    cache::ProgramInfo info;
    info.name = graph->program_->name;
    info.ops = graph->ops_;
    info.fingerprint = graph->program_->fingerprint;
    info.runs = graph->program_->runs.load();
    info.hits = info.runs > 0 ? info.runs - 1 : 0;
    info.describe(graph->program_->code, graph);
    out.push_back(std::move(info));
  }
  return out;
}

}  // namespace torch_tpu::dispatch
