// Recording graphs for torch.compile, and calling what was compiled. See torch_tpu/_compile.

#include "csrc/dispatch/compiled.h"

#include <torch/csrc/autograd/python_variable.h>

#include "csrc/bindings/bindings.h"

namespace torch_tpu::bindings {
namespace {

using dispatch::CompiledPtr;
using dispatch::GraphRecording;

// A recording as a context manager: within `with`, ops of this thread are recorded.
class PyRecording {
 public:
  explicit PyRecording(int device) : device_(device) {}

  void enter() { recording_ = std::make_unique<GraphRecording>(device_); }
  void exit() { recording_.reset(); }
  GraphRecording& get() {
    TORCH_CHECK(recording_ != nullptr, "the recording has ended");
    return *recording_;
  }

  // Per result of the function: a tensor of the program's, or the object itself.
  py::list take_results(const py::list& results) {
    py::list others;
    for (const py::handle& result : results) {
      if (THPVariable_Check(result.ptr())) {
        get().add_result(THPVariable_Unpack(result.ptr()));
        others.append(py::ellipsis());
      } else {
        others.append(result);
      }
    }
    return others;
  }

 private:
  int device_;
  std::unique_ptr<GraphRecording> recording_;
};

// The variants of one graph: they differ in how arguments lie in memory and in numbers among them.
class CompiledFunction {
 public:
  void add(CompiledPtr graph, py::list constants, py::list others) {
    variants_.push_back({std::move(graph), std::move(constants), std::move(others)});
  }
  size_t size() const { return variants_.size(); }

  // None when no variant takes these arguments; else their list is emptied, so that what nobody
  // else holds is freed when it is used up.
  py::object call(const py::list& args) {
    std::vector<at::Tensor> tensors;
    tensors.reserve(args.size());
    c10::SmallVector<PyObject*, 8> constants;
    for (const py::handle& arg : args) {
      if (THPVariable_Check(arg.ptr())) {
        tensors.push_back(THPVariable_Unpack(arg.ptr()));
      } else {
        constants.push_back(arg.ptr());
      }
    }
    for (Variant& variant : variants_) {
      if (!variant.has(constants) || !variant.graph->accepts(tensors)) continue;
      const py::list others = variant.others;
      const CompiledPtr graph = variant.graph;
      if (PyList_SetSlice(args.ptr(), 0, PyList_GET_SIZE(args.ptr()), nullptr) != 0) {
        throw py::error_already_set();
      }
      std::vector<at::Tensor> results;
      {
        const py::gil_scoped_release release;
        results = graph->run(std::move(tensors));
      }
      return wrap(results, others);
    }
    return py::none();
  }

 private:
  struct Variant {
    CompiledPtr graph;
    py::list constants;
    py::list others;

    bool has(c10::ArrayRef<PyObject*> given) const {
      if (given.size() != constants.size()) return false;
      for (size_t i = 0; i < given.size(); ++i) {
        PyObject* known = PyList_GET_ITEM(constants.ptr(), static_cast<Py_ssize_t>(i));
        if (known == given[i]) continue;
        if (Py_TYPE(known) != Py_TYPE(given[i])) return false;
        const int same = PyObject_RichCompareBool(known, given[i], Py_EQ);
        if (same < 0) throw py::error_already_set();
        if (same == 0) return false;
      }
      return true;
    }
  };

  static py::list wrap(std::vector<at::Tensor>& results, const py::list& others) {
    py::list out(others.size());
    size_t next = 0;
    for (size_t i = 0; i < others.size(); ++i) {
      PyObject* other = PyList_GET_ITEM(others.ptr(), static_cast<Py_ssize_t>(i));
      PyObject* item = nullptr;
      if (other == Py_Ellipsis) {
        item = THPVariable_Wrap(std::move(results[next++]));
      } else {
        item = other;
        Py_INCREF(item);
      }
      if (item == nullptr) throw py::error_already_set();
      PyList_SET_ITEM(out.ptr(), static_cast<Py_ssize_t>(i), item);
    }
    return out;
  }

  std::vector<Variant> variants_;
};

}  // namespace

void bind_compiled(py::module_& m) {
  cache::add_program_source(&dispatch::compiled_programs);
  py::class_<dispatch::CompiledGraph, CompiledPtr>(m, "_CompiledGraph")
      .def_property_readonly("name",
                             [](const dispatch::CompiledGraph& g) { return g.program().name; })
      .def_property_readonly("compile_seconds", [](const dispatch::CompiledGraph& g) {
        return g.program().compile_seconds;
      });
  py::class_<PyRecording>(m, "_Recording")
      .def(py::init<int>(), py::arg("device"))
      .def(
          "__enter__",
          [](PyRecording& self) -> PyRecording& {
            self.enter();
            return self;
          },
          py::return_value_policy::reference)
      .def("__exit__", [](PyRecording& self, const py::args&) { self.exit(); })
      .def(
          "argument",
          [](PyRecording& self, const at::Tensor& tensor) {
            return self.get().add_argument(tensor);
          },
          py::arg("tensor"))
      .def(
          "compile",
          [](PyRecording& self, const std::string& name, const py::list& results, bool share) {
            py::list others = self.take_results(results);
            CompiledPtr graph;
            {
              const py::gil_scoped_release release;
              graph = self.get().finish(name, share);
            }
            return std::make_pair(std::move(graph), std::move(others));
          },
          py::arg("name"), py::arg("results"), py::arg("share"))
      .def(
          "text",
          [](PyRecording& self, const std::string& name, const py::list& results) {
            self.take_results(results);
            return self.get().text(name);
          },
          py::arg("name"), py::arg("results"));
  py::class_<CompiledFunction>(m, "_CompiledFunction")
      .def(py::init<>())
      .def("add", &CompiledFunction::add, py::arg("graph"), py::arg("constants"), py::arg("others"))
      .def("__len__", &CompiledFunction::size)
      .def("__call__", &CompiledFunction::call, py::arg("args"));
}

}  // namespace torch_tpu::bindings
