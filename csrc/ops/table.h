// The op table: for each ATen op its lowering and every fact about it that the schema does not
// say. One entry serves the functional, in-place and out= forms of the op.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "csrc/ops/call.h"

namespace torch_tpu::ops {

// Returns the new tensors in the order of the schema's returns, then the new values of `writes`
// (and of written arguments that the schema does not return). Shapes must be those of Call::out();
// a differing dtype is converted by the caller, so compute in whatever dtype is right.
// An undefined Value means "undefined tensor" (an output masked away).
using Lowering = Values (*)(Call&);

enum class Overlap : uint8_t {
  kFine,
  kSameOnly,  // the same elements in the same order, or none: what TensorIterator asks for
  kNone,
};

enum class Bounded : uint8_t {
  kNo,
  kBatch,   // where the first elements of dimension 0 count
  kPrefix,  // where the first elements of a dimension count: positions are true ones
  kAny,     // also where dimensions were merged, and what counts has gaps
};

struct Entry {
  std::string_view name;  // "add.Tensor": the functional form, without "aten::"
  Lowering lower = nullptr;

  // TensorIterator ops: 0-d CPU tensors may mix with device tensors and become runtime scalars.
  bool cpu_scalars = false;
  // Its lowering multiplies no matrices, so their precision is not part of the key. Set by family.
  bool elementwise = false;
  // Draws random numbers: Call::rng_state() may be used.
  bool random = false;
  // Arguments this op writes although its schema does not say so (batch norm's running statistics).
  std::vector<std::string_view> writes = {};
  // Scalar/float arguments whose value is part of the key (it changes shapes or the algorithm).
  std::vector<std::string_view> keyed = {};
  // Values of Scalar arguments that get a program of their own (pow's exponents 2, 0.5 ...).
  std::vector<Number> special = {};
  // The in-place form does not read the old contents (fill_, copy_, uniform_).
  bool overwrites = false;
  // Its argument `indices` may hold masks; they become integer indices before the call is keyed,
  // since their number decides the output's size.
  bool expands_masks = false;
  // The runtime calls it itself and registers its own kernel (copy_).
  bool internal = false;
  // No Meta kernel: output shapes are those of the lowered values, contiguous.
  bool no_meta = false;
  // The sizes of its results depend on the data: the lowering names them with Call::counted, the
  // runtime reads the counts.
  bool counted = false;
  // Whether it is an error that an argument it reads shares memory with one it writes. Where an
  // entry says nothing, its family does, in table.cpp.
  std::optional<Overlap> overlap = std::nullopt;
  // Writes the same value everywhere, so an element may be written twice (fill).
  bool constant = false;
  // CPU raises for an integer divisor of 0. A number is looked at when the call is made, a tensor
  // by the lowering. Not where the third argument is None (div without a rounding mode).
  bool divides = false;
  // PyTorch refuses some values of its Scalar arguments, by sign or against 1: which of these
  // ranges they are in is part of the key. Always so for random ops.
  bool checks_numbers = false;
  // Its Scalar arguments become elements of `self`: refused, as CPU does, where its dtype cannot
  // hold them.
  bool stores_numbers = false;
  // Whether it is right where dimensions vary (csrc/stablehlo/axis.h): no number in the lowering
  // may come from a size except through the builder. Other ops make a program static. Set in
  // bounded.cpp.
  Bounded bounded = Bounded::kNo;
};

// All entries, built once, sorted by name.
const std::vector<Entry>& table();

// One function per family file; table.cpp calls them all.
using Entries = std::vector<Entry>;
void add_unary(Entries& t);       // elementwise_unary.cpp
void add_binary(Entries& t);      // elementwise_binary.cpp
void add_compare(Entries& t);     // compare.cpp: comparison, logical, bitwise, where, isnan...
void add_activation(Entries& t);  // activation.cpp: activations and their backwards
void add_foreach(Entries& t);     // foreach.cpp
void add_optimizer(Entries& t);   // optimizer.cpp: _fused_adam_ ..., amp unscale
void add_reduce(Entries& t);      // reduce.cpp
void add_scan(Entries& t);        // scan.cpp: cumsum, cumprod, cummax, logcumsumexp
void add_sort(Entries& t);        // sort.cpp: sort, topk, kthvalue, median, searchsorted
void add_softmax(Entries& t);     // softmax.cpp
void add_norm(Entries& t);        // norm.cpp: layer, group, rms, batch norm, with backwards
void add_loss(Entries& t);        // loss.cpp
void add_matmul(Entries& t);      // matmul.cpp
void add_conv(Entries& t);        // conv.cpp
void add_pool(Entries& t);        // pool.cpp
void add_upsample(Entries& t);    // upsample.cpp
void add_attention(Entries& t);   // attention.cpp
void add_rnn(Entries& t);         // rnn.cpp
void add_linalg(Entries& t);      // linalg.cpp
void add_fft(Entries& t);         // fft.cpp
void add_index(Entries& t);       // index.cpp: index, index_put, index_select, gather ...
void add_scatter(Entries& t);     // scatter.cpp
void add_counted(Entries& t);     // counted.cpp: nonzero, masked_select, unique ...
void add_histogram(Entries& t);   // histogram.cpp: histc, histogram, bincount
void add_segment(Entries& t);     // segment.cpp: segment_reduce, repeat_interleave
void add_jagged(Entries& t);      // jagged.cpp: jagged to padded and back
void add_ctc(Entries& t);         // ctc.cpp
void add_embedding(Entries& t);   // embedding.cpp
void add_shape(Entries& t);       // shape.cpp: cat, flip, roll, repeat, pad, tril, triu ...
void add_copy(Entries& t);        // copy.cpp
void add_create(Entries& t);      // create.cpp: fill, arange, linspace, eye, one_hot ...
void add_random(Entries& t);      // random.cpp

// Sets Entry::bounded.
void mark_bounded(Entries& t);  // bounded.cpp

}  // namespace torch_tpu::ops
