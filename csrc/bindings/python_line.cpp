// Frames are read from CPython's internal structures. That is sound without the GIL because they
// belong to the calling thread, which is inside a call made by the innermost of them; only
// reference counts must not be touched. Each minor version of Python has its own layout.

#include <Python.h>

#if PY_VERSION_HEX >= 0x030B0000 && PY_VERSION_HEX < 0x030E0000 && !defined(Py_GIL_DISABLED)
#define TORCH_TPU_READS_FRAMES 1
#define Py_BUILD_CORE 1
#include <internal/pycore_frame.h>
#undef Py_BUILD_CORE
#else
#define TORCH_TPU_READS_FRAMES 0
#endif

#include <array>
#include <atomic>
#include <cstdint>
#include <string_view>

#include "csrc/bindings/python_end.h"
#include "csrc/bindings/python_line.h"

namespace torch_tpu::bindings {
namespace {

using dispatch::IssueLine;

// Takes the GIL and sets a pending exception aside: nothing here may raise or lose one.
class Gil {
 public:
  Gil() : state_(PyGILState_Ensure()) { PyErr_Fetch(&type_, &value_, &trace_); }
  ~Gil() {
    PyErr_Restore(type_, value_, trace_);
    PyGILState_Release(state_);
  }
  Gil(const Gil&) = delete;
  Gil& operator=(const Gil&) = delete;

 private:
  PyGILState_STATE state_;
  PyObject *type_, *value_, *trace_;
};

// Valid as long as `text` lives; empty when it is no text or has no UTF-8 form.
std::string_view view(PyObject* text) {
  Py_ssize_t size = 0;
  const char* data =
      text != nullptr && PyUnicode_Check(text) ? PyUnicode_AsUTF8AndSize(text, &size) : nullptr;
  if (data == nullptr) {
    PyErr_Clear();
    return {};
  }
  return {data, static_cast<size_t>(size)};
}

// "/…/site-packages/torch/", or empty before the package is imported.
std::string package_folder(const char* name) {
  PyObject* modules = PySys_GetObject("modules");  // borrowed, as is the module
  PyObject* module = modules == nullptr ? nullptr : PyDict_GetItemString(modules, name);
  PyObject* file =
      module == nullptr || !PyModule_Check(module) ? nullptr : PyModule_GetFilenameObject(module);
  const std::string_view path = view(file);
  std::string folder(path.substr(0, path.rfind('/') + 1));
  Py_XDECREF(file);
  PyErr_Clear();
  return folder;
}

// Whether code of this file only passes on what its caller asked for. Needs the GIL.
bool is_library(std::string_view file) {
  if (file.starts_with("<frozen")) return true;
  static std::array<std::string, 2>& folders = *new std::array<std::string, 2>;
  static constexpr std::array<const char*, 2> kPackages = {"torch", "torch_tpu"};
  for (size_t i = 0; i < folders.size(); ++i) {
    if (folders[i].empty()) folders[i] = package_folder(kPackages[i]);
    if (!folders[i].empty() && file.starts_with(folders[i])) return true;
  }
  return false;
}

// The line's text without indentation, or "".
std::string source_text(PyObject* file, int line) {
  std::string text;
  PyObject* linecache = PyImport_ImportModule("linecache");
  PyObject* found =
      linecache == nullptr ? nullptr : PyObject_CallMethod(linecache, "getline", "Oi", file, line);
  const std::string_view raw = view(found);
  const size_t begin = raw.find_first_not_of(" \t\f");
  if (begin != std::string_view::npos) {
    text = raw.substr(begin, raw.find_last_not_of(" \t\r\n\f") + 1 - begin);
  }
  Py_XDECREF(found);
  Py_XDECREF(linecache);
  PyErr_Clear();
  return text;
}

std::string in_words(PyCodeObject* code, int line) {
  std::string text(view(code->co_filename));
  text += ":" + std::to_string(line) + " in ";
  text += view(code->co_name);
  const std::string source = source_text(code->co_filename, line);
  return source.empty() ? text : text + ": " + source;
}

#if TORCH_TPU_READS_FRAMES

enum class Kind { kUnknown, kUser, kLibrary };

// A set of code objects that are never freed, so that an address means the same code forever.
// Readers take no lock; the GIL is the writers' lock. Open addressing, at most half full.
class PinnedCode {
 public:
  Kind find(const PyCodeObject* code) const noexcept {
    const auto address = reinterpret_cast<uintptr_t>(code);
    for (size_t i = first_slot(address);; i = (i + 1) & (kSlots - 1)) {
      const uintptr_t entry = slots_[i].load(std::memory_order_acquire);
      if (entry == address) return Kind::kUser;
      if (entry == (address | kLibraryBit)) return Kind::kLibrary;
      if (entry == 0) return Kind::kUnknown;
    }
  }

  // `code` must be alive, and is by the caller's frame. kUnknown when there is no room.
  Kind add(PyCodeObject* code) noexcept {
    if (size() >= kMaxPinnedCode) return Kind::kUnknown;
    Gil gil;
    if (const Kind known = find(code); known != Kind::kUnknown) return known;
    const bool library = is_library(view(code->co_filename));
    if (size() >= kMaxPinnedCode) return Kind::kUnknown;
    const uintptr_t address = reinterpret_cast<uintptr_t>(Py_NewRef(code));
    size_t i = first_slot(address);
    while (slots_[i].load(std::memory_order_relaxed) != 0) i = (i + 1) & (kSlots - 1);
    slots_[i].store(library ? address | kLibraryBit : address, std::memory_order_release);
    size_.fetch_add(1, std::memory_order_relaxed);
    return library ? Kind::kLibrary : Kind::kUser;
  }

  size_t size() const noexcept { return size_.load(std::memory_order_relaxed); }

 private:
  static constexpr int kSlotBits = 14;
  static constexpr size_t kSlots = size_t{1} << kSlotBits;
  static constexpr uintptr_t kLibraryBit = 1;  // objects are aligned to more than 2
  static_assert(kMaxPinnedCode * 2 <= kSlots);

  static size_t first_slot(uintptr_t address) noexcept {
    return (static_cast<uint64_t>(address >> 4) * 0x9E3779B97F4A7C15u) >> (64 - kSlotBits);
  }

  std::array<std::atomic<uintptr_t>, kSlots> slots_{};
  std::atomic<size_t> size_{0};
};

PinnedCode pinned;  // zero-initialized; nothing runs at exit

_PyInterpreterFrame* innermost_frame(PyThreadState* state) noexcept {
#if PY_VERSION_HEX >= 0x030D0000
  return state->current_frame;
#else
  return state->cframe->current_frame;
#endif
}

// Frames the interpreter makes for itself, or is still setting up, have no line.
bool has_line(_PyInterpreterFrame* frame) noexcept {
#if PY_VERSION_HEX >= 0x030C0000
  if (frame->owner == FRAME_OWNED_BY_CSTACK) return false;
#endif
  return !_PyFrame_IsIncomplete(frame);
}

PyCodeObject* code_of(_PyInterpreterFrame* frame) noexcept {
#if PY_VERSION_HEX >= 0x030D0000
  return _PyFrame_GetCode(frame);
#else
  return frame->f_code;
#endif
}

// Whether Dynamo made this code. It must not be pinned: the compiled functions it calls live as
// long as it does. It belongs to a frame of this thread, so its names may be read without the GIL.
bool made_by_dynamo(PyCodeObject* code) noexcept {
  PyObject* names = code->co_names;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(names); ++i) {
    PyObject* name = PyTuple_GET_ITEM(names, i);
    if (!PyUnicode_IS_COMPACT_ASCII(name)) continue;
    const std::string_view text(reinterpret_cast<const char*>(PyUnicode_1BYTE_DATA(name)),
                                static_cast<size_t>(PyUnicode_GET_LENGTH(name)));
    if (text.starts_with("__compiled_fn") || text.starts_with("__resume_at")) return true;
  }
  return false;
}

#endif  // TORCH_TPU_READS_FRAMES

}  // namespace

#if TORCH_TPU_READS_FRAMES

IssueLine capture_line() noexcept {
  if (python_ends()) return {};
  PyThreadState* state = PyGILState_GetThisThreadState();
  if (state == nullptr) return {};
  IssueLine innermost;
  for (auto* frame = innermost_frame(state); frame != nullptr; frame = frame->previous) {
    if (!has_line(frame)) continue;
    PyCodeObject* code = code_of(frame);
    Kind kind = pinned.find(code);
    if (kind == Kind::kUnknown) {
      if (made_by_dynamo(code)) continue;  // the line that called it says enough
      kind = pinned.add(code);
    }
    if (kind == Kind::kUnknown) return {};
    if (kind == Kind::kLibrary && innermost.code != nullptr) continue;
    const int unit = _PyInterpreterFrame_LASTI(frame);
    const IssueLine line{code, unit * static_cast<int32_t>(sizeof(_Py_CODEUNIT))};
    if (kind == Kind::kUser) return line;
    innermost = line;
  }
  return innermost;
}

size_t pinned_code() noexcept { return pinned.size(); }

#else

IssueLine capture_line() noexcept { return {}; }
size_t pinned_code() noexcept { return 0; }

#endif  // TORCH_TPU_READS_FRAMES

std::string describe_line(IssueLine line) {
  if (line.code == nullptr || !Py_IsInitialized() || python_ends()) return "";
  Gil gil;
  auto* code = static_cast<PyCodeObject*>(const_cast<void*>(line.code));
  return in_words(code, PyCode_Addr2Line(code, line.lasti));
}

namespace {

// Whether a file came with Python or was installed: no line of the user's.
bool is_installed(std::string_view file) {
  return is_library(file) || file.find("/site-packages/") != file.npos ||
         file.find("/dist-packages/") != file.npos;
}

// The innermost frame that is not `skipped`, else (`any`) the innermost one.
std::string find_line(bool (*skipped)(std::string_view), bool any) {
  if (!Py_IsInitialized() || python_ends()) return "";
  Gil gil;
  PyFrameObject* innermost = PyEval_GetFrame();  // borrowed; null on autograd's threads
  if (innermost == nullptr) return "";
  PyFrameObject* frame = innermost;
  Py_INCREF(frame);
  const auto skip = [&](PyFrameObject* of) {
    PyCodeObject* code = PyFrame_GetCode(of);
    const bool answer = skipped(view(code->co_filename));
    Py_DECREF(code);
    return answer;
  };
  while (frame != nullptr && skip(frame)) {
    PyFrameObject* back = PyFrame_GetBack(frame);
    Py_DECREF(frame);
    frame = back;
  }
  if (frame == nullptr && !any) return "";
  PyFrameObject* shown = frame != nullptr ? frame : innermost;
  PyCodeObject* code = PyFrame_GetCode(shown);
  const std::string text = in_words(code, PyFrame_GetLineNumber(shown));
  Py_DECREF(code);
  Py_XDECREF(frame);
  return text;
}

}  // namespace

std::string current_line() { return find_line(&is_library, /*any=*/true); }

std::string user_line() { return find_line(&is_installed, /*any=*/false); }

}  // namespace torch_tpu::bindings
