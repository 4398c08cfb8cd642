// Sparse ops that say nothing of a device: they build tensors of indices and values, or apply dense
// ops to them. PyTorch registers one function for CPU and CUDA alike; the entry of the CPU serves.
#include <string>

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

namespace torch_tpu::dispatch {
namespace {

template <c10::DispatchKey key>
void as_on_cpu(const c10::OperatorHandle& op, c10::Stack* stack) {
  op.redispatchBoxed(c10::DispatchKeySet(key), stack);
}

template <c10::DispatchKey key>
void add(torch::Library& m, const std::string& name) {
  const auto op = c10::Dispatcher::singleton().findOp(
      {"aten::" + name.substr(0, name.find('.')),
       name.find('.') == std::string::npos ? "" : name.substr(name.find('.') + 1)});
  // Older versions of torch have fewer of them.
  if (op && op->hasKernelForDispatchKey(key)) {
    m.impl(name.c_str(), torch::CppFunction::makeFromBoxedFunction<&as_on_cpu<key>>());
  }
}

// These have an in-place and an out= form, for both layouts.
constexpr const char* kUnary[] = {"abs",     "sgn",     "asinh", "atanh", "asin",   "atan",
                                  "ceil",    "erf",     "expm1", "floor", "frac",   "log1p",
                                  "rad2deg", "deg2rad", "neg",   "round", "sin",    "sinh",
                                  "sqrt",    "tan",     "tanh",  "trunc", "erfinv", "sign"};

constexpr const char* kBoth[] = {"add.Tensor",
                                 "add_.Tensor",
                                 "clone",
                                 "conj_physical.out",
                                 "copy_",
                                 "dense_dim",
                                 "empty_like",
                                 "empty.memory_format",
                                 "isinf",
                                 "isnan",
                                 "isneginf",
                                 "isneginf.out",
                                 "isposinf",
                                 "isposinf.out",
                                 "mm",
                                 "mm.out",
                                 "mul.Tensor",
                                 "mul_.Tensor",
                                 "_nnz",
                                 "relu",
                                 "relu_",
                                 "resize_as_sparse_",
                                 "signbit",
                                 "signbit.out",
                                 "sparse_dim",
                                 "sparse_mask",
                                 "sum",
                                 "sum.dim_IntList",
                                 "threshold_backward",
                                 "threshold_backward.grad_input",
                                 "_to_dense",
                                 "_to_sparse",
                                 "_to_sparse.sparse_dim",
                                 "_to_sparse_csc",
                                 "_to_sparse_csr",
                                 "values",
                                 "zero_"};

constexpr const char* kCoo[] = {"any",
                                "cat",
                                "_coalesced_",
                                "copy_sparse_to_sparse_",
                                "_dimI",
                                "_dimV",
                                "div.out",
                                "div.out_mode",
                                "div.Tensor",
                                "div_.Tensor",
                                "div.Tensor_mode",
                                "div_.Tensor_mode",
                                "floor_divide",
                                "floor_divide.out",
                                "floor_divide_.Tensor",
                                "indices",
                                "_indices",
                                "is_coalesced",
                                "mv",
                                "nan_to_num",
                                "nan_to_num_",
                                "nan_to_num.out",
                                "narrow_copy",
                                "native_norm",
                                "native_norm.ScalarOpt_dim_dtype",
                                "norm.ScalarOpt_dim",
                                "norm.ScalarOpt_dim_dtype",
                                "permute",
                                "pow.Tensor_Scalar",
                                "pow.Tensor_Scalar_out",
                                "_sparse_broadcast_to",
                                "_sparse_coo_tensor_with_dims",
                                "_sparse_coo_tensor_with_dims_and_tensors",
                                "_sparse_mask_projection",
                                "sparse_resize_",
                                "sparse_resize_and_clear_",
                                "sub.out",
                                "sub.Tensor",
                                "sub_.Tensor",
                                "_to_sparse_bsc",
                                "_to_sparse_bsr",
                                "unsqueeze",
                                "_values",
                                "view_as_complex",
                                "view_as_real",
                                "zeros.out"};

constexpr const char* kCompressed[] = {
    "addmm",          "angle",          "angle.out",    "ccol_indices", "col_indices",
    "_conj_physical", "conj_physical_", "crow_indices", "fill_.Scalar", "mul.out",
    "mul.Scalar",     "mul_.Scalar",    "normal_",      "resize_",      "row_indices",
    "select.int",     "select_copy.int"};

template <c10::DispatchKey key>
void add_all(torch::Library& m, c10::ArrayRef<const char*> more) {
  for (const char* name : kUnary) {
    for (const char* form : {"", "_", ".out"}) add<key>(m, std::string(name) + form);
  }
  for (const char* name : kBoth) add<key>(m, name);
  for (const char* name : more) add<key>(m, name);
}

TORCH_LIBRARY_IMPL(aten, SparsePrivateUse1, m) { add_all<c10::DispatchKey::SparseCPU>(m, kCoo); }
TORCH_LIBRARY_IMPL(aten, SparseCsrPrivateUse1, m) {
  add_all<c10::DispatchKey::SparseCsrCPU>(m, kCompressed);
}

// From dense tensors: PyTorch's functions call only other ops, too.
TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  for (const char* name : {"_to_sparse", "_to_sparse.sparse_dim", "_to_sparse_csr",
                           "_to_sparse_csc", "_to_sparse_bsr", "_to_sparse_bsc"}) {
    add<c10::DispatchKey::CPU>(m, name);
  }
}

}  // namespace
}  // namespace torch_tpu::dispatch
