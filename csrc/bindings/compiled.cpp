// Recording graphs for torch.compile and for export, and calling what was compiled or loaded (by
// exported.cpp). See torch_tpu/_compile and torch_tpu/_export.

#include <deque>

#include <torch/csrc/autograd/python_variable.h>

#include "csrc/bindings/bindings.h"
#include "csrc/bindings/dtype.h"
#include "csrc/dispatch/call/compiler_options.h"
#include "csrc/dispatch/call/target.h"
#include "csrc/dispatch/graph/exported.h"
#include "csrc/dispatch/graph/graph_recording.h"
#include "csrc/dispatch/record/varying.h"
#include "csrc/ops/check_kind.h"
#include "csrc/ops/table.h"

namespace torch_tpu::bindings {
namespace {

using dispatch::CompiledPtr;
using dispatch::GraphRecording;

// A tensor, its sizes as numbers of the program or -1, as recorded, and the order of its dims where
// it is packed.
using PyResult = std::tuple<at::Tensor, std::vector<int>, std::vector<int64_t>,
                            std::optional<std::vector<int64_t>>>;

// A recording as a context manager: within `with`, ops of this thread are recorded.
class PyRecording {
 public:
  PyRecording(int device, std::optional<pjrt::PlatformKind> platform)
      : device_(device), platform_(platform) {}

  void enter() {
    if (platform_) scope_.emplace(*platform_);
    recording_ = std::make_unique<GraphRecording>(device_);
  }
  void exit() {
    recording_.reset();
    scope_.reset();
  }
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
  std::optional<pjrt::PlatformKind> platform_;
  std::optional<dispatch::PlatformScope> scope_;
  std::unique_ptr<GraphRecording> recording_;
};

std::optional<pjrt::PlatformKind> platform_of(const std::optional<std::string>& name) {
  if (!name) return std::nullopt;
  for (const auto kind :
       {pjrt::PlatformKind::kCpu, pjrt::PlatformKind::kCuda, pjrt::PlatformKind::kTpu}) {
    if (*name == pjrt::to_string(kind)) return kind;
  }
  throw py::value_error("no platform is called '" + *name + "'");
}

// Everything a module needs to be run elsewhere, for torch_tpu/_export/lower.py.
py::dict describe(const dispatch::RecordedModule& module) {
  py::list outputs;
  for (const trace::Runnable::Output& output : module.description.outputs) {
    const bool write = output.write >= 0;
    const trace::Shape& sizes = write ? output.base_sizes : output.sizes;
    const trace::Shape& strides = write ? output.base_strides : output.strides;
    outputs.append(py::make_tuple(
        output.write,
        write || !output.defined ? py::object(py::none()) : dtype_object(output.dtype),
        std::vector<int64_t>(sizes.begin(), sizes.end()),
        std::vector<int64_t>(strides.begin(), strides.end())));
  }
  py::list kept;
  for (const trace::ValuePtr& value : module.description.extra_inputs) {
    kept.append(value ? py::cast(dispatch::tensor_over(value)) : py::object(py::none()));
  }
  py::list checks;
  for (const ops::ValueCheck& check : module.description.checks) {
    checks.append(py::make_tuple(ops::check_kind_name(check.kind), check.message));
  }
  py::dict out;
  out["text"] = module.text;
  out["outputs"] = outputs;
  out["results"] = module.results;
  out["kept"] = kept;
  out["checks"] = checks;
  out["draws"] = module.description.draws;
  return out;
}

// The variants of one graph: they differ in how arguments lie in memory and in numbers among them.
class CompiledFunction {
 public:
  void add(CompiledPtr graph, py::list constants, py::list others) {
    const uint64_t settings = graph->settings();
    variants_.push_back({std::move(graph), std::move(constants), std::move(others), settings});
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
        // A fake tensor, or another subclass, has no memory of ours.
        if (tensors.back().key_set().has(c10::DispatchKey::Python)) return py::none();
      } else {
        constants.push_back(arg.ptr());
      }
    }
    dispatch::CompiledGraph::Values values;
    while (true) {
      Variant* const variant = find(tensors, constants, values);
      if (variant == nullptr) return py::none();
      const py::list others = variant->others;
      const CompiledPtr graph = variant->graph;
      let_go_of_tensors(args);
      std::optional<std::vector<at::Tensor>> results;
      {
        const py::gil_scoped_release release;
        results = graph->run(tensors, values);
        if (results) values.clear();
      }
      if (results) {
        tensors.clear();  // with the GIL: torch takes it for each tensor that Python holds too
        if (PyList_SetSlice(args.ptr(), 0, PyList_GET_SIZE(args.ptr()), nullptr) != 0) {
          throw py::error_already_set();
        }
        return wrap(*results, others);
      }
      give_back(args, tensors);  // another thread wrote an argument meanwhile: look again
    }
  }

 private:
  struct Variant;

  Variant* find(const std::vector<at::Tensor>& tensors, c10::ArrayRef<PyObject*> constants,
                dispatch::CompiledGraph::Values& values) {
    const uint64_t settings = dispatch::settings_word();
    // By number: both questions may let go of the GIL, and another thread add a variant then.
    for (size_t i = 0; i < variants_.size(); ++i) {
      Variant& variant = variants_[i];
      if (variant.settings == settings && variant.has(constants) &&
          variant.graph->accepts(tensors, values))
        return &variant;
    }
    return nullptr;
  }

  // Where tensors stood, the list itself stands meanwhile: nobody passes that as a constant.
  static void let_go_of_tensors(const py::list& args) {
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(args.ptr()); ++i) {
      if (!THPVariable_Check(PyList_GET_ITEM(args.ptr(), i))) continue;
      Py_INCREF(args.ptr());
      PyList_SetItem(args.ptr(), i, args.ptr());
    }
  }
  static void give_back(const py::list& args, const std::vector<at::Tensor>& tensors) {
    size_t next = 0;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(args.ptr()); ++i) {
      if (PyList_GET_ITEM(args.ptr(), i) != args.ptr()) continue;
      PyList_SetItem(args.ptr(), i, py::cast(tensors[next++]).release().ptr());
    }
  }

  struct Variant {
    CompiledPtr graph;
    py::list constants;
    py::list others;
    uint64_t settings;  // that it was recorded under

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

  std::deque<Variant> variants_;  // one that was found stays where it is
};

void bind_bounded(py::module_& m) {
  using dispatch::VaryingScope;
  using Terms = std::vector<std::pair<int, int64_t>>;
  py::class_<VaryingScope>(m, "_VaryingScope")
      .def(
          "vary",
          [](VaryingScope& self, const at::Tensor& tensor, int64_t dim, int64_t constant,
             Terms terms) { return self.vary(tensor, dim, {constant, std::move(terms)}); },
          py::arg("tensor"), py::arg("dim"), py::arg("constant"), py::arg("terms"))
      .def("trust", &VaryingScope::trust, py::arg("tensor"), py::arg("dim"))
      .def(
          "look",
          [](VaryingScope& self, const at::Tensor& tensor,
             const std::vector<std::vector<int64_t>>& samples) {
            std::vector<std::pair<size_t, std::vector<int64_t>>> out;
            for (dispatch::Varying& varying : self.look(tensor, samples)) {
              out.emplace_back(varying.factors, std::move(varying.counts));
            }
            return out;
          },
          py::arg("tensor"), py::arg("samples"))
      .def("number", &VaryingScope::number, py::arg("index"))
      .def("float_number", &VaryingScope::float_number, py::arg("index"))
      .def(
          "select",
          [](VaryingScope& self, const at::Tensor& tensor, int64_t dim, int64_t constant,
             Terms terms) { return self.select(tensor, dim, {constant, std::move(terms)}); },
          py::arg("tensor"), py::arg("dim"), py::arg("constant"), py::arg("terms"))
      .def(
          "slice",
          [](VaryingScope& self, const at::Tensor& tensor, int64_t dim, int64_t constant,
             Terms terms, int64_t length) {
            return self.slice(tensor, dim, {constant, std::move(terms)}, length);
          },
          py::arg("tensor"), py::arg("dim"), py::arg("constant"), py::arg("terms"),
          py::arg("length"))
      .def(
          "unslice",
          [](VaryingScope& self, const at::Tensor& tensor, int64_t dim, int64_t constant,
             Terms terms, int64_t length) {
            return self.unslice(tensor, dim, {constant, std::move(terms)}, length);
          },
          py::arg("tensor"), py::arg("dim"), py::arg("constant"), py::arg("terms"),
          py::arg("length"))
      .def(
          "reshape",
          [](VaryingScope& self, const at::Tensor& tensor, const std::vector<int64_t>& dims,
             const std::vector<std::pair<int64_t, Terms>>& sizes) {
            std::vector<dispatch::Extents> extents;
            for (const auto& [constant, terms] : sizes) extents.push_back({constant, terms});
            return self.reshape(tensor, dims, extents);
          },
          py::arg("tensor"), py::arg("dims"), py::arg("sizes"))
      .def("pack", &VaryingScope::pack, py::arg("tensor"));
  m.def("_set_bounded_poison", &dispatch::set_poison, py::arg("on"),
        "For tests: fills the room behind arguments with NaN.");
  m.def(
      "_bounded_ops",
      [] {
        std::vector<std::pair<std::string, bool>> out;
        for (const ops::Entry& entry : ops::table()) {
          if (entry.bounded == ops::Bounded::kNo) continue;
          out.emplace_back(entry.name, entry.bounded == ops::Bounded::kAny);
        }
        return out;
      },
      "Ops that are right where dimensions vary, and whether also where they were merged.");
}

}  // namespace

void bind_compiled(py::module_& m) {
  bind_bounded(m);
  cache::add_program_source(&dispatch::compiled_programs);
  py::class_<dispatch::CompiledGraph, CompiledPtr>(m, "_CompiledGraph")
      .def_property_readonly("name",
                             [](const dispatch::CompiledGraph& g) { return g.program().name; })
      .def_property_readonly(
          "compile_seconds",
          [](const dispatch::CompiledGraph& g) { return g.program().code.compile_seconds(); })
      .def_property_readonly("settings", &dispatch::CompiledGraph::settings)
      .def(
          "run_bounded",
          [](dispatch::CompiledGraph& self, std::vector<at::Tensor> tensors,
             const std::vector<int64_t>& numbers,
             const std::vector<float>& floats) -> std::optional<std::vector<at::Tensor>> {
            const py::gil_scoped_release release;
            dispatch::CompiledGraph::Values values;
            while (self.accepts(tensors, values)) {
              if (auto results = self.run(tensors, values, numbers, floats)) return results;
            }
            return std::nullopt;
          },
          py::arg("tensors"), py::arg("numbers"), py::arg("floats"),
          "Results at their true sizes; None when the other arguments lie differently.");
  py::class_<PyRecording>(m, "_Recording")
      .def(py::init([](int device, const std::optional<std::string>& platform) {
             return std::make_unique<PyRecording>(device, platform_of(platform));
           }),
           py::arg("device"), py::arg("platform") = py::none())
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
          "padded",
          [](PyRecording& self, const at::Tensor& tensor, const std::vector<int64_t>& sizes) {
            return self.get().add_padded(tensor, sizes);
          },
          py::arg("tensor"), py::arg("sizes"))
      .def(
          "numbers",
          [](PyRecording&, int integers, int floats) {
            return dispatch::VaryingScope(integers, floats);
          },
          py::arg("integers"), py::arg("floats"))
      .def(
          "compile_bounded",
          [](PyRecording& self, const std::string& name, const std::vector<PyResult>& results) {
            for (const auto& [tensor, numbers, sizes, order] : results) {
              dispatch::BoundedResult how{numbers, trace::to_shape(sizes), {}, order.has_value()};
              if (order) how.order = trace::to_shape(*order);
              self.get().add_bounded_result(tensor, std::move(how));
            }
            const py::gil_scoped_release release;
            return self.get().finish(name, /*share=*/false, results.size());
          },
          py::arg("name"), py::arg("results"))
      .def(
          "parameter",
          [](PyRecording& self, const std::vector<int64_t>& sizes,
             const std::vector<int64_t>& strides, const py::object& dtype) {
            return self.get().add_parameter(sizes, strides, scalar_type(dtype));
          },
          py::arg("sizes"), py::arg("strides"), py::arg("dtype"))
      .def(
          "module",
          [](PyRecording& self, const std::string& name, const py::list& results) {
            self.take_results(results);
            dispatch::RecordedModule module;
            self.get().module(name, module);
            return describe(module);
          },
          py::arg("name"), py::arg("results"))
      .def(
          "compile",
          [](PyRecording& self, const std::string& name, const py::list& results, bool share,
             std::optional<size_t> visible) {
            py::list others = self.take_results(results);
            CompiledPtr graph;
            {
              const py::gil_scoped_release release;
              graph = self.get().finish(name, share, visible.value_or(results.size()));
            }
            return std::make_pair(std::move(graph), std::move(others));
          },
          py::arg("name"), py::arg("results"), py::arg("share"), py::arg("visible") = py::none());
  m.def("_settings_word", &dispatch::settings_word,
        "A number for the settings that recorded programs depend on.");
  py::class_<CompiledFunction>(m, "_CompiledFunction")
      .def(py::init<>())
      .def("add", &CompiledFunction::add, py::arg("graph"), py::arg("constants"), py::arg("others"))
      .def("__len__", &CompiledFunction::size)
      .def("__call__", &CompiledFunction::call, py::arg("args"));
}

}  // namespace torch_tpu::bindings
