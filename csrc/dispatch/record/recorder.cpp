#include "csrc/dispatch/record/recorder.h"

#include <algorithm>
#include <atomic>
#include <functional>
#include <utility>

#include <ATen/core/Tensor.h>

#include "csrc/device/tensor.h"
#include "csrc/dispatch/call/masks.h"
#include "csrc/dispatch/call/mode.h"
#include "csrc/dispatch/program/build.h"
#include "csrc/dispatch/program/node.h"
#include "csrc/dispatch/run/counted.h"
#include "csrc/dispatch/run/results.h"
#include "csrc/ops/random.h"
#include "csrc/stablehlo/annotate.h"
#include "csrc/trace/lower.h"
#include "csrc/trace/view.h"

namespace torch_tpu::dispatch {
namespace {

using stablehlo::DType;
using stablehlo::Type;
using stablehlo::Value;

thread_local Recorder* current_recorder = nullptr;

// Ids of different recordings do not meet, so a value that outlives its own is recognised.
int64_t take_ids() {
  static std::atomic<int64_t> next{0};
  constexpr int64_t kPerRecording = int64_t{1} << 32;
  return next.fetch_add(kPerRecording);
}

// What expand() repeats, once.
at::Tensor without_repeats(const at::Tensor& tensor) {
  const c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  trace::Shape sizes = trace::to_shape(impl.sizes());
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (impl.strides()[i] == 0 && sizes[i] > 1) sizes[i] = 1;
  }
  if (impl.sizes() == trace::ShapeRef(sizes)) return tensor;
  at::Tensor once = recorded_stand_in(tensor, tensor.storage());
  once.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, impl.strides(), impl.storage_offset());
  return once;
}

}  // namespace

Recorder::Recorder(int device) : outer_(current_recorder), device_(device), first_id_(take_ids()) {
  current_recorder = this;
}

Recorder::~Recorder() { current_recorder = outer_; }

Recorder* Recorder::current() noexcept { return current_recorder; }

trace::ValuePtr Recorder::remember(const Value& value, trace::ShapeRef strides) {
  const int64_t id = first_id_ + static_cast<int64_t>(values_.size());
  values_.push_back(value);
  homes_.push_back(scopes_.empty() ? 0 : scopes_.back()->serial_);
  const trace::Shape dims(value.dims().begin(), value.dims().end());
  return c10::make_intrusive<trace::DeviceValue>(id, value.dtype(), dims, strides, device_);
}

trace::ValuePtr Recorder::add_argument(const trace::DeviceValue& like) {
  return add_argument(like.dtype(), like.dims(), like.strides());
}

trace::ValuePtr Recorder::add_argument(DType dtype, trace::ShapeRef dims, trace::ShapeRef strides) {
  return remember(b_.parameter(Type(dtype, {dims.begin(), dims.end()})), strides);
}

Value Recorder::value_of(const trace::ValuePtr& value) {
  const int64_t id = value->recorded_id();
  if (id >= 0) {
    const auto at = static_cast<size_t>(id - first_id_);
    if (id < first_id_ || at >= values_.size()) value->obtain();  // of another recording: throws
    const auto is_home = [&](const Scope* scope) { return scope->serial_ == homes_[at]; };
    if (homes_[at] != 0 && std::none_of(scopes_.begin(), scopes_.end(), is_home)) {
      throw trace::RecordedValue("a branch or loop wrote into a tensor of outside");
    }
    return values_[at];
  }
  // A value from outside (a constant the decomposition uploaded): the program keeps it.
  for (size_t i = 0; i < extra_inputs_.size(); ++i) {
    if (extra_inputs_[i] == value) return extra_values_[i];
  }
  extra_inputs_.push_back(value);
  extra_values_.push_back(
      b_.parameter(Type(value->dtype(), {value->dims().begin(), value->dims().end()})));
  return extra_values_.back();
}

Recorder::Scope::Scope(Recorder& recorder, std::function<Value()> iteration)
    : recorder_(recorder), iteration_(std::move(iteration)), serial_(recorder.next_serial_++) {
  recorder_.scopes_.push_back(this);
}

Recorder::Scope::~Scope() { recorder_.scopes_.pop_back(); }

void Recorder::add_check(ops::PendingCheck check) {
  (scopes_.empty() ? checks_ : scopes_.back()->checks).push_back(std::move(check));
}

// Each random op of the recording has its own part of the generator's stream; in a loop, of a
// stream that the iteration derives from it, since nobody knows how many there will be.
Value Recorder::next_rng_state(uint64_t draws) {
  const auto moved = [&](const Value& state, uint64_t by) {
    const Value seed = b_.slice(state, {0}, {1});
    const Value offset = b_.slice(state, {1}, {2});
    const Value sum = b_.add(offset, b_.splat(by, offset.type()));
    return b_.concatenate({seed, sum}, 0);
  };
  if (given_state_.defined())
    return moved(given_state_, std::exchange(given_draws_, given_draws_ + draws));
  if (!rng_state_.defined()) {
    rng_state_ = b_.parameter(Type(DType::kU64, {2}));
    extra_inputs_.emplace_back();
    extra_values_.push_back(rng_state_);
  }
  Value state = rng_state_;
  uint64_t* taken = &draws_;
  for (Scope* scope : scopes_) {
    const bool first = !std::exchange(scope->random_, true);
    if (!scope->iteration_) continue;
    if (first) {
      scope->stream_start_ = *taken;
      *taken += 4;
    }
    state = ops::random_stream(b_, moved(state, scope->stream_start_), scope->iteration_());
    taken = &scope->draws_;
  }
  state = moved(state, *taken);
  *taken += draws;
  return state;
}

at::Tensor Recorder::rng_state() {
  return make(b_.bitcast_convert(next_rng_state(0), Type(DType::kS64, {2})), at::kLong);
}

void Recorder::use_rng_state(const at::Tensor& state) {
  given_state_ =
      state.defined() ? b_.bitcast_convert(read(state), Type(DType::kU64, {2})) : Value();
  given_draws_ = 0;
}

void Recorder::close() { first_address_ = device::take_address(0); }

void Recorder::check_inside(const Frame& frame) const {
  if (first_address_ == nullptr) return;
  for (const TensorRef& ref : frame.tensors) {
    if (ref.cell == nullptr) continue;
    const void* address = ref.impl->unsafe_storage().data();
    TORCH_CHECK_NOT_IMPLEMENTED(
        address == nullptr || std::less_equal<>()(first_address_, address), "it ",
        ref.written ? "writes" : "reads", " a tensor of sizes ", ref.impl->sizes(), " (by ",
        frame.op.name, ") that is none of its arguments, so it may hold something else, or be ",
        "another one, at each call. Make it an argument");
  }
}

std::string Recorder::label_of(const std::string& op) const {
  std::string line = python_location();  // "file.py:12 in train: loss = f(x)"
  line.resize(std::min(line.size(), line.find(" in ")));
  if (line.find("/torch/") != std::string::npos) line.clear();  // autograd's: no user's line
  line.erase(0, line.rfind('/') + 1);
  // No "@": XLA takes what follows one for something of its own.
  return (scope_->empty() ? "" : *scope_ + "/") + op + (line.empty() ? "" : " at " + line);
}

std::optional<std::string> Recorder::record(const Op& op, c10::Stack* stack) {
  std::optional<stablehlo::LabelScope> label;
  if (scope_) label.emplace(label_of(op.name));
  if (op.entry->expands_masks) expand_masks(op, stack);
  if (op.copies_out) {
    run_and_copy_out(op, stack);
    return std::nullopt;
  }
  while (true) {
    Frame frame(op, stack->data() + (stack->size() - op.args.size()));
    check_writable(frame);
    check_inside(frame);
    const Inferred inferred = infer(frame);
    const trace::Resizes resizes = find_resizes(frame, inferred);
    if (!resizes.all.empty()) {
      frame.leases.end();
      apply_resizes(resizes, frame, /*warn=*/false);
      continue;
    }
    trace::Node node = build_node(frame, inferred, /*constants=*/true);
    trace::NodeInputs inputs;
    for (const TensorRef& ref : frame.tensors) {
      if (ref.is_input) inputs.bases.push_back(value_of(ref.value));
    }
    if (op.entry->random) inputs.rng_state = next_rng_state(count_draws(node));
    trace::NodeOutputs out;
    bool varies = false;
    for (const Value& base : inputs.bases) varies = varies || !base.type().is_static();
    try {
      out = trace::lower_into(b_, node, inputs);
    } catch (...) {
      if (varies) throw;  // a decomposition would take sizes for numbers
      std::string reason = refusal_of_lowering(frame);
      frame.leases.end();
      return reason;
    }
    if (!out.counts.empty()) {
      throw trace::RecordedValue("the size of a result of " + op.name + " depends on values");
    }
    note_op(op.name);
    for (const ops::PendingCheck& check : out.checks) add_check(check);
    std::vector<Type> types;
    std::vector<Value> defined;
    for (const Value& value : out.results) {
      if (!value.defined()) continue;
      types.push_back(value.type());
      defined.push_back(value);
    }
    for (TensorRef& ref : frame.tensors) ref.donated = false;
    size_t next = 0;
    Results results;
    place_results(describe_outputs(node, types), inferred.numbers, {}, frame, results,
                  [&](const trace::Program::Output& output) {
                    return remember(defined[next++], output.base_strides);
                  });
    push_results(op, std::move(results), stack);
    return std::nullopt;
  }
}

Value Recorder::read(const at::Tensor& tensor) {
  TORCH_CHECK_NOT_IMPLEMENTED(tensor.device().type() == c10::DeviceType::PrivateUse1,
                              "a result on ", tensor.device());
  const c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  trace::Geometry geometry;
  geometry.sizes = trace::to_shape(impl.sizes());
  geometry.strides = trace::to_shape(impl.strides());
  geometry.offset = impl.storage_offset();
  const DType dtype = ops::to_dtype(tensor.scalar_type());
  const trace::ValuePtr base = device::cell_of(impl)->load();
  if (!base) return b_.splat(0, Type(dtype, {geometry.sizes.begin(), geometry.sizes.end()}));
  Value value = trace::read_view(value_of(base), base->strides(), geometry, dtype);
  if (impl.is_conj()) value = b_.conj(value);
  if (impl.is_neg()) value = b_.negate(value);
  return value;
}

at::Tensor Recorder::make(const Value& value, c10::ScalarType dtype, c10::IntArrayRef strides) {
  const trace::Shape sizes(value.dims().begin(), value.dims().end());
  const trace::Shape dense =
      strides.empty() ? trace::contiguous_strides(sizes) : trace::to_shape(strides);
  return device::make_tensor(sizes, dense, dtype, device_, remember(value, dense));
}

bool Recorder::varies(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.device().type() != c10::DeviceType::PrivateUse1) return false;
  const trace::ValuePtr base = device::cell_of(*tensor.unsafeGetTensorImpl())->load();
  return base && base->recorded_id() >= 0 && !value_of(base).type().is_static();
}

void Recorder::add_result(const at::Tensor& tensor, bool may_repeat) {
  trace::Program::Output output;
  output.defined = tensor.defined();
  if (tensor.defined()) {
    const at::Tensor once = may_repeat ? without_repeats(tensor) : tensor;
    const Value value = read(once);
    output.dtype = tensor.scalar_type();
    output.value_dtype = value.dtype();
    output.sizes = trace::to_shape(tensor.sizes());
    output.base_sizes = trace::to_shape(once.sizes());
    output.base_strides = once.is_non_overlapping_and_dense()
                              ? trace::to_shape(once.strides())
                              : trace::contiguous_strides(output.base_sizes);
    output.strides = output.base_strides;
    for (size_t i = 0; i < output.sizes.size(); ++i) {
      if (output.sizes[i] != output.base_sizes[i]) output.strides[i] = 0;
    }
    output.bytes = value.numel() * stablehlo::dtype_bytes(value.dtype());
    results_.push_back(value);
  }
  outputs_.push_back(std::move(output));
}

void Recorder::add_base(const at::Tensor& tensor) {
  const trace::ValuePtr base = device::cell_of(*tensor.unsafeGetTensorImpl())->load();
  trace::Program::Output output;
  output.dtype = tensor.scalar_type();
  output.value_dtype = base->dtype();
  output.sizes = output.base_sizes = trace::to_shape(base->dims());
  output.strides = output.base_strides = trace::to_shape(base->strides());
  output.bytes = base->bytes();
  results_.push_back(value_of(base));
  outputs_.push_back(std::move(output));
}

void Recorder::add_write(size_t argument, const trace::DeviceValue& old,
                         const trace::ValuePtr& value) {
  trace::Program::Output output;
  output.write = output.input = static_cast<int>(argument);
  output.value_dtype = old.dtype();
  output.base_sizes = trace::to_shape(old.dims());
  output.base_strides = trace::to_shape(old.strides());
  output.bytes = old.bytes();
  b_.alias(static_cast<int64_t>(argument), static_cast<int64_t>(results_.size()));
  // A write through a view that covers everything leaves the view's layout or dtype.
  const trace::Geometry whole{output.base_sizes, output.base_strides, 0};
  writes_.emplace_back(results_.size(), argument);
  results_.push_back(
      trace::read_view(value_of(value), value->strides(), whole, output.value_dtype));
  outputs_.push_back(std::move(output));
}

void Recorder::note_op(const std::string& name) {
  for (auto& [known, count] : ops_) {
    if (known == name) {
      ++count;
      return;
    }
  }
  ops_.emplace_back(name, 1);
}

// A call of the whole is made or it is not: with a bad index, arguments keep what they hold.
void Recorder::hold_back_writes() {
  if (checks_.empty() || writes_.empty()) return;
  Value fine;
  for (const ops::PendingCheck& check : checks_) {
    const Value one = b_.eq(check.flag, b_.splat_int(ops::kNoViolation, check.flag.type()));
    fine = fine.defined() ? b_.and_(fine, one) : one;
  }
  for (const auto& [result, argument] : writes_) {
    results_[result] = b_.select(fine, results_[result], values_[argument]);
  }
}

std::string Recorder::finish(trace::Runnable& program) {
  hold_back_writes();
  for (const ops::PendingCheck& check : checks_) {
    results_.push_back(check.flag);
    program.checks.push_back(check.what);
  }
  program.outputs = std::move(outputs_);
  for (const auto& output : program.outputs) {
    program.output_bytes += output.bytes;
    if (output.write < 0) program.new_bytes += output.bytes;
  }
  program.extra_inputs = std::move(extra_inputs_);
  program.draws = draws_;
  return b_.finish(results_, trace::module_name(program.name));
}

RecordingPause::RecordingPause() noexcept : paused_(std::exchange(current_recorder, nullptr)) {}

RecordingPause::~RecordingPause() { current_recorder = paused_; }

at::Tensor recorded_stand_in(const at::Tensor& tensor, c10::Storage storage) {
  const c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  at::Tensor out = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), impl.dtype());
  c10::TensorImpl* made = out.unsafeGetTensorImpl();
  made->set_sizes_and_strides(impl.sizes(), impl.strides(), impl.storage_offset());
  if (impl.is_conj()) made->_set_conj(true);
  if (impl.is_neg()) made->_set_neg(true);
  if (impl.is_wrapped_number()) made->set_wrapped_number(true);
  return out;
}

}  // namespace torch_tpu::dispatch
