#include "csrc/dispatch/compiled.h"

#include <algorithm>
#include <list>
#include <mutex>

#include <ATen/MemoryOverlap.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zero.h>

#include "csrc/base/digest.h"
#include "csrc/cache/program_store.h"
#include "csrc/device/checks.h"
#include "csrc/device/generator.h"
#include "csrc/device/tensor.h"
#include "csrc/dispatch/bounded.h"
#include "csrc/dispatch/build.h"
#include "csrc/dispatch/execute.h"
#include "csrc/dispatch/fused.h"
#include "csrc/dispatch/mode.h"

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

bool on_device(const at::Tensor& tensor) {
  return tensor.defined() && tensor.device().type() == c10::DeviceType::PrivateUse1;
}

// Memory that nobody wrote yet reads as zeros.
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

CompiledGraph::Input CompiledGraph::input_of(const at::Tensor& tensor,
                                             const trace::DeviceValue& value, size_t base) {
  const c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  return {tensor.scalar_type(),
          value.dtype(),
          trace::to_shape(value.dims()),
          trace::to_shape(value.strides()),
          geometry_of(impl),
          impl.is_conj(),
          impl.is_neg(),
          base};
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

bool CompiledGraph::accepts(const std::vector<at::Tensor>& tensors) const {
  if (tensors.size() != inputs_.size()) return false;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const Input& input = inputs_[i];
    const c10::TensorImpl& impl = *tensors[i].unsafeGetTensorImpl();
    if (impl.device_type() != c10::DeviceType::PrivateUse1 || impl.device().index() != device_ ||
        tensors[i].scalar_type() != input.dtype) {
      return false;
    }
    if (input.padded) {
      for (size_t d = 0; d < input.base_sizes.size(); ++d) {
        if (impl.sizes()[d] > input.base_sizes[d]) return false;
      }
      continue;
    }
    if (impl.sizes() != trace::ShapeRef(input.geometry.sizes) ||
        impl.strides() != trace::ShapeRef(input.geometry.strides) ||
        impl.storage_offset() != input.geometry.offset || impl.is_conj() != input.conj ||
        impl.is_neg() != input.neg) {
      return false;
    }
    const trace::ValuePtr value = value_of(tensors[i]);
    if (!value || value->dtype() != input.value_dtype ||
        value->dims() != trace::ShapeRef(input.base_sizes) ||
        value->strides() != trace::ShapeRef(input.base_strides)) {
      return false;
    }
  }
  return shares_alike(tensors);
}

at::Tensor CompiledGraph::view_of(const at::Tensor& base, const View& view) {
  at::Tensor out = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(base.storage()), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
      c10::scalarTypeToTypeMeta(view.dtype));
  c10::TensorImpl* impl = out.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(view.geometry.sizes, view.geometry.strides, view.geometry.offset);
  if (view.conj) impl->_set_conj(true);
  if (view.neg) impl->_set_neg(true);
  // A write to either is noticed by who saved the other for backward.
  if (!base.is_inference() && !out.is_inference()) {
    impl->set_version_counter(base.unsafeGetTensorImpl()->version_counter());
  }
  return out;
}

std::vector<at::Tensor> CompiledGraph::run(std::vector<at::Tensor> tensors,
                                           const std::vector<int64_t>& numbers,
                                           const std::vector<float>& floats) {
  trace::Program& program = *program_;
  launch_pending(device_, Cut::kCompiledCall);  // it may hold what this call could take
  std::vector<trace::ValuePtr> values;
  values.reserve(bases_.size());
  Execution run;
  for (const size_t first : bases_) {
    values.push_back(inputs_[first].padded
                         ? padded_value(tensors[first], inputs_[first].base_sizes)
                         : device::cell_of(*tensors[first].unsafeGetTensorImpl())->load());
    run.args.push_back(values.back()->raw());
  }
  run.s64 = numbers;
  run.f32 = floats;
  if (program.draws > 0) {
    const auto [seed, offset] = device::generator_for(std::nullopt, device_).reserve(program.draws);
    run.rng[0] = seed;
    run.rng[1] = offset;
  }
  c10::SmallVector<int64_t, 8> keep;
  for (const trace::Program::Output& output : program.outputs) {
    if (output.write < 0) continue;
    const trace::ValuePtr& old = values[static_cast<size_t>(output.write)];
    // The cell's reference and ours.
    if (!old->donatable() || old.use_count() > 2) keep.push_back(output.write);
  }
  run.keep = {keep.data(), keep.size()};
  execute(program, run, device_, issue_line(), base::journal::Kind::kLaunch);

  size_t next = 0;
  std::vector<at::Tensor> fresh;
  for (const trace::Program::Output& output : program.outputs) {
    if (!output.defined) {
      fresh.emplace_back();
      continue;
    }
    device::Cell* target = nullptr;
    if (output.write >= 0) {
      const auto at = static_cast<size_t>(output.write);
      c10::TensorImpl& written = *tensors[bases_[at]].unsafeGetTensorImpl();
      target = device::cell_of(written);
      if (std::find(keep.begin(), keep.end(), output.write) == keep.end()) {
        values[at].reset();  // its memory is the result's: count it once
        target->store({});
      }
      written.bump_version();
    }
    auto value = c10::make_intrusive<trace::DeviceValue>(
        run.outs[next++], output.value_dtype, output.base_sizes, output.base_strides, device_);
    if (target != nullptr) {
      target->store(std::move(value));
      fresh.emplace_back();
    } else {
      fresh.push_back(device::make_tensor(output.sizes, output.strides, output.dtype, device_,
                                          std::move(value)));
    }
  }
  std::vector<at::Tensor> results;
  results.reserve(results_.size());
  for (size_t i = 0; i < results_.size(); ++i) {
    const Result& result = results_[i];
    const at::Tensor& base = result.from >= 0 ? fresh[static_cast<size_t>(result.from)]
                                              : tensors[static_cast<size_t>(-1 - result.from)];
    results.push_back(result.view ? view_of(base, *result.view) : base);
    if (result.from >= 0 && i < bounds_.size() && bounds_[i]) {
      results.back() = cut(results.back(), *bounds_[i], numbers);
    }
  }
  c10::SmallVector<trace::ValuePtr, 2> flags;
  for (size_t i = 0; i < program.checks.size(); ++i) {
    flags.push_back(c10::make_intrusive<trace::DeviceValue>(
        run.outs[next++], DType::kS64, trace::ShapeRef{}, trace::ShapeRef{}, device_));
  }
  for (size_t i = 0; i < flags.size(); ++i) {
    device::check_flag(std::move(flags[i]), program.checks[i], program_);
  }
  if (mode() == base::Mode::kDebug) {
    trace::Ledger::of(device_).synchronize();
    device::raise_pending_checks(device_);
  }
  return results;
}

at::Tensor GraphRecording::add_padded(const at::Tensor& tensor, trace::ShapeRef sizes) {
  TORCH_CHECK_NOT_IMPLEMENTED(tensor.device().type() == c10::DeviceType::PrivateUse1 &&
                                  tensor.device().index() == made_->device_,
                              "an argument on ", tensor.device());
  const trace::Shape strides = trace::contiguous_strides(sizes);
  const DType dtype = ops::to_dtype(tensor.scalar_type());
  CompiledGraph::Input input{tensor.scalar_type(),
                             dtype,
                             trace::to_shape(sizes),
                             strides,
                             {trace::to_shape(sizes), strides, 0},
                             false,
                             false,
                             values_.size(),
                             true};
  made_->inputs_.push_back(std::move(input));
  made_->bases_.push_back(stand_ins_.size());
  values_.push_back(recorder_->add_argument(dtype, sizes, strides));
  stand_ins_.push_back(
      device::make_tensor(sizes, strides, tensor.scalar_type(), made_->device_, values_.back()));
  return stand_ins_.back();
}

void GraphRecording::add_bounded_result(const at::Tensor& tensor, BoundedResult how) {
  made_->bounds_.resize(results_.size() + 1);
  made_->bounds_.back() = std::move(how);
  results_.push_back(tensor);
}

GraphRecording::GraphRecording(int device)
    : recorder_(std::make_unique<Recorder>(device)), made_(c10::make_intrusive<CompiledGraph>()) {
  made_->device_ = device;
}

at::Tensor GraphRecording::add_argument(const at::Tensor& tensor) {
  TORCH_CHECK_NOT_IMPLEMENTED(tensor.device().type() == c10::DeviceType::PrivateUse1 &&
                                  tensor.device().index() == made_->device_,
                              "an argument on ", tensor.device(),
                              " of a program on tpu:", made_->device_);
  const trace::ValuePtr value = value_of(tensor);
  TORCH_CHECK_NOT_IMPLEMENTED(value, "an argument without memory");
  return add(tensor, *value);
}

at::Tensor GraphRecording::add_parameter(c10::IntArrayRef sizes, c10::IntArrayRef strides,
                                         c10::ScalarType dtype) {
  auto value = c10::make_intrusive<trace::DeviceValue>(
      /*recorded_id=*/int64_t{0}, ops::to_dtype(dtype), sizes, strides, made_->device_);
  return add(device::make_tensor(sizes, strides, dtype, made_->device_, value), *value);
}

at::Tensor GraphRecording::add(const at::Tensor& tensor, const trace::DeviceValue& value) {
  given_.push_back(tensor);  // its cell stays the only one at its address
  const device::Cell* cell = device::cell_of(*tensor.unsafeGetTensorImpl());
  const auto [at, fresh] = known_.try_emplace(cell, values_.size());
  const size_t base = at->second;
  c10::Storage storage;
  if (fresh) {
    values_.push_back(recorder_->add_argument(value));
    made_->bases_.push_back(stand_ins_.size());
    storage = device::make_storage(made_->device_, tensor.storage().nbytes(), values_.back());
  } else {
    storage = stand_ins_[made_->bases_[base]].storage();
  }
  made_->inputs_.push_back(CompiledGraph::input_of(tensor, value, base));
  stand_ins_.push_back(recorded_stand_in(tensor, std::move(storage)));
  return stand_ins_.back();
}

void GraphRecording::add_result(const at::Tensor& tensor) { results_.push_back(tensor); }

// Storages in which results overlap.
std::unordered_set<const device::Cell*> GraphRecording::overlapping() const {
  std::unordered_map<const device::Cell*, std::vector<c10::TensorImpl*>> by_cell;
  std::unordered_set<const device::Cell*> out;
  for (const at::Tensor& result : results_) {
    if (!on_device(result)) continue;
    c10::TensorImpl* impl = result.unsafeGetTensorImpl();
    const device::Cell* cell = device::cell_of(*impl);
    if (!cell->load()) continue;
    std::vector<c10::TensorImpl*>& others = by_cell[cell];
    for (c10::TensorImpl* other : others) {
      if (other != impl && at::get_overlap_status(other, impl) != at::MemOverlapStatus::No) {
        out.insert(cell);
      }
    }
    others.push_back(impl);
  }
  return out;
}

std::string GraphRecording::end(trace::Program& program, Sharing sharing) {
  int next = 0;
  for (size_t i = 0; i < values_.size(); ++i) {
    const at::Tensor& first = stand_ins_[made_->bases_[i]];
    const trace::ValuePtr now = device::cell_of(*first.unsafeGetTensorImpl())->load();
    if (now == values_[i]) continue;
    TORCH_CHECK_NOT_IMPLEMENTED(!made_->inputs_[made_->bases_[i]].padded,
                                "a write to an argument that varies");
    TORCH_CHECK_NOT_IMPLEMENTED(now && now->bytes() == values_[i]->bytes(),
                                "an argument whose memory is replaced by another's");
    recorder_->add_write(i, *values_[i], now);
    made_->writes_ = true;
    ++next;
  }
  std::unordered_map<const c10::TensorImpl*, int> places;
  for (size_t i = 0; i < stand_ins_.size(); ++i) {
    places.emplace(stand_ins_[i].unsafeGetTensorImpl(), -1 - static_cast<int>(i));
  }
  // Results over the memory of an argument stay there, as AOTAutograd asks them where they lie.
  std::unordered_map<const device::Cell*, int> bases;
  for (size_t i = 0; i < stand_ins_.size(); ++i) {
    bases.emplace(device::cell_of(*stand_ins_[i].unsafeGetTensorImpl()), -1 - static_cast<int>(i));
  }
  if (sharing == Sharing::kNone) bases.clear();
  const auto shared =
      sharing == Sharing::kAll ? overlapping() : std::unordered_set<const device::Cell*>();
  for (const at::Tensor& result : results_) {
    const c10::TensorImpl& impl = *result.unsafeGetTensorImpl();
    const auto [place, fresh] = places.try_emplace(&impl, next);
    if (!fresh && result.defined()) {
      made_->results_.push_back({place->second, std::nullopt});
      continue;
    }
    const device::Cell* cell = on_device(result) ? device::cell_of(impl) : nullptr;
    if (cell != nullptr && (bases.count(cell) != 0 || shared.count(cell) != 0)) {
      places.erase(place);
      const auto [base, first] = bases.try_emplace(cell, next);
      if (first) {
        recorder_->add_base(result);
        ++next;
      }
      made_->results_.push_back(
          {base->second, CompiledGraph::View{result.scalar_type(), geometry_of(impl),
                                             impl.is_conj(), impl.is_neg()}});
      continue;
    }
    recorder_->add_result(result, /*may_repeat=*/true);
    made_->results_.push_back({next++, std::nullopt});
  }
  made_->ops_ = recorder_->ops();
  program.num_inputs = static_cast<int>(stand_ins_.size());
  return recorder_->finish(program);
}

std::string GraphRecording::text(const std::string& name) {
  trace::Program program;
  program.name = name;
  return end(program, Sharing::kNone);
}

void GraphRecording::module(const std::string& name, RecordedModule& out) {
  out.description.name = name;
  out.text = end(out.description, Sharing::kNone);
  for (const CompiledGraph::Result& result : made_->results_) out.results.push_back(result.from);
}

CompiledPtr GraphRecording::finish(const std::string& name, bool share) {
  auto program = c10::make_intrusive<trace::Program>();
  program->name = name;
  // Results that are cut to their sizes have memory of their own.
  const Sharing sharing = !made_->bounds_.empty() ? Sharing::kNone
                          : share                 ? Sharing::kAll
                                                  : Sharing::kArguments;
  std::string text = end(*program, sharing);
  recorder_.reset();
  compile_by_text(*program, std::move(text));
  made_->program_ = std::move(program);
  remember(made_);
  return made_;
}

void compile_by_text(trace::Program& program, std::string text) {
  // The text says all; the words before it only keep it apart from the keys of ops.
  static constexpr uint64_t kTag = base::hash_bytes("torch_tpu compiled graph");
  const base::Digest digest = base::digest(text);
  program.key.add(kTag);
  program.key.add(digest.high);
  program.key.add(digest.low);
  program.key.add(uint64_t{text.size()});
  program.fingerprint = base::hash_bytes(text);
  cache::ProgramStore& store = cache::ProgramStore::get();
  if (const trace::ProgramPtr known = store.load(program.key); known && !known->code.empty()) {
    program.code = std::move(known->code);
    program.origin = known->origin;
    program.compile_seconds = known->compile_seconds;
  }
  program.text = std::move(text);
  const bool from_disk = !program.code.empty();
  ensure_compiled(program);
  if (!from_disk || program.origin == trace::Program::Origin::kCompiled) {
    store.store(program.key, program);
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
    info.compile_seconds = graph->program_->compile_seconds;
    info.origin = graph->program_->origin;
    info.executable = &graph->program_->executable;
    info.owner = graph;
    out.push_back(std::move(info));
  }
  return out;
}

}  // namespace torch_tpu::dispatch
