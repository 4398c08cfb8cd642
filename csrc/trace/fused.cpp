#include "csrc/trace/fused.h"

#include <algorithm>
#include <cstdio>
#include <unordered_map>

#include "csrc/base/hash.h"
#include "csrc/trace/lower.h"

namespace torch_tpu::trace {
namespace {

using stablehlo::Builder;
using stablehlo::DType;
using stablehlo::Type;
using stablehlo::Value;
using stablehlo::Values;

// Takes numbers out of the two arrays they travel in, in the order they were packed.
class ScalarReader {
 public:
  ScalarReader(Builder& b, const ScalarLayout& layout)
      : b_(b), s64_(layout.f32), rng_(layout.f32 + 2 * layout.s64) {
    if (layout.words() > 0) words_ = b.parameter(Type(DType::kU32, {layout.words()}));
    if (layout.f64 > 0) f64s_ = b.parameter(Type(DType::kF64, {layout.f64}));
  }

  Values packs(const int (&sizes)[kNumCarriers]) {
    Values out(kNumCarriers);
    if (sizes[0] > 0) {
      out[0] = b_.bitcast_convert(take(words_, f32_, sizes[0]), Type(DType::kF32, {sizes[0]}));
    }
    if (sizes[1] > 0) out[1] = take(f64s_, f64_, sizes[1]);
    if (sizes[2] > 0) out[2] = b_.convert(take_u64(s64_, sizes[2]), DType::kS64);
    return out;
  }

  Value rng_state() { return take_u64(rng_, 2); }

 private:
  Value take(const Value& from, int64_t& at, int64_t count) {
    at += count;
    return b_.slice(from, {at - count}, {at});
  }

  // By arithmetic, since not every compiler converts the bits of 64-bit types.
  Value take_u64(int64_t& at, int64_t count) {
    const Value pairs =
        b_.convert(b_.reshape(take(words_, at, 2 * count), {count, 2}), DType::kU64);
    const Value low = b_.reshape(b_.slice(pairs, {0, 0}, {count, 1}), {count});
    const Value high = b_.reshape(b_.slice(pairs, {0, 1}, {count, 2}), {count});
    return b_.or_(low, b_.shift_left(high, b_.splat(32, high.type())));
  }

  Builder& b_;
  Value words_;
  Value f64s_;
  int64_t f32_ = 0;
  int64_t f64_ = 0;
  int64_t s64_;
  int64_t rng_;
};

// Where the references of each node begin among the words.
template <typename Visit>
void for_each_node(const FusedProgram& program, Visit&& visit) {
  size_t at = 0;
  for (size_t n = 0; n < program.nodes.size(); ++n) {
    const size_t refs = at + 1;
    visit(n, refs);
    at = refs + static_cast<size_t>(program.nodes[n]->num_inputs);
  }
}

std::vector<Type> external_types(const FusedProgram& program) {
  std::vector<Type> types(program.num_externals);
  for_each_node(program, [&](size_t n, size_t refs) {
    for (const TensorArg& tensor : program.nodes[n]->node->tensors) {
      if (tensor.input < 0) continue;
      const uint32_t ref = program.words[refs + static_cast<size_t>(tensor.input)];
      if (!is_internal(ref)) types[index_of(ref)] = tensor.base;
    }
  });
  return types;
}

}  // namespace

FusedProgram::FusedProgram(const Segment& segment, const Signature& signature)
    : words(signature.words),
      hash(signature.hash),
      alive(signature.alive),
      donated(signature.donated),
      num_externals(signature.externals.size()),
      scalars{static_cast<uint32_t>(segment.f32.size()), static_cast<uint32_t>(segment.f64.size()),
              static_cast<uint32_t>(segment.s64.size()),
              static_cast<uint32_t>(segment.rng.size())} {
  for (size_t n = 0; n < segment.nodes.size(); ++n) {
    const ProgramPtr& node = segment.nodes[n].program;
    nodes.push_back(node);
    for (const ops::ValueCheck& check : node->checks) {
      checks.push_back({&check, static_cast<uint32_t>(n)});
    }
  }
  for (uint32_t k : alive) new_bytes += segment.outputs[k]->bytes();
  for (const auto& donation : donated) new_bytes -= signature.externals[donation.external]->bytes();
  const Key key = stable_key();
  fingerprint = key.hash();
  char text[32];
  std::snprintf(text, sizeof text, "fused_%016llx", static_cast<unsigned long long>(fingerprint));
  name = text;
}

bool FusedProgram::lowerable() const {
  for (const ProgramPtr& node : nodes) {
    if (!node->has_node.load(std::memory_order_acquire)) return false;
  }
  return true;
}

size_t FusedProgram::alike(const FusedProgram& other) const {
  const size_t most = std::min(nodes.size(), other.nodes.size());
  size_t count = 0;
  while (count < most && nodes[count]->name == other.nodes[count]->name) ++count;
  return count;
}

Key FusedProgram::stable_key() const {
  static constexpr uint64_t kTag = base::hash_bytes("torch_tpu fused program");
  Key key;
  key.add(kTag);  // no op's keys begin with it
  key.add(uint64_t{nodes.size()});
  std::unordered_map<const Program*, uint64_t> seen;
  for_each_node(*this, [&](size_t n, size_t refs) {
    const Program* node = nodes[n].get();
    const auto [at, fresh] = seen.try_emplace(node, seen.size());
    key.add(at->second);
    if (fresh) {
      key.add(uint64_t{node->key.size()});
      for (size_t i = 0; i < node->key.size(); ++i) key.add(node->key.data()[i]);
    }
    for (int i = 0; i < node->num_inputs; ++i) {
      key.add(uint64_t{words[refs + static_cast<size_t>(i)]});
    }
  });
  for (uint32_t k : alive) key.add(uint64_t{k});
  key.add(~uint64_t{0});
  for (const auto& d : donated) key.add(uint64_t{d.external} << 32 | d.result);
  return key;
}

std::string lower_fused(const FusedProgram& program) {
  Builder b;
  Values externals;
  for (const Type& type : external_types(program)) externals.push_back(b.parameter(type));
  ScalarReader scalars(b, program.scalars);
  Values outputs;
  Values flags;
  for_each_node(program, [&](size_t n, size_t refs) {
    Node node = *program.nodes[n]->node;  // lowering fills in sizes
    NodeInputs inputs;
    for (int i = 0; i < node.num_inputs; ++i) {
      const uint32_t ref = program.words[refs + static_cast<size_t>(i)];
      inputs.bases.push_back(is_internal(ref) ? outputs[index_of(ref)] : externals[index_of(ref)]);
    }
    inputs.packs = scalars.packs(node.pack_sizes);
    if (node.entry->random) inputs.rng_state = scalars.rng_state();
    NodeOutputs out = lower_into(b, node, inputs);
    for (Value& value : out.results) {
      if (value.defined()) outputs.push_back(std::move(value));
    }
    for (const ops::PendingCheck& check : out.checks) flags.push_back(b.reshape(check.flag, {1}));
  });
  Values results;
  for (uint32_t k : program.alive) results.push_back(outputs[k]);
  for (const auto& donation : program.donated) b.alias(donation.external, donation.result);
  if (!flags.empty()) results.push_back(b.concatenate(flags, 0));
  return b.finish(results, program.name);
}

}  // namespace torch_tpu::trace
