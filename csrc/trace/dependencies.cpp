#include "csrc/trace/dependencies.h"

#include <algorithm>

namespace torch_tpu::trace {

void Bits::add(size_t bit) {
  if (words_.size() <= bit / 64) words_.resize(bit / 64 + 1);
  words_[bit / 64] |= uint64_t{1} << (bit % 64);
}

void Bits::add(const Bits& other) {
  if (words_.size() < other.words_.size()) words_.resize(other.words_.size());
  for (size_t i = 0; i < other.words_.size(); ++i) words_[i] |= other.words_[i];
}

void Bits::remove(const Bits& other) {
  const size_t common = std::min(words_.size(), other.words_.size());
  for (size_t i = 0; i < common; ++i) words_[i] &= ~other.words_[i];
}

bool Bits::has(size_t bit) const noexcept {
  return bit / 64 < words_.size() && (words_[bit / 64] >> (bit % 64) & 1) != 0;
}

bool Bits::empty() const noexcept {
  return std::all_of(words_.begin(), words_.end(), [](uint64_t word) { return word == 0; });
}

Dependencies find_dependencies(const std::vector<uint32_t>& words,
                               const std::vector<ProgramPtr>& nodes) {
  Dependencies out;
  std::vector<bool> from_before;  // per result: it holds elements of an external
  size_t at = 0;
  size_t check = 0;
  for (const ProgramPtr& node : nodes) {
    const size_t refs = at + 1;
    const auto ref = [&](int input) { return words[refs + static_cast<size_t>(input)]; };
    const auto of_input = [&](int input) {
      Dependencies::Result one;
      if (is_internal(ref(input))) return out.results[index_of(ref(input))];
      one.externals.add(index_of(ref(input)));
      return one;
    };
    Dependencies::Result all;  // of what the call reads
    Bits kept_from;            // by its operands, as opposed to what it writes
    for (int i = 0; i < node->num_inputs; ++i) {
      const Program::Output* written = node->replacing(i);
      if (written != nullptr && written->overwrites) continue;
      const Dependencies::Result input = of_input(i);
      all.externals.add(input.externals);
      all.spoiled_by.add(input.spoiled_by);
      all.tells_of.add(input.tells_of);
      if (written != nullptr) continue;
      // A value that stayed as it was is not what the call was to be given, either.
      kept_from.add(input.spoiled_by);
      kept_from.add(input.tells_of);
    }
    Bits own;
    for (size_t i = 0; i < node->checks.size(); ++i) own.add(check++);
    for (const Program::Output& output : node->outputs) {
      if (!output.defined) continue;
      Dependencies::Result& result = out.results.emplace_back(all);
      Bits& held = out.held_back.emplace_back();
      if (output.input < 0) {
        result.spoiled_by.add(own);
        from_before.push_back(false);
        continue;
      }
      const uint32_t old = ref(output.input);
      const Dependencies::Result before = of_input(output.input);
      held = kept_from;
      held.remove(before.spoiled_by);
      result.tells_of.add(all.spoiled_by);
      result.tells_of.add(own);  // an index out of range writes nothing
      // What is written over leaves nothing behind, unless it has to stay.
      const bool gone = output.overwrites && held.empty();
      result.spoiled_by = gone ? Bits() : before.spoiled_by;
      if (!gone) {
        result.externals.add(before.externals);
        result.tells_of.add(before.tells_of);
      }
      from_before.push_back(!is_internal(old) || from_before[index_of(old)]);
      out.replaces_external = out.replaces_external || from_before.back();
    }
    at = refs + static_cast<size_t>(node->num_inputs);
  }
  return out;
}

}  // namespace torch_tpu::trace
