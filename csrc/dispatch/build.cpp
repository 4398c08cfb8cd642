#include "csrc/dispatch/build.h"

#include <chrono>
#include <filesystem>
#include <fstream>
#include <sstream>

#include <ATen/MemoryOverlap.h>

#include "csrc/base/env.h"
#include "csrc/base/hash.h"
#include "csrc/base/journal.h"
#include "csrc/dispatch/decompose.h"
#include "csrc/dispatch/masks.h"
#include "csrc/dispatch/node.h"
#include "csrc/pjrt/runtime.h"
#include "csrc/trace/lower.h"

namespace torch_tpu::dispatch {
namespace {

at::Tensor tensor_of(c10::TensorImpl* impl) {
  return at::Tensor(
      c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>::reclaim_copy(impl));
}

}  // namespace

std::vector<trace::Program::Resize> find_resizes(const Frame& frame, const Inferred& inferred) {
  std::vector<trace::Program::Resize> out;
  if (!frame.op.out_form || !inferred.known) return out;
  for (size_t i = 0; i < frame.tensors.size(); ++i) {
    const TensorRef& ref = frame.tensors[i];
    if (!ref.written || ref.impl == nullptr) continue;
    const at::Tensor& meta = inferred.tensors[i];
    if (meta.sizes() != ref.impl->sizes()) {
      out.push_back(
          {static_cast<int>(i), trace::to_shape(meta.sizes()), trace::to_shape(meta.strides())});
    }
  }
  return out;
}

void apply_resizes(const std::vector<trace::Program::Resize>& resizes, const Frame& frame) {
  for (const auto& resize : resizes) {
    c10::TensorImpl* impl = frame.tensors[static_cast<size_t>(resize.tensor)].impl;
    const at::Tensor tensor = tensor_of(impl);
    tensor.resize_(resize.sizes);
    if (tensor.strides() != trace::ShapeRef(resize.strides)) {
      impl->set_sizes_and_strides(resize.sizes, resize.strides);
    }
  }
}

namespace {

// x[mask] = x[0] is a masked_fill, which takes its value as a number.
bool is_fill_value(const Frame& frame, const TensorRef& ref) {
  return frame.op.entry->expands_masks && ref.impl->numel() == 1 &&
         holds_mask(frame.op, frame.args);
}

}  // namespace

void check_writable(const Frame& frame) {
  const auto overlap = *frame.op.entry->overlap;
  for (const TensorRef& ref : frame.tensors) {
    if (!ref.written || ref.impl == nullptr) continue;
    at::assert_no_internal_overlap(ref.impl);
    for (const TensorRef& other : frame.tensors) {
      if (&other == &ref || other.impl == nullptr || other.cell != ref.cell) continue;
      if (is_fill_value(frame, other)) continue;
      const at::Tensor written = tensor_of(ref.impl);
      const at::Tensor read = tensor_of(other.impl);
      if (overlap == ops::Overlap::kSameOnly) at::assert_no_partial_overlap(written, read);
      if (overlap == ops::Overlap::kNone) at::assert_no_overlap(written, read);
    }
  }
}

namespace {

// An out= tensor of another dtype than the inputs. Some ops allow that and some do not, which is
// not always their Meta kernel's business.
bool casts_into_out(const Frame& frame) {
  if (!frame.op.out_form) return false;
  const c10::TensorImpl* first = nullptr;
  for (const TensorRef& ref : frame.tensors) {
    if (ref.impl == nullptr) continue;
    if (first == nullptr) first = ref.impl;
    if (ref.written && ref.impl->dtype() != first->dtype()) return true;
  }
  return false;
}

void dump(const std::string& folder, const std::string& name, const std::string& text) {
  static std::atomic<int> serial{0};
  std::filesystem::create_directories(folder);
  std::ostringstream file;
  file << folder << "/" << serial++ << "_" << name.substr(name.find("::") + 2) << ".mlir";
  std::ofstream(file.str()) << text;
}

}  // namespace

ops::Target lowering_target() {
  const pjrt::PlatformKind kind = pjrt::Runtime::get().kind();
  ops::Target target;
  target.extremes_keep_nan = kind != pjrt::PlatformKind::kCpu;
  target.has_s8_dot = kind != pjrt::PlatformKind::kCpu && kind != pjrt::PlatformKind::kCuda;
  return target;
}

std::string refusal_of_lowering(const Frame& frame) {
  std::string reason;
  try {
    throw;
  } catch (const std::invalid_argument& error) {
    reason = error.what();
  } catch (const c10::NotImplementedError& error) {
    reason = error.what_without_backtrace();
  }
  raise_cpu_error(frame);  // before a more lenient tier takes it
  return reason.empty() ? "not for these arguments" : reason;
}

void compile(trace::Program& program, const std::string& text) {
  if (const std::string folder = base::env_dump(); !folder.empty()) {
    dump(folder, program.name, text);
  }
  const pjrt::Runtime& runtime = pjrt::Runtime::get();
  program.fingerprint = base::hash_bytes(text);
  const base::journal::Span span(base::journal::Kind::kCompile, program.name, program.fingerprint);
  const auto start = std::chrono::steady_clock::now();
  program.executable = runtime.client().compile_with(text, runtime.compile_options());
  program.compile_seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

trace::ProgramPtr build_program(const Frame& frame) {
  if (frame.op.entry->lower == nullptr) return build_decomposed(frame);
  check_writable(frame);
  auto program = c10::make_intrusive<trace::Program>();
  program->name = frame.op.name;
  const Inferred inferred = infer(frame);
  if (casts_into_out(frame)) raise_cpu_error(frame);
  program->resizes = find_resizes(frame, inferred);
  if (!program->resizes.empty()) return program;

  trace::Node node = build_node(frame, inferred);
  trace::Lowered lowered;
  try {
    const ops::TargetScope scope(lowering_target());
    lowered = trace::lower(node);
  } catch (...) {
    program->refusal = refusal_of_lowering(frame);
    return program;
  }
  compile(*program, lowered.text);
  program->outputs = describe_outputs(node, lowered.outputs);
  for (const trace::Program::Output& output : program->outputs) {
    const bool donated =
        output.write >= 0 && node.tensors[static_cast<size_t>(output.write)].donated;
    if (!donated) program->new_bytes += output.bytes;
  }
  if (frame.op.entry->random) {
    program->draws = count_draws(node);
    program->extra_inputs.emplace_back();
  }
  program->numbers = inferred.numbers;
  program->checks = std::move(lowered.checks);
  program->num_counts = lowered.num_counts;
  for (int i = 0; i < trace::kNumCarriers; ++i) program->pack_sizes[i] = node.pack_sizes[i];
  return program;
}

}  // namespace torch_tpu::dispatch
