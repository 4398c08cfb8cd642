// Builds the table from all families and checks that no op has two entries.
#include "csrc/ops/table.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace torch_tpu::ops {
namespace {

Entries build() {
  using Add = void (*)(Entries&);
  static constexpr Add kFamilies[] = {
      add_unary,  add_binary, add_compare, add_activation, add_foreach,   add_optimizer,
      add_reduce, add_scan,   add_sort,    add_softmax,    add_norm,      add_loss,
      add_matmul, add_conv,   add_pool,    add_upsample,   add_attention, add_rnn,
      add_linalg, add_fft,    add_index,   add_scatter,    add_embedding, add_shape,
      add_create, add_copy,   add_random,
  };
  Entries entries;
  for (Add add : kFamilies) add(entries);
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
