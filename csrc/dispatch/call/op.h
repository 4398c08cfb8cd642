// An ATen operator as the boxed kernel sees it: its schema digested once, at registration, so that
// a call needs no look at the schema.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/dispatch/Dispatcher.h>

#include "csrc/ops/table.h"

namespace torch_tpu::dispatch {

enum class ArgKind : uint8_t {
  kTensor,      // Tensor, Tensor?
  kTensorList,  // Tensor[], Tensor?[]
  kScalar,      // Scalar, float and their optionals: a runtime value
  kScalarList,  // Scalar[]
  kStructural,  // everything else: part of the key
  kGenerator,
  kIgnored,  // layout, device, pin_memory, non_blocking: no influence on the program
};

struct ArgPlan {
  ArgKind kind = ArgKind::kStructural;
  bool written = false;
  bool read = true;    // false for out= tensors: their old contents do not matter
  bool keyed = false;  // a Scalar whose value is part of the key
  std::optional<base::Number>
      default_value;  // of a Scalar: calls that leave it get their own program
  std::string name;
};

// "aten::add_.Tensor".
std::string full_name(const c10::OperatorHandle& handle);

struct Op {
  explicit Op(c10::OperatorHandle handle, const ops::Entry* entry);

  c10::OperatorHandle handle;
  const ops::Entry* entry;
  uint64_t id;       // first word of every key; a function of the name
  std::string name;  // "aten::add_.Tensor"
  std::vector<ArgPlan> args;
  // Per schema return: the written argument it aliases, or -1 for a new tensor or list.
  std::vector<int> returns;
  std::vector<bool> return_is_list;
  std::vector<bool> return_is_tensor;  // false for the numbers some ops return beside tensors
  // Written arguments that no return stands for, in schema order.
  std::vector<int> extra_writes;
  int device_arg = -1;  // factory functions
  int generator_arg = -1;
  bool out_form = false;
  bool writes = false;         // any argument
  bool reads_tensors = false;  // any argument that it does not write
  // An out= form whose result sizes no Meta kernel tells: the functional op, resize, copy.
  bool copies_out = false;
};

// Registers the boxed kernel for every table entry and, found by their schemas, its in-place and
// out= forms; and the CPU fallback for all others. At import; a second call does nothing.
void register_ops();

// Runs an op of the table on the arguments on top of the stack, leaving its results there.
void run_op(const Op& op, c10::Stack* stack);

// The same for an op that gives one new tensor, to `fresh`, or writes its first argument (null),
// and expands no masks; it leaves the arguments as they are. False, and nothing has happened, for a
// call that run_op() has to run.
bool run_unboxed(const Op& op, const c10::IValue* args, at::Tensor* fresh);

// Every registered form with the table entry that serves it: ("add_.Tensor", "add.Tensor").
std::vector<std::pair<std::string, std::string>> op_forms();

// Adds an op that is not of the table, or puts it in the place of one of that name. From any
// thread; the op must live for ever.
void remember_op(const Op& op);

// The digested op of that name ("aten::copy_"); throws when there is none. From any thread; takes
// no lock for an op of the table.
const Op& find_op(const std::string& name);

}  // namespace torch_tpu::dispatch
