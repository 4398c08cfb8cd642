#include "csrc/dispatch/build.h"

#include <chrono>
#include <filesystem>
#include <fstream>
#include <sstream>

#include <ATen/MemoryOverlap.h>

#include "csrc/base/env.h"
#include "csrc/dispatch/infer.h"
#include "csrc/ops/target.h"
#include "csrc/pjrt/runtime.h"
#include "csrc/trace/lower.h"

namespace torch_tpu::dispatch {
namespace {

using Form = trace::TensorArg::Form;

trace::Shape to_shape(c10::IntArrayRef values) {
  return trace::Shape(values.begin(), values.end());
}

class NodeBuilder {
 public:
  explicit NodeBuilder(const Frame& frame) : frame_(frame) {}

  trace::Node build(const Inferred& inferred) {
    node_.entry = frame_.op.entry;
    node_.name = frame_.op.name;
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

  trace::ScalarArg take_slot(c10::ScalarType type) {
    trace::ScalarArg out;
    out.type = type;
    out.carrier = frame_.carrier(type);
    int& used = node_.pack_sizes[static_cast<int>(out.carrier)];
    out.slot = used;
    used += type == c10::ScalarType::ComplexDouble ? 2 : 1;
    return out;
  }

  trace::ScalarArg scalar(const ArgPlan& plan, const c10::IValue& value) {
    const c10::ScalarType type = scalar_type_of(value);
    if (auto known = known_scalar(frame_.op, plan, value)) {
      trace::ScalarArg out;
      out.type = type;
      out.carrier = frame_.carrier(type);
      out.known = known;
      return out;
    }
    ++next_scalar_;
    return take_slot(type);
  }

  void add_scalars(trace::NodeArg& arg, const ArgPlan& plan, c10::ArrayRef<c10::IValue> list) {
    if (is_repeated(list)) {
      arg.scalars.assign(list.size(), scalar(plan, list[0]));
      return;
    }
    for (const c10::IValue& item : list) arg.scalars.push_back(scalar(plan, item));
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
      out.geometry.sizes = to_shape(ref.impl->sizes());
      out.geometry.strides = to_shape(ref.impl->strides());
      out.geometry.offset = ref.impl->storage_offset();
    }
    if (ref.form == Form::kScalar) {
      out.scalar = take_slot(frame_.scalars[next_scalar_++].type);
    } else if (ref.is_input) {
      out.input = node_.num_inputs++;
      out.donated = ref.donated;
      out.base =
          stablehlo::Type(ref.value->dtype(), {ref.value->dims().begin(), ref.value->dims().end()});
      out.base_strides = to_shape(ref.value->strides());
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
      result.sizes = to_shape(meta.sizes());
      // A result always has memory of its own, so an expanded or overlapping layout is packed.
      result.strides = meta.is_non_overlapping_and_dense()
                           ? to_shape(meta.strides())
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
  trace::Node node_;
  std::vector<int> first_tensor_;
  std::vector<int> num_tensors_;
  size_t next_scalar_ = 0;
};

// out= tensors that the Meta kernel resized.
std::vector<trace::Program::Resize> find_resizes(const Frame& frame, const Inferred& inferred) {
  std::vector<trace::Program::Resize> out;
  if (!frame.op.out_form || !inferred.known) return out;
  for (size_t i = 0; i < frame.tensors.size(); ++i) {
    const TensorRef& ref = frame.tensors[i];
    if (!ref.written || ref.impl == nullptr) continue;
    const at::Tensor& meta = inferred.tensors[i];
    if (meta.sizes() != ref.impl->sizes()) {
      out.push_back({static_cast<int>(i), to_shape(meta.sizes()), to_shape(meta.strides())});
    }
  }
  return out;
}

void dump(const std::string& folder, const std::string& name, const std::string& text) {
  static std::atomic<int> serial{0};
  std::filesystem::create_directories(folder);
  std::ostringstream file;
  file << folder << "/" << serial++ << "_" << name.substr(name.find("::") + 2) << ".mlir";
  std::ofstream(file.str()) << text;
}

// A function of the strides, so a hit need not ask again.
void check_writable(const Frame& frame) {
  for (const TensorRef& ref : frame.tensors) {
    if (ref.written && ref.impl != nullptr) at::assert_no_internal_overlap(ref.impl);
  }
}

ops::Target target_of(pjrt::PlatformKind kind) {
  ops::Target target;
  target.extremes_keep_nan = kind != pjrt::PlatformKind::kCpu;
  target.has_s8_dot = kind != pjrt::PlatformKind::kCpu && kind != pjrt::PlatformKind::kCuda;
  return target;
}

// A builder that refuses its operands, or a lowering that says so, means: not for these arguments.
trace::Lowered lower(const Frame& frame, trace::Node& node) {
  std::string reason;
  const ops::TargetScope scope(target_of(pjrt::Runtime::get().kind()));
  try {
    return trace::lower(node);
  } catch (const std::invalid_argument& error) {
    reason = error.what();
  } catch (const c10::NotImplementedError& error) {
    reason = error.what_without_backtrace();
  }
  if (node.shapes_from_lowering) raise_cpu_error(frame);  // nobody has checked the arguments yet
  throw NotLowered(reason);
}

}  // namespace

trace::ProgramPtr build_program(const Frame& frame) {
  check_writable(frame);
  auto program = c10::make_intrusive<trace::Program>();
  program->name = frame.op.name;
  const Inferred inferred = infer(frame);
  program->resizes = find_resizes(frame, inferred);
  if (!program->resizes.empty()) return program;

  trace::Node node = NodeBuilder(frame).build(inferred);
  trace::Lowered lowered = lower(frame, node);
  if (const std::string folder = base::env_dump(); !folder.empty()) {
    dump(folder, node.name, lowered.text);
  }
  const pjrt::Runtime& runtime = pjrt::Runtime::get();
  const auto start = std::chrono::steady_clock::now();
  program->executable = runtime.client().compile_with(lowered.text, runtime.compile_options());
  program->compile_seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();

  size_t next = 0;
  for (const trace::Result& result : node.results) {
    trace::Program::Output output;
    output.defined = result.defined;
    output.dtype = result.dtype;
    output.sizes = result.sizes;
    output.strides = result.strides;
    output.write = result.write;
    if (result.defined) {
      const stablehlo::Type& type = lowered.outputs[next++];
      output.value_dtype = type.dtype;
      output.base_sizes.assign(type.dims.begin(), type.dims.end());
      output.base_strides = result.whole
                                ? result.strides
                                : node.tensors[static_cast<size_t>(result.write)].base_strides;
      output.bytes = type.numel() * stablehlo::dtype_bytes(type.dtype);
      const bool donated =
          result.write >= 0 && node.tensors[static_cast<size_t>(result.write)].donated;
      if (!donated) program->new_bytes += output.bytes;
    }
    program->outputs.push_back(std::move(output));
  }
  program->numbers = inferred.numbers;
  program->checks = std::move(lowered.checks);
  for (int i = 0; i < trace::kNumCarriers; ++i) program->pack_sizes[i] = node.pack_sizes[i];
  return program;
}

}  // namespace torch_tpu::dispatch
