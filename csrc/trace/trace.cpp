#include "csrc/trace/trace.h"

#include <algorithm>
#include <atomic>
#include <iterator>

#include "csrc/base/hash.h"

namespace torch_tpu::trace {

void Segment::clear() {
  nodes.clear();
  inputs.clear();
  outputs.clear();
  f32.clear();
  f64.clear();
  s64.clear();
  rng.clear();
}

namespace {

// Leaves elements [at, end) in `from` and gives the others.
template <typename T>
std::vector<T> split_off(std::vector<T>& from, size_t at) {
  const auto middle = from.begin() + static_cast<std::ptrdiff_t>(at);
  std::vector<T> head(std::make_move_iterator(from.begin()), std::make_move_iterator(middle));
  from.erase(from.begin(), middle);
  return head;
}

}  // namespace

Segment Segment::split(size_t count) {
  if (count >= nodes.size()) {
    Segment all;
    std::swap(all, *this);
    return all;
  }
  const TraceNode first = nodes[count];
  Segment head;
  head.nodes = split_off(nodes, count);
  head.inputs = split_off(inputs, first.input);
  head.outputs = split_off(outputs, first.output);
  head.f32 = split_off(f32, first.packs[0]);
  head.f64 = split_off(f64, first.packs[1]);
  head.s64 = split_off(s64, first.packs[2]);
  head.rng = split_off(rng, first.rng);
  for (TraceNode& node : nodes) {
    node.input -= first.input;
    node.output -= first.output;
    for (int i = 0; i < kNumCarriers; ++i) node.packs[i] -= first.packs[i];
    node.rng -= first.rng;
  }
  return head;
}

void Segment::append(const Segment& from, size_t at) {
  TraceNode node = from.nodes[at];
  const Program& program = *node.program;
  const auto add = [](auto& to, const auto& source, uint32_t& first, size_t count) {
    const auto begin = source.begin() + static_cast<std::ptrdiff_t>(first);
    first = static_cast<uint32_t>(to.size());
    to.insert(to.end(), begin, begin + static_cast<std::ptrdiff_t>(count));
  };
  add(inputs, from.inputs, node.input, from.num_inputs(at));
  add(outputs, from.outputs, node.output, from.num_outputs(at));
  add(f32, from.f32, node.packs[0], static_cast<size_t>(program.pack_sizes[0]));
  add(f64, from.f64, node.packs[1], static_cast<size_t>(program.pack_sizes[1]));
  add(s64, from.s64, node.packs[2], static_cast<size_t>(program.pack_sizes[2]));
  add(rng, from.rng, node.rng, program.draws > 0 ? 2 : 0);
  nodes.push_back(std::move(node));
}

uint32_t Segment::num_inputs(size_t node) const {
  const size_t end = node + 1 < nodes.size() ? nodes[node + 1].input : inputs.size();
  return static_cast<uint32_t>(end) - nodes[node].input;
}

uint32_t Segment::num_outputs(size_t node) const {
  const size_t end = node + 1 < nodes.size() ? nodes[node + 1].output : outputs.size();
  return static_cast<uint32_t>(end) - nodes[node].output;
}

namespace {

std::atomic<uint64_t> next_pass{1};

bool same_array(const DeviceValue& a, const DeviceValue& b) {
  return a.dtype() == b.dtype() && a.dims() == b.dims();
}

}  // namespace

void Signature::build(const Segment& segment) {
  words.clear();
  externals.clear();
  alive.clear();
  donated.clear();
  origin_.clear();
  const uint64_t pass = next_pass.fetch_add(1, std::memory_order_relaxed);
  for (size_t n = 0; n < segment.nodes.size(); ++n) {
    const TraceNode& node = segment.nodes[n];
    words.push_back(node.program->uid);
    const size_t first_ref = words.size();
    for (uint32_t i = 0; i < segment.num_inputs(n); ++i) {
      DeviceValue* value = segment.inputs[node.input + i].get();
      if (value->mark.pass != pass) {
        value->mark = {pass, external_ref(static_cast<uint32_t>(externals.size())), 0};
        externals.push_back(value);
      }
      value->mark.refs += 1;
      words.push_back(value->mark.index);
    }
    uint32_t k = node.output;
    for (const Program::Output& output : node.program->outputs) {
      if (!output.defined) continue;
      int32_t origin = -1;
      if (output.input >= 0) {
        const uint32_t ref = words[first_ref + static_cast<size_t>(output.input)];
        origin = is_internal(ref) ? origin_[index_of(ref)] : static_cast<int32_t>(index_of(ref));
      }
      origin_.push_back(origin);
      segment.outputs[k]->mark = {pass, internal_ref(k), 1};
      ++k;
    }
  }
  const auto held_outside = [&](const DeviceValue& value) {
    return value.held_times() > value.mark.refs;
  };
  words.push_back(~uint32_t{0});
  for (uint32_t k = 0; k < segment.outputs.size(); ++k) {
    DeviceValue& value = *segment.outputs[k];
    if (!held_outside(value)) continue;
    const int32_t origin = origin_[k];
    if (origin >= 0) {
      DeviceValue& from = *externals[static_cast<size_t>(origin)];
      // Of several results that could take an external's memory the last one does.
      if (from.held_only_by(from.mark.refs) && same_array(from, value)) {
        const auto result = static_cast<uint32_t>(alive.size());
        const auto external = static_cast<uint32_t>(origin);
        const auto taken = std::find_if(donated.begin(), donated.end(),
                                        [&](const auto& d) { return d.external == external; });
        if (taken != donated.end()) {
          taken->result = result;
        } else {
          donated.push_back({external, result});
        }
      }
    }
    alive.push_back(k);
    words.push_back(k);
  }
  words.push_back(~uint32_t{0});
  for (const Donation& donation : donated) {
    words.push_back(donation.external);
    words.push_back(donation.result);
  }
  hash = base::hash_mix(words.size(), 0x9e3779b97f4a7c15ULL);
  for (uint32_t word : words) hash = base::hash_combine(hash, word);
}

}  // namespace torch_tpu::trace
