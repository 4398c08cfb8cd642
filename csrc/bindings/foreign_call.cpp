// A callable for an op that takes the short way: arguments of plain types go straight to the
// dispatcher. torch.ops matches them against the schema anew at every call, which takes as long as
// all the rest of it. What is not plain goes to torch.ops.
#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <Python.h>
#include <structmember.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/jit/python/pybind_utils.h>

#include "csrc/bindings/bindings.h"

namespace torch_tpu::bindings {
namespace {

enum class Kind : uint8_t { kTensor, kInt, kFloat, kBool, kOther };

struct Param {
  Kind kind = Kind::kOther;
  bool optional = false;
  bool keyword_only = false;
  std::optional<c10::IValue> default_value;
};

struct Plan {
  explicit Plan(c10::OperatorHandle op) : handle(std::move(op)) {
    for (const c10::Argument& argument : handle.schema().arguments()) {
      Param param;
      c10::TypePtr type = argument.real_type();
      if (auto optional = type->cast<c10::OptionalType>()) {
        type = optional->getElementType();
        param.optional = true;
      }
      switch (type->kind()) {
        case c10::TypeKind::TensorType:
          param.kind = Kind::kTensor;
          break;
        case c10::TypeKind::IntType:
          param.kind = Kind::kInt;
          break;
        case c10::TypeKind::FloatType:
          param.kind = Kind::kFloat;
          break;
        case c10::TypeKind::BoolType:
          param.kind = Kind::kBool;
          break;
        default:
          break;
      }
      param.keyword_only = argument.kwarg_only();
      param.default_value = argument.default_value();
      params.push_back(std::move(param));
    }
  }

  const c10::OperatorHandle handle;
  std::vector<Param> params;
};

struct ForeignCall {
  PyObject_HEAD vectorcallfunc vectorcall;
  PyObject* overload;  // of torch.ops
  Plan* plan;
};

// False: not for the short way.
bool push(c10::Stack& stack, const Param& param, PyObject* arg) {
  if (arg == Py_None && param.optional) {
    stack.emplace_back();
    return true;
  }
  switch (param.kind) {
    case Kind::kTensor:
      if (!THPVariable_CheckTypeExact(Py_TYPE(arg))) return false;
      stack.emplace_back(THPVariable_Unpack(arg));
      return true;
    case Kind::kInt: {
      if (!PyLong_CheckExact(arg)) return false;
      int overflow = 0;
      const long long value = PyLong_AsLongLongAndOverflow(arg, &overflow);
      if (overflow != 0) return false;
      stack.emplace_back(static_cast<int64_t>(value));
      return true;
    }
    case Kind::kFloat:
      if (!PyFloat_CheckExact(arg)) return false;
      stack.emplace_back(PyFloat_AS_DOUBLE(arg));
      return true;
    case Kind::kBool:
      if (!PyBool_Check(arg)) return false;
      stack.emplace_back(arg == Py_True);
      return true;
    case Kind::kOther:
      return false;
  }
  return false;
}

bool fill(const Plan& plan, c10::Stack& stack, PyObject* const* args, size_t count) {
  if (count > plan.params.size() || at::impl::torch_function_mode_enabled()) return false;
  stack.reserve(plan.params.size());
  for (size_t i = 0; i < plan.params.size(); ++i) {
    const Param& param = plan.params[i];
    if (i < count) {
      if (param.keyword_only || !push(stack, param, args[i])) return false;
    } else if (param.default_value) {
      stack.push_back(*param.default_value);
    } else {
      return false;  // torch.ops says what is missing
    }
  }
  return true;
}

PyObject* to_python(c10::Stack& stack) {
  if (stack.size() == 1 && stack[0].isTensor()) {
    return THPVariable_Wrap(std::move(stack[0]).toTensor());
  }
  if (stack.size() == 1) return torch::jit::toPyObject(std::move(stack[0])).release().ptr();
  if (stack.empty()) Py_RETURN_NONE;
  py::tuple out(stack.size());
  for (size_t i = 0; i < stack.size(); ++i) out[i] = torch::jit::toPyObject(std::move(stack[i]));
  return out.release().ptr();
}

PyObject* call(PyObject* self, PyObject* const* args, size_t flags, PyObject* names) {
  HANDLE_TH_ERRORS
  const auto* callable = reinterpret_cast<ForeignCall*>(self);
  c10::Stack stack;
  if (names != nullptr ||
      !fill(*callable->plan, stack, args, static_cast<size_t>(PyVectorcall_NARGS(flags)))) {
    return PyObject_Vectorcall(callable->overload, args, flags, names);
  }
  {
    const py::gil_scoped_release released;
    callable->plan->handle.callBoxed(&stack);
  }
  return to_python(stack);
  END_HANDLE_TH_ERRORS
}

void destroy(PyObject* self) {
  auto* callable = reinterpret_cast<ForeignCall*>(self);
  Py_XDECREF(callable->overload);
  delete callable->plan;
  PyTypeObject* type = Py_TYPE(self);
  type->tp_free(self);
  Py_DECREF(type);
}

PyTypeObject* call_type() {
  static PyMemberDef members[] = {
      {"__vectorcalloffset__", T_PYSSIZET, offsetof(ForeignCall, vectorcall), READONLY, nullptr},
      {"overload", T_OBJECT, offsetof(ForeignCall, overload), READONLY, nullptr},
      {nullptr, 0, 0, 0, nullptr}};
  static PyType_Slot slots[] = {{Py_tp_dealloc, reinterpret_cast<void*>(&destroy)},
                                {Py_tp_call, reinterpret_cast<void*>(&PyVectorcall_Call)},
                                {Py_tp_members, members},
                                {0, nullptr}};
  static PyType_Spec spec = {
      "torch_tpu._C._ForeignCall", sizeof(ForeignCall), 0,
      Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_DISALLOW_INSTANTIATION, slots};
  static auto* type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&spec));
  if (type == nullptr) throw py::error_already_set();
  return type;
}

py::object make_call(const std::string& name, const py::object& overload) {
  const auto handle = c10::Dispatcher::singleton().findSchemaOrThrow(name.c_str(), "");
  PyTypeObject* type = call_type();
  auto* made = reinterpret_cast<ForeignCall*>(type->tp_alloc(type, 0));
  if (made == nullptr) throw py::error_already_set();
  made->vectorcall = &call;
  made->overload = overload.inc_ref().ptr();
  made->plan = new Plan(handle);
  return py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(made));
}

}  // namespace

void bind_foreign_call(py::module_& m) {
  m.def("_foreign_call", &make_call, py::arg("name"), py::arg("overload"),
        "A callable for an op that avoids torch.ops where it can.");
}

}  // namespace torch_tpu::bindings
