#include "csrc/dispatch/graph/exported.h"

#include <stdexcept>

#include "csrc/device/tensor.h"
#include "csrc/dispatch/call/op.h"
#include "csrc/trace/buffer_type.h"

namespace torch_tpu::dispatch {
namespace {

bool is_plain(const at::Tensor& tensor) {
  if (!tensor.is_contiguous() || tensor.storage_offset() != 0 || tensor.is_conj() ||
      tensor.is_neg()) {
    return false;
  }
  const trace::ValuePtr value = device::cell_of(*tensor.unsafeGetTensorImpl())->load();
  return value && value->dtype() == ops::to_dtype(tensor.scalar_type()) &&
         value->dims() == tensor.sizes() && value->strides() == tensor.strides();
}

trace::Runnable::Output describe(const ModuleToLoad::Output& from) {
  trace::Runnable::Output out;
  out.dtype = from.dtype;
  out.value_dtype = ops::to_dtype(from.dtype);
  out.sizes = out.base_sizes = trace::to_shape(from.sizes);
  out.strides = out.base_strides = trace::to_shape(from.strides);
  out.bytes = trace::numel(out.sizes) * stablehlo::dtype_bytes(out.value_dtype);
  out.write = out.input = from.write;
  return out;
}

std::string type_text(PJRT_Buffer_Type type, trace::ShapeRef dims) {
  std::string out = "an unknown type";
  for (int i = 0; i <= static_cast<int>(stablehlo::DType::kC128); ++i) {
    const auto dtype = static_cast<stablehlo::DType>(i);
    if (trace::buffer_type(dtype) == type) out = stablehlo::Type(dtype, dims.vec()).str();
  }
  return out;
}

// That the executable gives what the caller will read: nobody looks at the buffers again.
void check_results(const pjrt::LoadedExecutable& loaded, const ModuleToLoad& module) {
  const size_t expected = module.outputs.size() + module.checks.size();
  if (loaded.num_outputs() != expected) {
    throw std::runtime_error("the module has " + std::to_string(loaded.num_outputs()) +
                             " results, not the " + std::to_string(expected) + " expected");
  }
  const std::vector<PJRT_Buffer_Type> types = loaded.executable().output_types();
  const std::vector<std::vector<int64_t>> dims = loaded.executable().output_dims();
  for (size_t i = 0; i < expected; ++i) {
    const bool check = i >= module.outputs.size();
    const PJRT_Buffer_Type type =
        check ? PJRT_Buffer_Type_S64 : trace::buffer_type(ops::to_dtype(module.outputs[i].dtype));
    const trace::ShapeRef sizes = check ? trace::ShapeRef() : module.outputs[i].sizes;
    if (types.at(i) == type && trace::ShapeRef(dims.at(i)) == sizes) continue;
    throw std::runtime_error("the module's result " + std::to_string(i) + " is " +
                             type_text(types[i], dims[i]) + ", not the " + type_text(type, sizes) +
                             " expected");
  }
}

}  // namespace

at::Tensor plain(const at::Tensor& tensor) {
  TORCH_CHECK(tensor.device().type() == c10::DeviceType::PrivateUse1, "a tensor on ",
              tensor.device());
  if (is_plain(tensor)) return tensor;
  const at::Tensor from = tensor.resolve_conj().resolve_neg();
  at::Tensor made = device::make_tensor(from.sizes(), trace::contiguous_strides(from.sizes()),
                                        from.scalar_type(), from.device().index());
  // Not copy_, which would only share the value, whatever its shape.
  static const Op* const op = &find_op("aten::copy_");
  c10::Stack stack{made, from, false};
  run_op(*op, &stack);
  return made;
}

at::Tensor tensor_over(const trace::ValuePtr& value) {
  return device::make_tensor(value->dims(), value->strides(), ops::to_scalar_type(value->dtype()),
                             value->device(), value);
}

CompiledPtr load_module(const ModuleToLoad& module) {
  auto program = c10::make_intrusive<trace::Runnable>();
  program->name = module.name;
  program->num_inputs = static_cast<int>(module.inputs.size());
  program->checks = module.checks;
  program->draws = module.draws;
  for (const ModuleToLoad::Output& output : module.outputs) {
    program->outputs.push_back(describe(output));
    program->output_bytes += program->outputs.back().bytes;
    if (output.write < 0) program->new_bytes += program->outputs.back().bytes;
  }
  auto made = c10::make_intrusive<CompiledGraph>();
  made->device_ = module.device;
  for (const ModuleToLoad::Input& input : module.inputs) {
    const trace::Shape sizes = trace::to_shape(input.sizes);
    const trace::Shape strides = trace::contiguous_strides(sizes);
    trace::Geometry geometry;
    geometry.sizes = sizes;
    geometry.strides = strides;
    const size_t base = made->inputs_.size();
    made->bases_.push_back(base);
    made->inputs_.push_back({CompiledGraph::View(input.dtype, std::move(geometry)),
                             ops::to_dtype(input.dtype), sizes, strides, base});
  }
  int next = 0;
  for (const ModuleToLoad::Output& output : module.outputs) {
    made->writes_ |= output.write >= 0;
    if (output.write < 0) made->results_.push_back({next, std::nullopt});
    ++next;
  }
  compile_by_text(*program, module.text);
  check_results(program->code.executable(), module);
  // Only now: a program that keeps values cannot be stored, but this one's code can.
  for (const at::Tensor& tensor : module.kept) {
    program->extra_inputs.push_back(
        tensor.defined() ? device::cell_of(*plain(tensor).unsafeGetTensorImpl())->load()
                         : trace::ValuePtr());
  }
  made->program_ = std::move(program);
  remember(made);
  return made;
}

}  // namespace torch_tpu::dispatch
