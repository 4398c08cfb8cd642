#include "csrc/dispatch/program/node.h"

#include "csrc/dispatch/call/target.h"

namespace torch_tpu::dispatch {
namespace {

using Form = trace::TensorArg::Form;

c10::Scalar number_of(const RawScalar& raw) {
  switch (raw.type) {
    case c10::ScalarType::Long:
      return raw.real.integer();
    case c10::ScalarType::UInt64:
      return raw.real.bits();
    case c10::ScalarType::Bool:
      return raw.real.integer() != 0;
    case c10::ScalarType::ComplexDouble:
      return c10::complex<double>(raw.real.to_double(), raw.imag);
    default:
      return raw.real.to_double();
  }
}

class NodeBuilder {
 public:
  NodeBuilder(const Frame& frame, bool constants) : frame_(frame), constants_(constants) {}

  trace::Node build(const Inferred& inferred) {
    node_.entry = frame_.op.entry;
    node_.name = frame_.op.name;
    node_.target = current_target();
    add_arguments();
    add_results(inferred);
    return std::move(node_);
  }

 private:
  void add_arguments() {
    const Op& op = frame_.op;
    for (size_t i = 0; i < op.args.size(); ++i) {
      const ArgPlan& plan = op.args[i];
      const c10::IValue& value = frame_.args[i];
      trace::NodeArg arg;
      arg.name = plan.name;
      arg.present = !value.isNone();
      arg.first_tensor = static_cast<int>(node_.tensors.size());
      switch (plan.kind) {
        case ArgKind::kTensor:
          arg.present = value.isTensor() && value.toTensor().defined();
          add_tensor();
          break;
        case ArgKind::kTensorList:
          arg.is_list = true;
          if (!value.isNone()) {
            for (size_t n = value.toListRef().size(); n > 0; --n) add_tensor();
          }
          break;
        case ArgKind::kScalar:
          if (arg.present) arg.scalars.push_back(scalar(plan, value));
          break;
        case ArgKind::kScalarList:
          arg.is_list = true;
          add_scalars(arg, plan, value.toListRef());
          break;
        case ArgKind::kStructural:
        case ArgKind::kIgnored:
          arg.value = value;
          break;
        case ArgKind::kGenerator:
          break;
      }
      arg.num_tensors = static_cast<int>(node_.tensors.size()) - arg.first_tensor;
      first_tensor_.push_back(arg.first_tensor);
      num_tensors_.push_back(arg.num_tensors);
      node_.args.push_back(std::move(arg));
    }
  }

  // For the next of the frame's runtime scalars.
  trace::ScalarArg take_scalar() {
    const RawScalar& raw = frame_.scalars[next_scalar_++];
    trace::ScalarArg out;
    out.type = raw.type;
    out.carrier = frame_.carrier(raw);
    if (constants_) {
      out.constant = number_of(raw);
      return out;
    }
    int& used = node_.pack_sizes[static_cast<int>(out.carrier)];
    out.slot = used;
    used += raw.type == c10::ScalarType::ComplexDouble ? 2 : 1;
    return out;
  }

  trace::ScalarArg scalar(const ArgPlan& plan, const c10::IValue& value) {
    const RawScalar raw = raw_scalar(value);
    if (!is_known(frame_.op, plan, raw)) return take_scalar();
    trace::ScalarArg out;
    out.type = raw.type;
    out.carrier = frame_.carrier(raw);
    out.known = raw.real;
    return out;
  }

  void add_scalars(trace::NodeArg& arg, const ArgPlan& plan, c10::ArrayRef<c10::IValue> list) {
    if (is_repeated(list)) {
      arg.scalars.assign(list.size(), scalar(plan, list[0]));
      return;
    }
    for (const c10::IValue& item : list) arg.scalars.push_back(scalar(plan, item));
  }

  void add_starts(const TensorRef& ref, trace::TensorArg& out) {
    if (ref.starts == 0) return;
    for (int dim = 0; ref.starts >> dim != 0; ++dim) {
      if ((ref.starts >> dim & 1) == 0) continue;
      const trace::ScalarArg scalar = take_scalar();
      if (!constants_) out.starts.push_back({dim, scalar.slot});
    }
    if (constants_) return;
    out.geometry.offset = 0;
    out.is_box = ref.is_box;
  }

  void add_tensor() {
    const TensorRef& ref = frame_.tensors[node_.tensors.size()];
    trace::TensorArg out;
    out.form = ref.form;
    if (ref.impl != nullptr) {
      out.dtype = c10::typeMetaToScalarType(ref.impl->dtype());
      out.wrapped_number = ref.impl->is_wrapped_number();
      // What is written through a lazy bit is resolved before it comes here.
      out.conj = ref.form == Form::kBase && !ref.written && ref.impl->is_conj();
      out.neg = ref.form == Form::kBase && !ref.written && ref.impl->is_neg();
      out.geometry.sizes = trace::to_shape(ref.impl->sizes());
      out.geometry.strides = trace::to_shape(ref.impl->strides());
      out.geometry.offset = ref.impl->storage_offset();
    }
    add_starts(ref, out);
    if (ref.form == Form::kScalar) {
      out.scalar = take_scalar();
    } else if (ref.is_input) {
      out.input = node_.num_inputs++;
      out.donated = ref.donated && !constants_;
      out.overwritten = ref.overwritten;
      out.base =
          stablehlo::Type(ref.value->dtype(), {ref.value->dims().begin(), ref.value->dims().end()});
      out.base_strides = trace::to_shape(ref.value->strides());
    } else if (ref.impl != nullptr) {
      const trace::Shape flat = flat_shape(*ref.impl);
      out.base = stablehlo::Type(ops::to_dtype(out.dtype), {flat.begin(), flat.end()});
      out.base_strides = {1};
    }
    out.same_cell = ref.same_cell;
    node_.tensors.push_back(std::move(out));
  }

  // Results that go into argument `arg`, in list order.
  void add_writes(int arg) {
    for (int i = 0; i < num_tensors_[static_cast<size_t>(arg)]; ++i) {
      const int index = first_tensor_[static_cast<size_t>(arg)] + i;
      const TensorRef& ref = frame_.tensors[static_cast<size_t>(index)];
      const trace::TensorArg& tensor = node_.tensors[static_cast<size_t>(index)];
      trace::Result result;
      result.defined = ref.impl != nullptr;
      result.dtype = tensor.dtype;
      result.sizes = tensor.geometry.sizes;
      result.strides = tensor.geometry.strides;
      result.write = index;
      result.whole = ref.whole;
      node_.results.push_back(std::move(result));
    }
  }

  void add_new(const at::Tensor& meta) {
    trace::Result result;
    result.defined = meta.defined();
    if (meta.defined()) {
      result.dtype = meta.scalar_type();
      result.sizes = trace::to_shape(meta.sizes());
      // A result always has memory of its own, so an expanded or overlapping layout is packed.
      result.strides = meta.is_non_overlapping_and_dense()
                           ? trace::to_shape(meta.strides())
                           : trace::contiguous_strides(meta.sizes());
    }
    node_.results.push_back(std::move(result));
  }

  void add_results(const Inferred& inferred) {
    const Op& op = frame_.op;
    node_.shapes_from_lowering = !inferred.known;
    size_t next = 0;
    for (size_t i = 0; i < op.returns.size(); ++i) {
      if (op.returns[i] >= 0) {
        add_writes(op.returns[i]);
        if (inferred.known)
          next += inferred.list_sizes[i] < 0 ? 1u : size_t(inferred.list_sizes[i]);
      } else if (!inferred.known) {
        node_.results.emplace_back();  // sizes come from the lowering
      } else {
        const int count = inferred.list_sizes[i] < 0 ? 1 : inferred.list_sizes[i];
        for (int k = 0; k < count; ++k) add_new(inferred.results[next++]);
      }
    }
    for (int arg : op.extra_writes) add_writes(arg);
  }

  const Frame& frame_;
  const bool constants_;
  trace::Node node_;
  std::vector<int> first_tensor_;
  std::vector<int> num_tensors_;
  size_t next_scalar_ = 0;
};

}  // namespace

trace::Node build_node(const Frame& frame, const Inferred& inferred, bool constants) {
  return NodeBuilder(frame, constants).build(inferred);
}

std::vector<trace::Program::Output> describe_outputs(const trace::Node& node,
                                                     const std::vector<stablehlo::Type>& types) {
  std::vector<trace::Program::Output> outputs;
  size_t next = 0;
  for (const trace::Result& result : node.results) {
    trace::Program::Output output;
    output.defined = result.defined;
    output.dtype = result.dtype;
    output.sizes = result.sizes;
    output.strides = result.strides;
    output.write = result.write;
    if (result.write >= 0) {
      const trace::TensorArg& target = node.tensors[static_cast<size_t>(result.write)];
      output.input = target.input;
      output.overwrites = target.overwritten;
    }
    output.extent = result.extent;
    if (result.defined) {
      const stablehlo::Type& type = types[next++];
      output.value_dtype = type.dtype;
      output.base_sizes.assign(type.dims.begin(), type.dims.end());
      output.base_strides = result.whole
                                ? result.strides
                                : node.tensors[static_cast<size_t>(result.write)].base_strides;
      output.bytes = type.numel() * stablehlo::dtype_bytes(type.dtype);
    }
    outputs.push_back(std::move(output));
  }
  return outputs;
}

uint64_t count_draws(const trace::Node& node) {
  int64_t elements = 4;
  for (const trace::Result& result : node.results) elements += trace::numel(result.sizes);
  for (const trace::TensorArg& tensor : node.tensors)
    elements += trace::numel(tensor.geometry.sizes);
  return static_cast<uint64_t>((elements + 3) / 4 * 4);
}

}  // namespace torch_tpu::dispatch
