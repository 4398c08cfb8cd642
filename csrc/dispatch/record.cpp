#include "csrc/dispatch/record.h"

#include <atomic>

#include <ATen/core/Tensor.h>

#include "csrc/device/cell.h"
#include "csrc/dispatch/build.h"
#include "csrc/dispatch/counted.h"
#include "csrc/dispatch/decompose.h"
#include "csrc/dispatch/masks.h"
#include "csrc/dispatch/node.h"
#include "csrc/dispatch/results.h"
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

}  // namespace

Recorder::Recorder(int device) : outer_(current_recorder), device_(device), first_id_(take_ids()) {
  current_recorder = this;
}

Recorder::~Recorder() { current_recorder = outer_; }

Recorder* Recorder::current() noexcept { return current_recorder; }

trace::ValuePtr Recorder::remember(const Value& value, trace::ShapeRef strides) {
  const int64_t id = first_id_ + static_cast<int64_t>(values_.size());
  values_.push_back(value);
  const trace::Shape dims(value.dims().begin(), value.dims().end());
  return c10::make_intrusive<trace::DeviceValue>(id, value.dtype(), dims, strides, device_);
}

trace::ValuePtr Recorder::add_argument(const trace::DeviceValue& like) {
  const Value value = b_.parameter(Type(like.dtype(), {like.dims().begin(), like.dims().end()}));
  return remember(value, like.strides());
}

Value Recorder::value_of(const trace::ValuePtr& value) {
  const int64_t id = value->recorded_id();
  if (id >= 0) {
    const auto at = static_cast<size_t>(id - first_id_);
    if (id < first_id_ || at >= values_.size()) value->buffer();  // of another recording: throws
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

// Each random op of the recording has its own part of the generator's stream.
Value Recorder::next_rng_state(uint64_t draws) {
  if (!rng_state_.defined()) {
    rng_state_ = b_.parameter(Type(DType::kU64, {2}));
    extra_inputs_.emplace_back();
    extra_values_.push_back(rng_state_);
  }
  const Value seed = b_.slice(rng_state_, {0}, {1});
  const Value offset = b_.slice(rng_state_, {1}, {2});
  const Value moved = b_.add(offset, b_.splat(static_cast<double>(draws_), offset.type()));
  draws_ += draws;
  return b_.concatenate({seed, moved}, 0);
}

void Recorder::record(const Op& op, c10::Stack* stack) {
  if (op.entry->expands_masks) expand_masks(op, stack);
  if (op.copies_out) {
    run_and_copy_out(op, stack);
    return;
  }
  while (true) {
    Frame frame(op, stack->data() + (stack->size() - op.args.size()));
    check_writable(frame);
    const Inferred inferred = infer(frame);
    const auto resizes = find_resizes(frame, inferred);
    if (!resizes.empty()) {
      apply_resizes(resizes, frame);
      continue;
    }
    trace::Node node = build_node(frame, inferred, /*constants=*/true);
    trace::NodeInputs inputs;
    for (const TensorRef& ref : frame.tensors) {
      if (ref.is_input) inputs.bases.push_back(value_of(ref.value));
    }
    if (op.entry->random) inputs.rng_state = next_rng_state(count_draws(node));
    trace::NodeOutputs out;
    try {
      out = trace::lower_into(b_, node, inputs);
    } catch (...) {
      decompose_or_throw(op.handle, stack, refusal_of_lowering(frame));
      return;
    }
    if (!out.counts.empty()) {
      throw trace::RecordedValue("the size of a result of " + op.name + " depends on values");
    }
    note_op(op.name);
    checks_.insert(checks_.end(), out.checks.begin(), out.checks.end());
    std::vector<Type> types;
    std::vector<Value> defined;
    for (const Value& value : out.results) {
      if (!value.defined()) continue;
      types.push_back(value.type());
      defined.push_back(value);
    }
    for (TensorRef& ref : frame.tensors) ref.donated = false;
    size_t next = 0;
    place_results(describe_outputs(node, types), inferred.numbers, {}, frame, stack,
                  [&](const trace::Program::Output& output) {
                    return remember(defined[next++], output.base_strides);
                  });
    return;
  }
}

void Recorder::add_result(const at::Tensor& tensor) {
  trace::Program::Output output;
  output.defined = tensor.defined();
  if (tensor.defined()) {
    TORCH_CHECK_NOT_IMPLEMENTED(tensor.device().type() == c10::DeviceType::PrivateUse1,
                                "a result on ", tensor.device());
    const c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
    trace::Geometry geometry;
    geometry.sizes = trace::to_shape(impl.sizes());
    geometry.strides = trace::to_shape(impl.strides());
    geometry.offset = impl.storage_offset();
    output.dtype = tensor.scalar_type();
    output.value_dtype = ops::to_dtype(output.dtype);
    const trace::ValuePtr base = device::cell_of(impl)->load();
    const Type type(output.value_dtype, {geometry.sizes.begin(), geometry.sizes.end()});
    Value value =
        base ? trace::read_view(value_of(base), base->strides(), geometry, output.value_dtype)
             : b_.splat(0, type);
    if (impl.is_conj()) value = b_.conj(value);
    if (impl.is_neg()) value = b_.negate(value);
    output.sizes = geometry.sizes;
    output.strides = tensor.is_non_overlapping_and_dense()
                         ? geometry.strides
                         : trace::contiguous_strides(geometry.sizes);
    output.base_sizes = output.sizes;
    output.base_strides = output.strides;
    output.bytes = type.numel() * stablehlo::dtype_bytes(type.dtype);
    results_.push_back(value);
  }
  outputs_.push_back(std::move(output));
}

void Recorder::add_write(size_t argument, const trace::ValuePtr& value) {
  trace::Program::Output output;
  output.write = output.input = static_cast<int>(argument);
  output.value_dtype = value->dtype();
  output.base_sizes = trace::to_shape(value->dims());
  output.base_strides = trace::to_shape(value->strides());
  output.bytes = value->bytes();
  b_.alias(static_cast<int64_t>(argument), static_cast<int64_t>(results_.size()));
  results_.push_back(value_of(value));
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

std::string Recorder::finish(trace::Program& program) {
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

at::Tensor recorded_stand_in(const at::Tensor& tensor, trace::ValuePtr value) {
  const c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  at::Tensor out = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(device::make_storage(tensor.device().index(), impl.unsafe_storage().nbytes(),
                                        std::move(value))),
      c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), impl.dtype());
  c10::TensorImpl* made = out.unsafeGetTensorImpl();
  made->set_sizes_and_strides(impl.sizes(), impl.strides(), impl.storage_offset());
  if (impl.is_conj()) made->_set_conj(true);
  if (impl.is_neg()) made->_set_neg(true);
  if (impl.is_wrapped_number()) made->set_wrapped_number(true);
  return out;
}

}  // namespace torch_tpu::dispatch
