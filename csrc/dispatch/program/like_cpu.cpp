#include "csrc/dispatch/program/like_cpu.h"

#include <string_view>
#include <unordered_map>

#include <ATen/ops/empty.h>

namespace torch_tpu::dispatch {
namespace {

// Channels come last in the first `results` results where they do in an argument.
struct Follows {
  size_t argument;
  size_t results;
};

const Follows* follows_of(std::string_view op) {
  static const auto* all = new std::unordered_map<std::string_view, Follows>{
      {"aten::max_pool3d_with_indices", {0, 2}}, {"aten::max_pool3d_with_indices_backward", {1, 1}},
      {"aten::reflection_pad2d", {0, 1}},        {"aten::reflection_pad2d_backward", {1, 1}},
      {"aten::reflection_pad3d", {0, 1}},        {"aten::reflection_pad3d_backward", {1, 1}},
      {"aten::replication_pad2d", {0, 1}},       {"aten::replication_pad2d_backward", {1, 1}},
      {"aten::replication_pad3d", {0, 1}},       {"aten::replication_pad3d_backward", {1, 1}},
  };
  const auto at = all->find(op);
  return at == all->end() ? nullptr : &at->second;
}

// suggest_memory_format() would look at the stride of the batch of one, which says nothing.
at::MemoryFormat format_of_volume(const at::Tensor& tensor) {
  constexpr auto kLast = at::MemoryFormat::ChannelsLast3d;
  const bool last = !tensor.is_contiguous() && tensor.is_contiguous(kLast);
  return last ? kLast : at::MemoryFormat::Contiguous;
}

bool is_loss_per_row(std::string_view op) {
  return op == "aten::multi_margin_loss" || op == "aten::multilabel_margin_loss_forward";
}

}  // namespace

void describe_like_cpu(const Frame& frame, std::vector<at::Tensor>& results) {
  if (const Follows* follows = follows_of(frame.op.name)) {
    const at::Tensor& argument = frame.args[follows->argument].toTensor();
    // A single volume, without a batch.
    const bool alone = argument.dim() == 4 && frame.op.name.starts_with("aten::max_pool3d");
    const at::MemoryFormat format =
        alone ? format_of_volume(argument.unsqueeze(0)) : argument.suggest_memory_format();
    if (format == at::MemoryFormat::Contiguous) return;
    for (size_t i = 0; i < follows->results; ++i) {
      c10::DimVector sizes(results[i].sizes());
      if (alone) sizes.insert(sizes.begin(), 1);
      const at::Tensor result = at::empty(sizes, results[i].options().memory_format(format));
      results[i] = alone ? result.squeeze(0) : result;
    }
  } else if (is_loss_per_row(frame.op.name) && frame.args[0].toTensor().dim() < 2) {
    // One row has one loss, not a list of one.
    results[0] = at::empty({}, results[0].options());
  }
}

}  // namespace torch_tpu::dispatch
