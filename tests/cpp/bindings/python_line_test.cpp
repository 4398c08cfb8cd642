// The line of an op, in an interpreter of the test's own. What the module does with it is tested
// from Python (tests/python/test_issue_line.py); here are the moments Python code never sees: no
// interpreter yet, none any more, threads that Python does not know, a pending exception.
#include "csrc/bindings/python_line.h"

#include <array>
#include <string>
#include <thread>
#include <vector>

#include <Python.h>
#include <gtest/gtest.h>

namespace torch_tpu::bindings {
namespace {

dispatch::IssueLine last;

// note(): what an op does when it is issued.
PyObject* note(PyObject*, PyObject*) {
  PyThreadState* state = PyEval_SaveThread();  // ops run without the GIL
  last = capture_line();
  PyEval_RestoreThread(state);
  Py_RETURN_NONE;
}

// current(): the line as it is now.
PyObject* current(PyObject*, PyObject*) { return PyUnicode_FromString(current_line().c_str()); }

std::array<PyMethodDef, 3> methods = {{{"note", note, METH_NOARGS, nullptr},
                                       {"current", current, METH_NOARGS, nullptr},
                                       {nullptr, nullptr, 0, nullptr}}};
PyModuleDef module = {PyModuleDef_HEAD_INIT,
                      "issue",
                      nullptr,
                      -1,
                      methods.data(),
                      nullptr,
                      nullptr,
                      nullptr,
                      nullptr};

// Runs code as if it were that file; prints and counts an error as a failure.
void run(const std::string& code, const char* file = "user.py") {
  PyObject* compiled = Py_CompileString(code.c_str(), file, Py_file_input);
  PyObject* globals = PyModule_GetDict(PyImport_AddModule("__main__"));
  PyObject* result = compiled == nullptr ? nullptr : PyEval_EvalCode(compiled, globals, globals);
  if (result == nullptr) {
    PyErr_Print();
    ADD_FAILURE() << code;
  }
  Py_XDECREF(result);
  Py_XDECREF(compiled);
}

std::string text_of(const char* variable) {
  PyObject* globals = PyModule_GetDict(PyImport_AddModule("__main__"));
  return PyUnicode_AsUTF8(PyDict_GetItemString(globals, variable));
}

// One interpreter for all tests but the last: extension modules do not like a second one.
class PythonLineTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    if (Py_IsInitialized()) return;
    PyConfig config;
    PyConfig_InitIsolatedConfig(&config);
    PyConfig_SetBytesString(&config, &config.program_name, TORCH_TPU_TEST_PYTHON);
    const PyStatus status = Py_InitializeFromConfig(&config);
    PyConfig_Clear(&config);
    ASSERT_FALSE(PyStatus_Exception(status)) << status.err_msg;
    PyObject* made = PyModule_Create(&module);
    ASSERT_EQ(PyDict_SetItemString(PyImport_GetModuleDict(), "issue", made), 0);
    Py_DECREF(made);
    run("import issue");
  }
};

TEST(WithoutPython, ThereIsNoLine) {
  ASSERT_FALSE(Py_IsInitialized());
  EXPECT_EQ(capture_line().code, nullptr);
  EXPECT_EQ(describe_line({}), "");
  EXPECT_EQ(current_line(), "");
}

TEST_F(PythonLineTest, NamesFileLineAndFunction) {
  run("def train():\n  x = 1\n  issue.note()\ntrain()\n");
  EXPECT_EQ(describe_line(last), "user.py:3 in train");
}

TEST_F(PythonLineTest, OutlivesTheCodeItPointsInto) {
  run("issue.note()\n", "gone.py");
  run("import gc; gc.collect()");
  EXPECT_EQ(describe_line(last), "gone.py:1 in <module>");
}

TEST_F(PythonLineTest, NowAndLaterGiveTheSameWords) {
  run("def f():\n  issue.note(); return issue.current()\nsaid = f()\n");
  EXPECT_EQ(describe_line(last), text_of("said"));
}

TEST_F(PythonLineTest, ALibraryIsNotTheUser) {
  run("import sys, types\n"
      "torch = types.ModuleType('torch'); torch.__file__ = '/lib/torch/__init__.py'\n"
      "sys.modules['torch'] = torch\n");
  run("def inner():\n  issue.note()\n", "/lib/torch/nn/linear.py");
  run("def outer():\n  inner()\nouter()\n", "mine.py");
  EXPECT_EQ(describe_line(last), "mine.py:2 in outer");
  run("inner()\n", "/lib/torch/only.py");  // nobody else is there
  EXPECT_EQ(describe_line(last), "/lib/torch/nn/linear.py:2 in inner");
}

TEST_F(PythonLineTest, APendingExceptionIsLeftAlone) {
  run("issue.note()\n");
  PyErr_SetString(PyExc_KeyError, "waiting");
  EXPECT_NE(describe_line(last), "");
  current_line();
  EXPECT_TRUE(PyErr_ExceptionMatches(PyExc_KeyError));
  PyErr_Clear();
}

TEST_F(PythonLineTest, AThreadThatPythonDoesNotKnowHasNoLine) {
  PyThreadState* state = PyEval_SaveThread();
  dispatch::IssueLine line{&line, 0};
  std::string now = "?";
  std::thread([&] {
    line = capture_line();
    now = current_line();
  }).join();
  PyEval_RestoreThread(state);
  EXPECT_EQ(line.code, nullptr);
  EXPECT_EQ(now, "");
}

TEST_F(PythonLineTest, AThreadThatPythonMadeHasItsOwnLine) {
  run("import threading\n"
      "def work():\n  issue.note()\n"
      "t = threading.Thread(target=work); t.start(); t.join()\n");
  EXPECT_EQ(describe_line(last), "user.py:3 in work");
}

TEST_F(PythonLineTest, ManyThreadsTakeLinesWhileCodeIsMade) {
  run("import threading\n"
      "def work(i):\n"
      "  for j in range(50):\n"
      "    exec(compile('issue.current()', f'made{i}_{j}.py', 'exec'))\n"
      "ts = [threading.Thread(target=work, args=(i,)) for i in range(4)]\n"
      "[t.start() for t in ts]; [t.join() for t in ts]\n");
}

TEST_F(PythonLineTest, OnceTheRoomIsFullNewCodeHasNoLineAndOldCodeStillDoes) {
  run("def known():\n  issue.note()\nknown()\n");
  run("for i in range(" + std::to_string(kMaxPinnedCode + 10) +
      "):\n  exec(compile('issue.note()', 'many.py', 'exec'))\n");
  EXPECT_EQ(pinned_code(), kMaxPinnedCode);
  run("issue.note()\n", "late.py");
  EXPECT_EQ(last.code, nullptr);
  run("known()\n", "late.py");
  EXPECT_EQ(describe_line(last), "user.py:2 in known");
}

TEST(AfterPython, ThereIsNoLineEither) {
  if (!Py_IsInitialized()) GTEST_SKIP() << "the tests before it were left out";
  const dispatch::IssueLine line = last;
  ASSERT_EQ(Py_FinalizeEx(), 0);
  EXPECT_EQ(capture_line().code, nullptr);
  EXPECT_EQ(describe_line(line), "");
  EXPECT_EQ(current_line(), "");
}

}  // namespace
}  // namespace torch_tpu::bindings
