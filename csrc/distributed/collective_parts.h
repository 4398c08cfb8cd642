// What the collectives say about themselves, and small steps on host memory they share.
#pragma once

#include <cstring>
#include <string>
#include <vector>

#include <ATen/ops/empty.h>
#include <torch/csrc/distributed/c10d/Utils.hpp>

#include "csrc/distributed/process_group.h"
#include "csrc/distributed/reduce.h"
#include "csrc/distributed/work.h"

namespace torch_tpu::distributed {

using c10d::OpType;
using Tensors = TpuBackend::Tensors;
using Works = std::vector<WorkPtr>;

inline const at::Tensor& only(const Tensors& tensors, const char* op) {
  TORCH_CHECK_VALUE(tensors.size() == 1, "[", op, "] expected one tensor per process, got ",
                    tensors.size());
  return tensors[0];
}

inline void append(std::string& text, const at::Tensor& tensor) {
  text += c10::toString(tensor.scalar_type());
  text += " [";
  const char* separator = "";
  for (int64_t size : tensor.sizes()) {
    text += separator + std::to_string(size);
    separator = ", ";
  }
  text += "]";
}

inline std::string detail_of(const at::Tensor& tensor) {
  std::string text;
  append(text, tensor);
  return text;
}

inline std::string detail_of(const Tensors& tensors) {
  std::string text;
  for (const at::Tensor& tensor : tensors) {
    if (!text.empty()) text += ", ";
    append(text, tensor);
  }
  return text;
}

inline std::string rooted(std::string text, int64_t root) {
  return text + " root " + std::to_string(root);
}

// At the call, and in Gloo's words: there the transport itself would raise, when it is too late.
inline auto gloo_error(const char* op) {
  return
      [op](const std::string& what) { TORCH_CHECK(false, "ProcessGroupGloo::", op, ": ", what); };
}

inline void check_root(const char* op, int64_t root, int size) {
  c10d::assertRootRank(gloo_error(op), root, size);
}

// The tensors of all ranks that the root gives, and nobody else.
inline void check_pieces(const char* op, const std::string& side, const std::vector<Tensors>& lists,
                         const at::Tensor& like, bool root, int size) {
  const auto fail = gloo_error(op);
  if (!root) {
    if (!lists.empty()) fail("requires empty " + side + " on non-root");
    return;
  }
  const std::string ranks = std::to_string(size);
  if (lists.size() != 1) {
    fail("requires a single-element " + side + " list containing a list with " + ranks +
         " tensors.");
  }
  if (lists[0].size() != static_cast<size_t>(size)) {
    fail("Incorrect " + side + " list size " + std::to_string(lists[0].size()) + ". " +
         (side == "input" ? "Input" : "Output") + " list size should be " + ranks +
         ", same as size of the process group.");
  }
  c10d::assertTypeAndSizesMatch(fail, lists[0], like.options(), like.sizes());
}

// Gloo has no word for these: it looks for a rank that is not there until the timeout, or crashes.
inline void check_peer(const char* role, int peer, int rank, int size) {
  TORCH_CHECK_VALUE(peer >= 0 && peer < size, "Invalid ", role, " rank: ", peer,
                    " is not a rank of this group, which has ", size);
  TORCH_CHECK_VALUE(peer != rank, "Invalid ", role, " rank: ", role,
                    " rank should not be the same as the rank of the current process.");
}

inline at::Tensor new_bytes(int64_t bytes) {
  return at::empty({bytes}, at::TensorOptions().dtype(c10::kByte));
}

inline int64_t bytes_of(const at::Tensor& tensor) { return static_cast<int64_t>(tensor.nbytes()); }

inline void check_alike(const Tensors& tensors, const at::Tensor& like, const char* op) {
  for (const at::Tensor& tensor : tensors) {
    TORCH_CHECK_TYPE(tensor.scalar_type() == like.scalar_type(), "[", op,
                     "] expected tensors of one dtype, got ", tensor.scalar_type(), " and ",
                     like.scalar_type());
  }
}

inline void copy_bytes(const at::Tensor& to, const void* from) {
  if (to.nbytes() > 0) std::memcpy(to.mutable_data_ptr(), from, to.nbytes());
}

inline void copy_bytes(void* to, const at::Tensor& from) {
  if (from.nbytes() > 0) std::memcpy(to, from.const_data_ptr(), from.nbytes());
}

}  // namespace torch_tpu::distributed
