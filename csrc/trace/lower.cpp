#include "csrc/trace/lower.h"

#include <c10/util/Exception.h>

#include "csrc/ops/helpers.h"
#include "csrc/ops/source.h"
#include "csrc/trace/view.h"

namespace torch_tpu::trace {
namespace {

using stablehlo::Builder;
using stablehlo::Dims;
using stablehlo::DType;
using stablehlo::Type;
using stablehlo::Value;
using stablehlo::Values;

Dims to_dims(ShapeRef shape) { return Dims(shape.begin(), shape.end()); }

class NodeLowering {
 public:
  explicit NodeLowering(Node& node) : node_(node) {}

  Lowered run() {
    declare_parameters();
    read_tensors();
    fill_source();
    std::vector<Type> expected;
    for (const Result& result : node_.results) {
      const bool known = result.dtype != c10::ScalarType::Undefined;
      expected.emplace_back(known ? ops::to_dtype(result.dtype) : DType::kF32,
                            to_dims(result.sizes));
    }
    ops::Call call(b_, source_, std::move(expected));
    Values values = node_.entry->lower(call);
    return finish(std::move(values));
  }

 private:
  void declare_parameters() {
    inputs_.resize(static_cast<size_t>(node_.num_inputs));
    for (const TensorArg& tensor : node_.tensors) {
      if (tensor.input < 0) continue;
      // Two arguments never share an input; each reads its own snapshot of the cell.
      inputs_[static_cast<size_t>(tensor.input)] = b_.parameter(tensor.base);
    }
    for (int i = 0; i < kNumCarriers; ++i) {
      if (node_.pack_sizes[i] == 0) continue;
      packs_[i] = b_.parameter(Type(carrier_dtype(static_cast<Carrier>(i)), {node_.pack_sizes[i]}));
    }
    if (node_.entry->random) source_.rng_state = b_.parameter(Type(DType::kU64, {2}));
  }

  Value slot(Carrier carrier, int index) {
    const Value& pack = packs_[static_cast<size_t>(carrier)];
    return b_.reshape(b_.slice(pack, {index}, {index + 1}), {});
  }

  Value scalar(const ScalarArg& arg) {
    if (arg.known) return b_.scalar(*arg.known, carrier_dtype(arg.carrier));
    if (arg.type == c10::ScalarType::ComplexDouble) {
      return b_.complex(slot(arg.carrier, arg.slot), slot(arg.carrier, arg.slot + 1));
    }
    return slot(arg.carrier, arg.slot);
  }

  Value base(const TensorArg& tensor) {
    return tensor.input >= 0 ? inputs_[static_cast<size_t>(tensor.input)]
                             : b_.splat(0, tensor.base);
  }

  void read_tensors() {
    for (const TensorArg& tensor : node_.tensors) {
      Value value;
      switch (tensor.form) {
        case TensorArg::Form::kNone:
        case TensorArg::Form::kWriteOnly:
          break;
        case TensorArg::Form::kScalar:
          value = ops::cast(scalar(tensor.scalar), ops::to_dtype(tensor.dtype));
          break;
        case TensorArg::Form::kZeros:
          value = b_.splat(0, Type(ops::to_dtype(tensor.dtype), to_dims(tensor.geometry.sizes)));
          break;
        case TensorArg::Form::kBase:
          value = read_view(base(tensor), tensor.base_strides, tensor.geometry,
                            ops::to_dtype(tensor.dtype));
          break;
      }
      if (tensor.conj) value = b_.conj(value);
      if (tensor.neg) value = b_.negate(value);
      reads_.push_back(value);
    }
  }

  void fill_source() {
    for (const NodeArg& arg : node_.args) {
      ops::Argument out;
      out.name = arg.name;
      out.value = arg.value;
      out.present = arg.present;
      out.is_list = arg.is_list;
      for (int i = 0; i < arg.num_tensors; ++i) {
        const auto at = static_cast<size_t>(arg.first_tensor + i);
        const TensorArg& tensor = node_.tensors[at];
        out.tensors.push_back(reads_[at]);
        out.infos.push_back({tensor.dtype, static_cast<int64_t>(tensor.geometry.sizes.size()),
                             tensor.wrapped_number});
      }
      for (const ScalarArg& item : arg.scalars) {
        // A number that a list repeats has one slot, and is read once.
        const ScalarArg& first = arg.scalars[0];
        const bool again = !out.scalars.empty() && !item.known && !first.known &&
                           item.carrier == first.carrier && item.slot == first.slot;
        out.scalars.push_back(again ? out.scalars[0] : scalar(item));
        out.scalar_types.push_back(item.type);
        if (arg.scalars.size() == 1) out.known = item.known;
      }
      source_.arguments.push_back(std::move(out));
    }
  }

  Lowered finish(Values values) {
    TORCH_INTERNAL_ASSERT(node_.shapes_from_lowering || values.size() == node_.results.size(),
                          node_.name, ": the lowering gave ", values.size(), " values where ",
                          node_.results.size(), " are expected");
    if (node_.shapes_from_lowering && node_.results.size() < values.size()) {
      node_.results.resize(values.size());
    }
    Lowered lowered;
    Values outputs;
    Values written(node_.tensors.size());  // the newest base, per written tensor
    for (size_t i = 0; i < values.size(); ++i) {
      Result& result = node_.results[i];
      if (!values[i].defined()) {
        result.defined = false;
        continue;
      }
      if (!result.defined) continue;
      if (node_.shapes_from_lowering && result.write < 0) {
        result.dtype = ops::to_scalar_type(values[i].dtype());
        result.sizes.assign(values[i].dims().begin(), values[i].dims().end());
        result.strides = contiguous_strides(result.sizes);
      }
      const DType dtype = ops::to_dtype(result.dtype);
      TORCH_INTERNAL_ASSERT(values[i].dims() == to_dims(result.sizes), node_.name, ": result ", i,
                            " was lowered to ", values[i].type().str(), ", expected ",
                            Type(dtype, to_dims(result.sizes)).str());
      Value value = ops::cast(values[i], dtype);
      if (result.write >= 0 && !result.whole) {
        const TensorArg& target = node_.tensors[static_cast<size_t>(result.write)];
        const Value under =
            target.same_cell >= 0 ? written[static_cast<size_t>(target.same_cell)] : base(target);
        value = write_view(under, target.base_strides, target.geometry, value);
      }
      if (result.write >= 0) {
        const TensorArg& target = node_.tensors[static_cast<size_t>(result.write)];
        written[static_cast<size_t>(result.write)] = value;
        if (target.donated) b_.alias(target.input, static_cast<int64_t>(outputs.size()));
      }
      lowered.outputs.push_back(value.type());
      outputs.push_back(value);
    }
    for (const ops::PendingCheck& check : source_.checks) {
      outputs.push_back(check.flag);
      lowered.checks.push_back(check.what);
    }
    std::string module_name = node_.name.substr(node_.name.find("::") + 2);
    for (char& c : module_name) {
      if (c == '.') c = '_';
    }
    lowered.text = b_.finish(outputs, module_name);
    return lowered;
  }

  Node& node_;
  Builder b_;
  ops::Source source_;
  Values inputs_;
  Values packs_ = Values(kNumCarriers);
  Values reads_;
};

}  // namespace

DType carrier_dtype(Carrier carrier) {
  switch (carrier) {
    case Carrier::kF32:
      return DType::kF32;
    case Carrier::kF64:
      return DType::kF64;
    case Carrier::kS64:
      return DType::kS64;
  }
  return DType::kF32;
}

Lowered lower(Node& node) { return NodeLowering(node).run(); }

}  // namespace torch_tpu::trace
