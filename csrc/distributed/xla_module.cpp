#include "csrc/distributed/xla_module.h"

#include <numeric>

#include "csrc/distributed/collective_module.h"
#include "csrc/ops/helpers.h"
#include "csrc/stablehlo/builder.h"

namespace torch_tpu::distributed {
namespace {

using stablehlo::Builder;
using stablehlo::Dims;
using stablehlo::DType;
using stablehlo::Reduction;
using stablehlo::Type;
using stablehlo::Value;
using stablehlo::Values;
using Op = c10d::ReduceOp::RedOpType;

bool is_float8(DType dtype) {
  return stablehlo::is_float(dtype) && stablehlo::dtype_bytes(dtype) == 1;
}

// On false and true, every operation is one of these.
Reduction on_bool(Op op) {
  switch (op) {
    case Op::SUM:
    case Op::MAX:
    case Op::BOR:
      return Reduction::kMax;
    case Op::BXOR:
      return Reduction::kXor;
    default:
      return Reduction::kMin;
  }
}

Reduction on_numbers(Op op) {
  switch (op) {
    case Op::PRODUCT:
      return Reduction::kMul;
    case Op::MIN:
      return Reduction::kMin;
    case Op::MAX:
      return Reduction::kMax;
    case Op::BAND:
      return Reduction::kAnd;
    case Op::BOR:
      return Reduction::kOr;
    case Op::BXOR:
      return Reduction::kXor;
    default:
      return Reduction::kAdd;
  }
}

// What it is reduced in, with the results of the transport over host memory: an average of small
// integers does not overflow on the way.
DType reduced_in(DType dtype, Op op) {
  if (dtype == DType::kBool) return DType::kS32;
  if (is_float8(dtype)) return DType::kF32;
  // The same bits: TPU adds no unsigned numbers of 64 bits between devices.
  if (on_numbers(op) == Reduction::kAdd && dtype == DType::kU64) return DType::kS64;
  if (op != Op::AVG) return dtype;
  if (dtype == DType::kS16 || dtype == DType::kU16) return DType::kS32;
  return dtype == DType::kU32 ? DType::kS64 : dtype;
}

class Maker {
 public:
  explicit Maker(const XlaCollective& what) : what_(what) {}

  std::string text() {
    Values inputs;
    for (const Dims& dims : what_.inputs) inputs.push_back(b_.parameter(Type(what_.dtype, dims)));
    Values outputs;
    switch (what_.kind) {
      case XlaKind::kAllReduce:
        outputs = {reduced(inputs[0], /*scatter=*/false)};
        break;
      case XlaKind::kBroadcast:
        outputs = {broadcast(inputs[0])};
        break;
      case XlaKind::kAllGather:
        outputs = all_gather(inputs[0]);
        break;
      case XlaKind::kReduceScatter:
        outputs = {reduce_scatter(inputs)};
        break;
      case XlaKind::kAllToAll:
        outputs = {all_to_all(inputs[0])};
        break;
    }
    if (what_.in_place()) b_.alias(0, 0);
    return b_.finish(outputs, std::string("collective_") + name_of(what_.kind));
  }

 private:
  // A channel of its own for each: two of one channel would be one collective.
  stablehlo::CollectiveGroups group() {
    stablehlo::CollectiveGroups groups;
    std::vector<int64_t> all(static_cast<size_t>(what_.size));
    std::iota(all.begin(), all.end(), 0);
    groups.replica_groups = {all};
    groups.channel_id = ++channel_;
    groups.use_global_device_ids = true;
    return groups;
  }

  // By `step`, which is not asked for what compilers do not send: complex numbers, bool, float8.
  template <class Step>
  Value moved(const Value& x, const Step& step) {
    const DType dtype = x.dtype();
    if (stablehlo::is_complex(dtype)) {
      const Value real = step(b_.real(x));
      return b_.complex(real, step(b_.imag(x)));
    }
    if (dtype == DType::kBool) return b_.convert(step(b_.convert(x, DType::kU8)), dtype);
    if (is_float8(dtype) || dtype == DType::kC32) {
      const DType as = dtype == DType::kC32 ? DType::kU32 : DType::kU8;
      const Value bits = step(b_.bitcast_convert(x, Type(as, x.dims())));
      return b_.bitcast_convert(bits, Type(dtype, bits.dims()));
    }
    return step(x);
  }

  // Everyone but the root adds zeros to it, as integers, so that what arrives has the very bits.
  Value broadcast(const Value& x) {
    return moved(x, [&](const Value& part) {
      if (part.dtype() == DType::kF64) return handed_on(part);
      Value sent = part;
      const bool as_bits = stablehlo::is_float(part.dtype());
      if (as_bits) {
        const bool half = stablehlo::dtype_bytes(part.dtype()) == 2;
        sent = b_.bitcast_convert(part, Type(half ? DType::kU16 : DType::kU32, part.dims()));
      } else if (part.dtype() == DType::kU64) {
        sent = b_.convert(part, DType::kS64);
      }
      const Value is_root = steps::is_one_of(b_, {what_.root}, x.dims(), ++channel_);
      const Value zeros = b_.splat_int(0, sent.type());
      const Value got = b_.all_reduce(b_.select(is_root, sent, zeros), group(), Reduction::kAdd);
      return as_bits ? b_.bitcast_convert(got, part.type()) : b_.convert(got, part.dtype());
    });
  }

  // For what has no integers of its size everywhere (TPU does not know the bits of a float64): who
  // has it hands it on, twice as many each time.
  Value handed_on(const Value& x) {
    Value got = x;
    for (int64_t have = 1; have < what_.size; have *= 2) {
      std::vector<std::pair<int64_t, int64_t>> pairs;
      std::vector<int64_t> receivers;
      for (int64_t i = 0; i < have && i + have < what_.size; ++i) {
        const int64_t to = (what_.root + i + have) % what_.size;
        pairs.emplace_back((what_.root + i) % what_.size, to);
        receivers.push_back(to);
      }
      const Value sent = b_.collective_permute(got, pairs, ++channel_);
      got = b_.select(steps::is_one_of(b_, receivers, x.dims(), ++channel_), sent, got);
    }
    return got;
  }

  Values all_gather(const Value& x) {
    Dims whole = x.dims();
    if (!whole.empty()) whole[0] *= what_.size;
    const bool plain = !whole.empty() && what_.outputs.size() == 1 && what_.outputs[0] == whole;
    const int64_t each = stablehlo::product(x.dims());
    const Value sent = plain ? x : b_.reshape(x, {1, each});
    const Value got =
        moved(sent, [&](const Value& part) { return b_.all_gather(part, 0, what_.size, group()); });
    if (plain) return {got};
    if (what_.outputs.size() == 1) return {b_.reshape(got, what_.outputs[0])};
    Values outputs;
    for (int64_t i = 0; i < what_.size; ++i) {
      const Value row = b_.slice(got, {i, 0}, {i + 1, each});
      outputs.push_back(b_.reshape(row, what_.outputs[static_cast<size_t>(i)]));
    }
    return outputs;
  }

  Value all_to_all(const Value& x) {
    const bool plain = x.dims() == what_.outputs[0] && !x.dims().empty() &&
                       x.dims()[0] % what_.size == 0 && x.dims()[0] > 0;
    const Value sent = plain ? x : b_.reshape(x, rows(x.dims()));
    const Value got = moved(
        sent, [&](const Value& part) { return b_.all_to_all(part, 0, 0, what_.size, group()); });
    return plain ? got : b_.reshape(got, what_.outputs[0]);
  }

  Value reduce_scatter(const Values& inputs) {
    const Dims& out = what_.outputs[0];
    if (inputs.size() > 1) {
      Values pieces;
      for (const Value& input : inputs) {
        pieces.push_back(b_.reshape(input, {1, stablehlo::product(out)}));
      }
      return b_.reshape(reduced(b_.concatenate(pieces, 0), /*scatter=*/true), out);
    }
    Dims whole = out;
    if (!whole.empty()) whole[0] *= what_.size;
    if (!whole.empty() && inputs[0].dims() == whole) return reduced(inputs[0], /*scatter=*/true);
    const Value sent = b_.reshape(inputs[0], rows(inputs[0].dims()));
    return b_.reshape(reduced(sent, /*scatter=*/true), out);
  }

  Dims rows(const Dims& dims) const { return {what_.size, stablehlo::product(dims) / what_.size}; }

  Value step(const Value& x, Reduction kind, bool scatter) {
    return scatter ? steps::reduce_scatter(b_, x, what_.size, kind, group())
                   : steps::all_reduce(b_, x, what_.size, kind, group());
  }

  // Scattered over dimension 0, or not.
  Value reduced(const Value& x, bool scatter) {
    const Op op = what_.reduction;
    const DType dtype = x.dtype();
    if (dtype == DType::kC32) return ops::cast(reduced(ops::cast(x, DType::kC64), scatter), dtype);
    if (stablehlo::is_complex(dtype)) {
      if (op == Op::PRODUCT) return complex_product(x, scatter);
      const Value real = step(b_.real(x), Reduction::kAdd, scatter);
      const Value sum = b_.complex(real, step(b_.imag(x), Reduction::kAdd, scatter));
      return op == Op::AVG ? averaged(sum) : sum;
    }
    const Reduction kind = dtype == DType::kBool ? on_bool(op) : on_numbers(op);
    Value out = step(b_.convert(x, reduced_in(dtype, op)), kind, scatter);
    if (dtype == DType::kU64) out = b_.convert(out, dtype);
    if (op == Op::AVG) out = averaged(out);
    return b_.convert(out, dtype);
  }

  Value averaged(const Value& sum) { return b_.divide(sum, b_.splat(what_.size, sum.type())); }

  // No compiler multiplies them between devices: all factors are sent.
  Value complex_product(const Value& x, bool scatter) {
    Dims dims = x.dims();
    if (scatter) dims[0] /= what_.size;
    Dims piece = dims;
    piece.insert(piece.begin(), 1);
    Dims all = dims;
    all.insert(all.begin(), what_.size);
    const Value factors = moved(x, [&](const Value& part) {
      return scatter ? b_.reshape(b_.all_to_all(part, 0, 0, what_.size, group()), all)
                     : b_.all_gather(b_.reshape(part, piece), 0, what_.size, group());
    });
    Value product;
    for (int64_t i = 0; i < what_.size; ++i) {
      Dims from(all.size(), 0), to = all;
      from[0] = i;
      to[0] = i + 1;
      const Value factor = b_.reshape(b_.slice(factors, from, to), dims);
      product = i == 0 ? factor : b_.multiply(product, factor);
    }
    return product;
  }

  const XlaCollective& what_;
  Builder b_;
  int64_t channel_ = 0;
};

}  // namespace

trace::Key XlaCollective::key() const {
  trace::Key key;
  key.add({static_cast<int64_t>(kind), static_cast<int64_t>(reduction), root, size,
           static_cast<int64_t>(dtype)});
  for (const std::vector<Dims>* list : {&inputs, &outputs}) {
    key.add(static_cast<int64_t>(list->size()));
    for (const Dims& dims : *list) {
      key.add(static_cast<int64_t>(dims.size()));
      key.add(dims);
    }
  }
  return key;
}

const char* name_of(XlaKind kind) {
  static const char* const kNames[] = {"all_reduce", "all_gather", "reduce_scatter", "all_to_all",
                                       "broadcast"};
  return kNames[static_cast<size_t>(kind)];
}

bool has_module(Op reduction) { return reduction < Op::PREMUL_SUM; }

std::string xla_module(const XlaCollective& what) { return Maker(what).text(); }

}  // namespace torch_tpu::distributed
