// Builds the table from all families and checks that no op has two entries.
#include "csrc/ops/table.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace torch_tpu::ops {
namespace {

Entries build() {
  struct Family {
    void (*add)(Entries&);
    Overlap overlap = Overlap::kFine;
    Bounded bounded = Bounded::kNo;
    bool elementwise = false;
  };
  static constexpr Family kFamilies[] = {
      {add_unary, Overlap::kSameOnly, Bounded::kAny, true},
      {add_binary, Overlap::kSameOnly, Bounded::kAny, true},
      {add_compare, Overlap::kSameOnly, Bounded::kAny, true},
      {add_activation, Overlap::kSameOnly, Bounded::kAny, true},
      {add_scan, Overlap::kSameOnly},
      {add_sort, Overlap::kSameOnly},
      {add_copy, Overlap::kSameOnly, Bounded::kNo, true},
      {add_index, Overlap::kNone},
      {add_scatter, Overlap::kNone},
      {add_foreach, Overlap::kFine, Bounded::kNo, true},
      {add_optimizer},
      {add_reduce},
      {add_softmax},
      {add_norm},
      {add_loss},
      {add_matmul},
      {add_conv},
      {add_pool},
      {add_upsample},
      {add_attention},
      {add_rnn},
      {add_linalg},
      {add_fft},
      {add_embedding},
      {add_shape},
      {add_counted},
      {add_histogram},
      {add_segment},
      {add_jagged},
      {add_ctc},
      {add_create},
      {add_random},
  };
  Entries entries;
  for (const Family& family : kFamilies) {
    const size_t first = entries.size();
    family.add(entries);
    for (size_t i = first; i < entries.size(); ++i) {
      if (!entries[i].overlap) entries[i].overlap = family.overlap;
      entries[i].bounded = family.bounded;
      entries[i].elementwise = family.elementwise || entries[i].cpu_scalars;
    }
  }
  mark_bounded(entries);
  std::sort(entries.begin(), entries.end(),
            [](const Entry& a, const Entry& b) { return a.name < b.name; });
  std::string twice;
  for (size_t i = 1; i < entries.size(); ++i) {
    if (entries[i].name == entries[i - 1].name) twice += " " + std::string(entries[i].name);
  }
  if (!twice.empty()) throw std::logic_error("[table] two entries for" + twice);
  return entries;
}

}  // namespace

const std::vector<Entry>& table() {
  static const Entries entries = build();
  return entries;
}

}  // namespace torch_tpu::ops
