#include "csrc/dispatch/call/target.h"

#include <atomic>
#include <stdexcept>

#include <ATen/Context.h>

#include "csrc/pjrt/runtime.h"

namespace torch_tpu::dispatch {
namespace {

using ops::AttentionForm;
using pjrt::PlatformKind;

// 0, or the form plus one in the lowest two bits and the block's side above.
std::atomic<uint64_t> forced_attention{0};
thread_local std::optional<PlatformKind> forced_platform;
constexpr int kFormBits = 2;
constexpr int64_t kMaxBlock = (int64_t{1} << 22) - 1;

stablehlo::Precision f32_precision() {
  switch (at::globalContext().float32MatmulPrecision()) {
    case at::Float32MatmulPrecision::HIGHEST:
      return stablehlo::Precision::kHighest;
    case at::Float32MatmulPrecision::HIGH:
      return stablehlo::Precision::kHigh;
    case at::Float32MatmulPrecision::MEDIUM:
      return stablehlo::Precision::kDefault;
  }
  return stablehlo::Precision::kHighest;
}

// cuDNN's attention needs Ampere or later.
bool has_cudnn_attention() {
  const pjrt::NamedValues attributes =
      pjrt::Runtime::get().client().addressable_devices().at(0).attributes();
  const auto found = attributes.find("compute_capability");
  if (found == attributes.end()) return false;
  const std::string text = pjrt::to_string(found->second);  // "9.0"
  return !text.empty() && std::atoi(text.c_str()) >= 8;
}

AttentionForm attention_form(PlatformKind kind) {
  if (kind != PlatformKind::kCuda) return AttentionForm::kBlocks;
  static const bool cudnn = has_cudnn_attention();
  // Its backward adds up in any order.
  const bool fixed_order = at::globalContext().deterministicAlgorithms();
  return cudnn && !fixed_order ? AttentionForm::kCudnn : AttentionForm::kBlocks;
}

}  // namespace

ops::Target current_target() {
  const PlatformKind kind = forced_platform ? *forced_platform : pjrt::Runtime::get().kind();
  ops::Target target;
  target.compiler = kind == PlatformKind::kCpu    ? ops::Compiler::kCpu
                    : kind == PlatformKind::kCuda ? ops::Compiler::kCuda
                                                  : ops::Compiler::kTpu;
  target.extremes_keep_nan = kind != PlatformKind::kCpu;
  target.has_s8_dot = kind != PlatformKind::kCpu && kind != PlatformKind::kCuda;
  target.rounds_half_products = kind == PlatformKind::kCuda;
  target.aligns_half_rows = kind == PlatformKind::kCuda;
  target.has_vector_trigonometry = kind != PlatformKind::kCpu;
  target.f32_precision = f32_precision();
  if (const uint64_t forced = attention_word()) {
    target.attention = static_cast<AttentionForm>((forced & ((1 << kFormBits) - 1)) - 1);
    target.attention_block = static_cast<int64_t>(forced >> kFormBits);
  } else {
    target.attention = attention_form(kind);
  }
  return target;
}

PlatformScope::PlatformScope(PlatformKind kind) : previous_(forced_platform) {
  forced_platform = kind;
}

PlatformScope::~PlatformScope() { forced_platform = previous_; }

void set_attention_form(const std::string& form, int64_t block) {
  static constexpr const char* kNames[] = {"plain", "blocks", "cudnn"};
  if (block < 0 || block > kMaxBlock) {
    throw std::invalid_argument("block must be from 0 to " + std::to_string(kMaxBlock) + ", got " +
                                std::to_string(block));
  }
  uint64_t code = form == "auto" ? 0 : ~uint64_t{0};
  for (uint64_t i = 0; i < std::size(kNames); ++i) {
    if (form == kNames[i]) code = (i + 1) | static_cast<uint64_t>(block) << kFormBits;
  }
  if (code == ~uint64_t{0}) {
    throw std::invalid_argument("form must be 'auto', 'plain', 'blocks' or 'cudnn', got '" + form +
                                "'");
  }
  forced_attention.store(code);
}

uint64_t attention_word() noexcept { return forced_attention.load(std::memory_order_relaxed); }

}  // namespace torch_tpu::dispatch
