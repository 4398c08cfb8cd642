#include "csrc/trace/fused.h"

#include <algorithm>
#include <cstdio>
#include <unordered_map>

#include "csrc/base/hash.h"
#include "csrc/trace/bounded.h"
#include "csrc/trace/piece.h"

namespace torch_tpu::trace {
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
  dependencies = find_dependencies(words, nodes);
  for (uint32_t k : alive) new_bytes += segment.outputs[k]->bytes();
  for (const auto& donation : donated) new_bytes -= signature.externals[donation.external]->bytes();
  const Key key = stable_key();
  fingerprint = key.hash();
  char text[32];
  std::snprintf(text, sizeof text, "fused_%016llx", static_cast<unsigned long long>(fingerprint));
  name = text;
}

FusedProgram::~FusedProgram() = default;

std::shared_ptr<Family> FusedProgram::family() const {
  const std::lock_guard lock(family_mutex_);
  return family_;
}

void FusedProgram::join(std::shared_ptr<Family> family) noexcept { family_ = std::move(family); }

void FusedProgram::serve(Service service) {
  kept_services_.push_back(std::make_unique<const Service>(std::move(service)));
  service_.store(kept_services_.back().get(), std::memory_order_release);
}

bool FusedProgram::lowerable() const {
  for (const ProgramPtr& node : nodes) {
    if (!node->has_node()) return false;
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
  static constexpr uint64_t kBoundedTag = base::hash_bytes("torch_tpu bounded program");
  Key key;
  if (bounds) {
    key.add(kBoundedTag);
    for (const Point& point : {bounds->low, bounds->high, bounds->bound}) {
      for (int64_t number : point) key.add(number);
    }
    for (size_t i = 0; i < bounds->structure->size(); ++i) key.add(bounds->structure->data()[i]);
    if (bounds->forms->tie) key.add(bounds->forms->tie->constant());
    for (const Form& form : bounds->forms->numbers) {
      if (form.varies()) key.add(~uint64_t{0});
      for (int64_t number : form.terms) {
        key.add(number);
        if (!form.varies()) break;
      }
    }
    return key;
  }
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
  stablehlo::Builder b;
  stablehlo::Values externals;
  for (const auto& type : external_types(program)) externals.push_back(b.parameter(type));
  ScalarReader scalars(b, program.scalars);
  const PieceOutputs all = lower_nodes(b, program, externals, scalars,
                                       [](const Node&, const NodeInputs&) { return nullptr; });
  stablehlo::Values results;
  for (uint32_t k : program.alive) results.push_back(all.values[k]);
  for (const auto& donation : program.donated) b.alias(donation.external, donation.result);
  return finish_piece(b, std::move(results), all.flags, program.name);
}

}  // namespace torch_tpu::trace
