#include "csrc/dispatch/tiers/decompose.h"

#include <memory>
#include <mutex>
#include <unordered_map>

#include <c10/util/Exception.h>

#include "csrc/device/cell.h"
#include "csrc/dispatch/call/compiler_options.h"
#include "csrc/dispatch/program/build.h"
#include "csrc/dispatch/program/keep.h"
#include "csrc/dispatch/record/recorder.h"
#include "csrc/dispatch/run/copy_out.h"
#include "csrc/dispatch/tiers/fallback.h"

namespace torch_tpu::dispatch {
namespace {

// What Entry::keyed needs: a decomposition sees numbers, so all of them are part of the key.
struct Decomposed {
  ops::Entry entry;
  std::vector<std::string> keyed_names;
  std::unique_ptr<Op> op;
};

struct Registry {
  std::mutex mutex;
  Decomposer decomposer;
  std::unordered_map<c10::OperatorHandle, std::unique_ptr<Decomposed>> ops;  // null: none
  std::set<std::string> used;
};

Registry& registry() {
  static auto* all = new Registry();
  return *all;
}

bool is_functional(const c10::FunctionSchema& schema) {
  for (const c10::Argument& argument : schema.arguments()) {
    if (argument.alias_info() != nullptr) return false;
  }
  return !schema.returns().empty();
}

bool has_decomposition(const std::string& name) {
  Registry& all = registry();
  return all.decomposer.has && all.decomposer.has(name);
}

std::unique_ptr<Decomposed> make_decomposed(const c10::OperatorHandle& handle) {
  if (!is_functional(handle.schema()) || !has_decomposition(full_name(handle))) return nullptr;
  auto out = std::make_unique<Decomposed>();
  out->entry.name = handle.operator_name().name;
  out->entry.overlap = ops::Overlap::kFine;
  for (const c10::Argument& argument : handle.schema().arguments()) {
    out->keyed_names.push_back(argument.name());
  }
  for (const std::string& argument : out->keyed_names) out->entry.keyed.push_back(argument);
  out->op = std::make_unique<Op>(handle, &out->entry);
  return out;
}

// Null when the op has no decomposition. Never freed: kernels hold it.
const Op* find_decomposed(const c10::OperatorHandle& handle) {
  Registry& all = registry();
  {
    std::lock_guard lock(all.mutex);
    if (auto it = all.ops.find(handle); it != all.ops.end()) {
      return it->second ? it->second->op.get() : nullptr;
    }
  }
  std::unique_ptr<Decomposed> made = make_decomposed(handle);  // may import Python modules
  std::lock_guard lock(all.mutex);
  const auto& kept = all.ops.emplace(handle, std::move(made)).first->second;
  return kept ? kept->op.get() : nullptr;
}

// "aten::foo_" and "aten::foo.out" by way of "aten::foo": the functional op with the same inputs.
std::optional<c10::OperatorHandle> functional_form(const c10::OperatorHandle& handle) {
  const c10::FunctionSchema& schema = handle.schema();
  std::string name = schema.name();
  if (name.back() == '_') name.pop_back();
  std::vector<const c10::Argument*> inputs;
  for (const c10::Argument& argument : schema.arguments()) {
    if (!argument.is_out()) inputs.push_back(&argument);
  }
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName& candidate : dispatcher.getAllOpNames()) {
    if (candidate.name != name) continue;
    auto found = dispatcher.findSchema(candidate);
    if (!found || !is_functional(found->schema())) continue;
    const auto& theirs = found->schema().arguments();
    bool same = theirs.size() == inputs.size() &&
                found->schema().returns().size() == schema.returns().size();
    for (size_t i = 0; same && i < theirs.size(); ++i) {
      same = theirs[i].name() == inputs[i]->name() &&
             *theirs[i].real_type() == *inputs[i]->real_type();
    }
    if (same) return found;
  }
  return std::nullopt;
}

// Runs the functional op and copies its results to where the schema says. False: no such op.
bool run_functional_form(const c10::OperatorHandle& handle, c10::Stack* stack) {
  const c10::FunctionSchema& schema = handle.schema();
  if (is_functional(schema)) return false;
  static std::mutex mutex;
  static auto* known =
      new std::unordered_map<c10::OperatorHandle, std::optional<c10::OperatorHandle>>();
  std::optional<c10::OperatorHandle> functional;
  {
    std::lock_guard lock(mutex);
    auto [it, added] = known->try_emplace(handle);
    if (added) it->second = functional_form(handle);
    functional = it->second;
  }
  if (!functional || find_decomposed(*functional) == nullptr) return false;
  const size_t first = stack->size() - schema.arguments().size();
  c10::Stack inner;
  std::vector<at::Tensor> targets;
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    const c10::IValue& value = (*stack)[first + i];
    if (!schema.arguments()[i].is_out()) inner.push_back(value);
    const c10::AliasInfo* alias = schema.arguments()[i].alias_info();
    if (alias != nullptr && alias->isWrite()) {
      if (!value.isTensor()) return false;
      targets.push_back(value.toTensor());
    }
  }
  if (targets.size() != functional->schema().returns().size()) return false;
  functional->callBoxed(&inner);
  for (size_t i = 0; i < targets.size(); ++i) {
    copy_out(targets[i], inner[i].toTensor(), /*may_resize=*/schema.name().back() != '_');
  }
  stack->erase(stack->begin() + static_cast<std::ptrdiff_t>(first), stack->end());
  for (const at::Tensor& target : targets) stack->emplace_back(target);
  return true;
}

c10::Stack recorded_arguments(const Frame& frame, Recorder& recorder) {
  std::vector<trace::ValuePtr> values;
  for (const TensorRef& ref : frame.tensors) {
    values.push_back(ref.is_input ? recorder.add_argument(*ref.value) : trace::ValuePtr());
  }
  const auto stand_in = [&](const at::Tensor& tensor) {
    for (size_t i = 0; i < values.size(); ++i) {
      if (frame.tensors[i].impl == tensor.unsafeGetTensorImpl()) {
        return recorded_stand_in(
            tensor, device::make_storage(frame.device, tensor.storage().nbytes(), values[i]));
      }
    }
    return tensor;
  };
  std::vector<at::Tensor> unused;
  const c10::Device device(c10::DeviceType::PrivateUse1,
                           static_cast<c10::DeviceIndex>(frame.device));
  return stand_in_stack(frame, stand_in, device, unused);
}

void add_results(const Op& op, const c10::Stack& stack, Recorder& recorder,
                 trace::Program& program) {
  for (size_t i = 0; i < op.returns.size(); ++i) {
    program.numbers.push_back(op.return_is_tensor[i] ? c10::IValue() : stack[i]);
    if (op.return_is_list[i]) {
      for (const c10::IValue& item : stack[i].toListRef()) recorder.add_result(item.toTensor());
    } else {
      recorder.add_result(stack[i].isTensor() ? stack[i].toTensor() : at::Tensor());
    }
  }
}

}  // namespace

void set_decomposer(Decomposer decomposer) { registry().decomposer = std::move(decomposer); }

void run_otherwise(const Op& op, c10::Stack* stack, const std::string& reason) {
  if (op.entry->lower == nullptr) {  // the decomposition was this op's last chance
    run_on_cpu(op.handle, stack, reason);
  } else {
    run_without_lowering(op.handle, stack, reason);
  }
}

void run_without_lowering(const c10::OperatorHandle& handle, c10::Stack* stack,
                          const std::string& reason) {
  if (Recorder::current() != nullptr) {
    decompose_or_throw(handle, stack, reason);
  } else if (const Op* op = find_decomposed(handle)) {
    run_op(*op, stack);
  } else if (!run_functional_form(handle, stack)) {
    run_on_cpu(handle, stack, reason);
  }
}

void decompose_or_throw(const c10::OperatorHandle& handle, c10::Stack* stack,
                        const std::string& reason) {
  // A decomposition would take sizes for numbers.
  const size_t first = stack->size() - handle.schema().arguments().size();
  for (size_t i = first; i < stack->size(); ++i) {
    const c10::IValue& value = (*stack)[i];
    if (value.isTensor() && Recorder::current()->varies(value.toTensor())) {
      throw stablehlo::Unproven(full_name(handle) + " has no lowering where dimensions vary");
    }
  }
  if (find_decomposed(handle) != nullptr) {
    registry().decomposer.run(handle, stack);
  } else if (!run_functional_form(handle, stack)) {
    throw trace::RecordedValue("it needs " + full_name(handle) + ", which runs on the CPU" +
                               (reason.empty() ? "" : " (" + reason + ")"));
  }
}

trace::Answer build_decomposed(const Frame& frame) {
  Registry& all = registry();
  auto program = c10::make_intrusive<trace::Program>();
  program->name = frame.op.name;
  std::string reason;
  try {
    Recorder recorder(frame.device);
    c10::Stack stack = recorded_arguments(frame, recorder);
    all.decomposer.run(frame.op.handle, &stack);
    add_results(frame.op, stack, recorder, *program);
    program->text = options_line(frame.key) + recorder.finish(*program);
    ensure_compiled(*program);  // a compiler that refuses it means another tier
    program->lasting = has_lasting_meaning(program->name);
    add_decomposed_op(frame.op.name);
    return program;
  } catch (const DecompositionFailed& error) {
    reason = error.what();
  } catch (const trace::RecordedValue& error) {
    reason = error.what();
  } catch (const std::invalid_argument& error) {
    reason = error.what();
  } catch (const c10::Error& error) {
    reason = error.what_without_backtrace();
  }
  raise_cpu_error(frame);
  if (reason.empty()) reason = "its decomposition failed";
  return std::make_shared<const trace::Refusal>(trace::Refusal{frame.op.name, std::move(reason)});
}

std::set<std::string> decomposed_ops() {
  std::lock_guard lock(registry().mutex);
  return registry().used;
}

void add_decomposed_op(const std::string& name) {
  std::lock_guard lock(registry().mutex);
  registry().used.insert(name);
}

void reset_decomposed_ops() {
  std::lock_guard lock(registry().mutex);
  registry().used.clear();
}

}  // namespace torch_tpu::dispatch
