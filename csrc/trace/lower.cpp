#include "csrc/trace/lower.h"

#include <algorithm>

#include <c10/util/Exception.h>

#include "csrc/ops/foreign.h"
#include "csrc/ops/helpers.h"
#include "csrc/ops/source.h"

namespace torch_tpu::trace {
namespace {

using stablehlo::Builder;
using stablehlo::Dims;
using stablehlo::DType;
using stablehlo::Type;
using stablehlo::Value;
using stablehlo::Values;

Dims to_dims(ShapeRef shape) { return Dims(shape.begin(), shape.end()); }

bool is_contiguous(const Geometry& geometry) {
  return numel(geometry.sizes) == 0 || trace::is_contiguous(geometry.sizes, geometry.strides);
}

// Of a real number in the program.
DType scalar_dtype(const ScalarArg& arg) {
  const bool large = arg.type == c10::ScalarType::UInt64 && arg.carrier == Carrier::kS64;
  return large ? DType::kU64 : carrier_dtype(arg.carrier);
}

base::Number to_number(const c10::Scalar& number) {
  if (number.isFloatingPoint()) return number.toDouble();
  if (number.isBoolean()) return number.toBool();
  return number.isUnsigned() ? base::Number(number.toUInt64()) : base::Number(number.toLong());
}

class NodeLowering {
 public:
  NodeLowering(Builder& b, Node& node, const NodeInputs& inputs)
      : b_(b), node_(node), inputs_(inputs) {
    source_.rng_state = inputs.rng_state;
  }

  NodeOutputs run() {
    read_tensors();
    check_bounded();
    fill_source();
    std::vector<Type> expected;
    for (const Result& result : node_.results) {
      const bool known = result.dtype != c10::ScalarType::Undefined;
      expected.emplace_back(known ? ops::compute_dtype(result.dtype) : DType::kF32,
                            to_dims(result.sizes));
    }
    ops::Call call(b_, source_, std::move(expected));
    const ops::ForeignEntry* foreign = ops::as_foreign(*node_.entry);
    finish(foreign != nullptr ? foreign->lower_call(b_, source_) : node_.entry->lower(call));
    out_.checks = std::move(source_.checks);
    return std::move(out_);
  }

 private:
  Value slot(Carrier carrier, int index) {
    const Value& pack = inputs_.packs[static_cast<size_t>(carrier)];
    return b_.reshape(b_.slice(pack, {index}, {index + 1}), {});
  }

  Value scalar(const ScalarArg& arg) {
    const DType dtype = scalar_dtype(arg);
    if (arg.known) return b_.scalar(*arg.known, dtype);
    if (arg.constant) return constant(*arg.constant, dtype);
    if (arg.type == c10::ScalarType::ComplexDouble) {
      return b_.complex(slot(arg.carrier, arg.slot), slot(arg.carrier, arg.slot + 1));
    }
    return b_.convert(slot(arg.carrier, arg.slot), dtype);
  }

  Value constant(const c10::Scalar& number, DType dtype) {
    if (number.isComplex()) {
      const auto value = number.toComplexDouble();
      return b_.complex(b_.scalar(value.real(), dtype), b_.scalar(value.imag(), dtype));
    }
    return b_.scalar(to_number(number), dtype);
  }

  Value base(const TensorArg& tensor) {
    return tensor.input >= 0 ? inputs_.bases[static_cast<size_t>(tensor.input)]
                             : b_.splat(0, tensor.base);
  }

  Place place(const TensorArg& tensor) {
    Place out;
    if (tensor.starts.empty()) return out;
    out.starts.resize(tensor.base_strides.size());
    for (const TensorArg::Start& start : tensor.starts) {
      out.starts[static_cast<size_t>(start.dim)] = slot(Carrier::kS64, start.slot);
    }
    out.is_box = tensor.is_box;
    return out;
  }

  void read_tensors() {
    for (size_t i = 0; i < node_.tensors.size(); ++i) {
      const TensorArg& tensor = node_.tensors[i];
      Value value;
      switch (tensor.form) {
        case TensorArg::Form::kNone:
        case TensorArg::Form::kWriteOnly:
          break;
        case TensorArg::Form::kScalar:
          value = ops::cast(scalar(tensor.scalar), ops::compute_dtype(tensor.dtype));
          break;
        case TensorArg::Form::kZeros:
          value = b_.splat(0, Type(ops::to_dtype(tensor.dtype), to_dims(tensor.geometry.sizes)));
          if (inputs_.sizes != nullptr) value = inputs_.sizes->unwritten(i, value);
          break;
        case TensorArg::Form::kBase:
          value = inputs_.sizes != nullptr
                      ? inputs_.sizes->read(i, base(tensor), place(tensor))
                      : read_view(base(tensor), tensor.base_strides, tensor.geometry,
                                  ops::to_dtype(tensor.dtype), place(tensor));
          break;
      }
      if (value.defined()) value = ops::cast(value, ops::compute_dtype(tensor.dtype));
      if (tensor.conj) value = b_.conj(value);
      if (tensor.neg) value = b_.negate(value);
      reads_.push_back(value);
    }
    if (inputs_.sizes != nullptr) inputs_.sizes->arrange(reads_);
  }

  void check_bounded() {
    using ops::Bounded;
    for (const Value& read : reads_) {
      if (!read.defined() || read.type().is_static()) continue;
      bool gaps = false, batch = true;
      for (int64_t d = 0; d < read.rank(); ++d) {
        if (!read.type().varies(d)) continue;
        batch = batch && d == 0;
        const stablehlo::Axis& axis = b_.axis(read, d);
        for (size_t i = 1; i < axis.size(); ++i) gaps = gaps || axis[i].varies;
      }
      const Bounded needed = gaps ? Bounded::kAny : batch ? Bounded::kBatch : Bounded::kPrefix;
      if (node_.entry->bounded >= needed) continue;
      throw stablehlo::Unproven(node_.name + " is not proven where dimensions vary" +
                                (gaps ? " and were merged, " : ", ") + read.type().str());
    }
  }

  void fill_source() {
    for (const NodeArg& arg : node_.args) {
      ops::Argument out;
      out.name = arg.name;
      out.value = arg.value;
      out.present = arg.present;
      out.is_list = arg.is_list;
      out.varies = arg.varies;
      for (int i = 0; i < arg.num_tensors; ++i) {
        const auto at = static_cast<size_t>(arg.first_tensor + i);
        const TensorArg& tensor = node_.tensors[at];
        out.tensors.push_back(reads_[at]);
        out.infos.push_back({tensor.dtype, static_cast<int64_t>(tensor.geometry.sizes.size()),
                             tensor.wrapped_number, is_contiguous(tensor.geometry),
                             tensor.form == TensorArg::Form::kScalar});
      }
      for (const ScalarArg& item : arg.scalars) {
        // A number that a list repeats has one slot, and is read once.
        const ScalarArg& first = arg.scalars[0];
        const bool again = !out.scalars.empty() && !item.known && !first.known && !item.constant &&
                           item.carrier == first.carrier && item.slot == first.slot;
        out.scalars.push_back(again ? out.scalars[0] : scalar(item));
        out.scalar_types.push_back(item.type);
        if (arg.scalars.size() == 1) out.known = item.known;
      }
      source_.arguments.push_back(std::move(out));
    }
  }

  // Results that share a count share its slot, so that one number is read for them.
  void add_extents() {
    std::vector<int32_t> known;
    for (const ops::CountedResult& counted : source_.counted) {
      const auto at = std::find(known.begin(), known.end(), counted.count.id());
      Extent extent;
      extent.count = static_cast<int>(at - known.begin());
      if (at == known.end()) {
        known.push_back(counted.count.id());
        out_.counts.push_back(b_.reshape(counted.count, {1}));
      }
      extent.sizes.assign(counted.sizes.begin(), counted.sizes.end());
      extent.order.assign(counted.order.begin(), counted.order.end());
      node_.results.at(counted.result).extent = std::move(extent);
    }
  }

  void finish(Values values) {
    TORCH_INTERNAL_ASSERT(node_.shapes_from_lowering || values.size() == node_.results.size(),
                          node_.name, ": the lowering gave ", values.size(), " values where ",
                          node_.results.size(), " are expected");
    if (node_.shapes_from_lowering && node_.results.size() < values.size()) {
      node_.results.resize(values.size());
    }
    Values& outputs = out_.results;
    outputs.resize(values.size());
    add_extents();
    Values written(node_.tensors.size());  // the newest base, per written tensor
    for (size_t i = 0; i < values.size(); ++i) {
      Result& result = node_.results[i];
      if (!values[i].defined()) {
        result.defined = false;
        continue;
      }
      if (!result.defined) continue;
      if ((node_.shapes_from_lowering && result.write < 0) || result.extent) {
        if (result.dtype == c10::ScalarType::Undefined) {
          result.dtype = ops::to_scalar_type(values[i].dtype());
        }
        result.sizes.assign(values[i].dims().begin(), values[i].dims().end());
        result.strides = contiguous_strides(result.sizes);
      }
      const DType dtype = ops::to_dtype(result.dtype);
      TORCH_INTERNAL_ASSERT(values[i].dims() == to_dims(result.sizes), node_.name, ": result ", i,
                            " was lowered to ", values[i].type().str(), ", expected ",
                            Type(dtype, to_dims(result.sizes)).str());
      Value value = ops::cast(values[i], dtype);
      if (inputs_.sizes != nullptr) value = inputs_.sizes->result(i, value);
      if (result.write >= 0 && !result.whole) {
        const TensorArg& target = node_.tensors[static_cast<size_t>(result.write)];
        const Value under =
            target.same_cell >= 0 ? written[static_cast<size_t>(target.same_cell)] : base(target);
        Place where = place(target);
        where.apart = b_.reads_elsewhere(value, under, reads_[static_cast<size_t>(result.write)]);
        value = inputs_.sizes != nullptr
                    ? inputs_.sizes->write(static_cast<size_t>(result.write), under, value, where)
                    : write_view(under, target.base_strides, target.geometry, value, where);
      }
      if (result.write >= 0) written[static_cast<size_t>(result.write)] = value;
      outputs[i] = value;
    }
  }

  Builder& b_;
  Node& node_;
  const NodeInputs& inputs_;
  ops::Source source_;
  Values reads_;
  NodeOutputs out_;
};

NodeInputs declare_parameters(Builder& b, const Node& node) {
  NodeInputs inputs;
  inputs.bases.resize(static_cast<size_t>(node.num_inputs));
  for (const TensorArg& tensor : node.tensors) {
    if (tensor.input < 0) continue;
    // Two arguments never share an input; each reads its own snapshot of the cell.
    inputs.bases[static_cast<size_t>(tensor.input)] = b.parameter(tensor.base);
  }
  inputs.packs.resize(kNumCarriers);
  for (int i = 0; i < kNumCarriers; ++i) {
    if (node.pack_sizes[i] == 0) continue;
    inputs.packs[static_cast<size_t>(i)] =
        b.parameter(Type(carrier_dtype(static_cast<Carrier>(i)), {node.pack_sizes[i]}));
  }
  if (node.entry->random) inputs.rng_state = b.parameter(Type(DType::kU64, {2}));
  return inputs;
}

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

NodeOutputs lower_into(Builder& b, Node& node, const NodeInputs& inputs, bool alone) {
  ops::Target target = node.target;
  target.alone = alone;
  const ops::TargetScope scope(target);
  return NodeLowering(b, node, inputs).run();
}

std::string module_name(const std::string& op_name) {
  const size_t space = op_name.find("::");
  std::string name = space == std::string::npos ? op_name : op_name.substr(space + 2);
  for (char& c : name) {
    if (c == '.') c = '_';
  }
  return name;
}

Lowered lower(Node& node) {
  Builder b;
  const NodeInputs inputs = declare_parameters(b, node);
  const NodeOutputs out = lower_into(b, node, inputs, true);
  Lowered lowered;
  Values outputs;
  for (size_t i = 0; i < out.results.size(); ++i) {
    if (!out.results[i].defined()) continue;
    const int write = node.results[i].write;
    if (write >= 0 && node.tensors[static_cast<size_t>(write)].donated) {
      b.alias(node.tensors[static_cast<size_t>(write)].input, static_cast<int64_t>(outputs.size()));
    }
    lowered.outputs.push_back(out.results[i].type());
    outputs.push_back(out.results[i]);
  }
  lowered.num_counts = static_cast<int>(out.counts.size());
  if (!out.counts.empty()) outputs.push_back(b.concatenate(out.counts, 0));
  for (const ops::PendingCheck& check : out.checks) {
    outputs.push_back(check.flag);
    lowered.checks.push_back(check.what);
  }
  lowered.text = b.finish(outputs, module_name(node.name));
  return lowered;
}

}  // namespace torch_tpu::trace
