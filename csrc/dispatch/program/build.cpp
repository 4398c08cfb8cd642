#include "csrc/dispatch/program/build.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <sstream>

#include <ATen/MemoryOverlap.h>
#include <ATen/native/Resize.h>

#include "csrc/base/env.h"
#include "csrc/base/hash.h"
#include "csrc/base/journal.h"
#include "csrc/cache/compile_costs.h"
#include "csrc/cache/program_cache.h"
#include "csrc/cache/program_file.h"
#include "csrc/cache/program_store.h"
#include "csrc/dispatch/call/compiler_options.h"
#include "csrc/dispatch/call/masks.h"
#include "csrc/dispatch/program/keep.h"
#include "csrc/dispatch/program/node.h"
#include "csrc/dispatch/report/waits.h"
#include "csrc/pjrt/runtime.h"
#include "csrc/trace/lower.h"

namespace torch_tpu::dispatch {
namespace {

at::Tensor tensor_of(c10::TensorImpl* impl) {
  return at::Tensor(
      c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>::reclaim_copy(impl));
}

}  // namespace

trace::Resizes find_resizes(const Frame& frame, const Inferred& inferred) {
  trace::Resizes out;
  if (!frame.op.out_form || !inferred.known) return out;
  for (size_t i = 0; i < frame.tensors.size(); ++i) {
    const TensorRef& ref = frame.tensors[i];
    if (!ref.written || ref.impl == nullptr) continue;
    const at::Tensor& meta = inferred.tensors[i];
    if (meta.sizes() != ref.impl->sizes()) {
      out.all.push_back(
          {static_cast<int>(i), trace::to_shape(meta.sizes()), trace::to_shape(meta.strides())});
    }
  }
  return out;
}

void apply_resizes(const trace::Resizes& resizes, const Frame& frame, bool warn) {
  for (const auto& resize : resizes.all) {
    c10::TensorImpl* impl = frame.tensors[static_cast<size_t>(resize.tensor)].impl;
    const at::Tensor tensor = tensor_of(impl);
    if (warn) at::native::resize_output_check(tensor, resize.sizes);
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
    if (!frame.op.entry->constant) at::assert_no_internal_overlap(ref.impl);
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
  file << folder << "/" << serial++ << "_" << trace::module_name(name) << ".mlir";
  std::ofstream(file.str()) << text;
}

}  // namespace

std::string refusal_of_lowering(const Frame& frame) {
  std::string reason;
  try {
    throw;
  } catch (const std::invalid_argument& error) {
    reason = error.what();
  } catch (const c10::NotImplementedError& error) {
    reason = error.what_without_backtrace();
  } catch (const c10::Error&) {
    raise_cpu_error(frame);  // for arguments that the Meta kernel let pass, in PyTorch's words
    throw;
  }
  raise_cpu_error(frame);  // before a more lenient tier takes it
  return reason.empty() ? "not for these arguments" : reason;
}

pjrt::LoadedExecutable compile(const std::string& name, uint64_t fingerprint,
                               const std::string& text, double& seconds, bool quick) {
  const pjrt::Runtime& runtime = pjrt::Runtime::get();
  const base::journal::Span span(base::journal::Kind::kCompile, name, fingerprint);
  if (const std::string folder = base::env_dump(); !folder.empty()) dump(folder, name, text);
  const std::string overrides = pjrt::serialize_overrides(pjrt::overrides_of(text));
  const auto start = std::chrono::steady_clock::now();
  pjrt::LoadedExecutable out = runtime.client().compile_with(
      text, (quick ? runtime.quick_compile_options() : runtime.compile_options()) + overrides);
  seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  note_compile(name, fingerprint, seconds);
  return out;
}

void ensure_compiled(trace::Runnable& program) {
  trace::Code& code = program.code;
  if (code.ready()) [[likely]]
    return;
  const Compiling compiling(program);
  while (!code.ready()) {
    if (!code.claim()) {
      const int64_t start = base::journal::now_ns();
      code.wait();
      if (code.ready() && code.origin() == trace::Code::Origin::kCompiled) {  // not loaded
        note_wait(program, static_cast<double>(base::journal::now_ns() - start) * 1e-9);
      }
      continue;
    }
    try {
      pjrt::LoadedExecutable loaded;
      trace::Runnable::Stored& stored = program.stored;
      if (!stored.code.empty()) {
        loaded = cache::ProgramStore::get().load_code(
            program.key, stored, cache::result_types(program), program.name, program.fingerprint);
      }
      const bool found = static_cast<bool>(loaded);
      double seconds = stored.compile_seconds;
      if (!found) {
        program.fingerprint = base::hash_bytes(program.text);
        loaded = compile(program.name, program.fingerprint, program.text, seconds);
        if (dynamic_cast<const trace::Program*>(&program) != nullptr) {
          cache::CompileCosts::get().note_single(seconds);
        }
      }
      code.publish(std::move(loaded), found ? stored.origin : trace::Code::Origin::kCompiled,
                   seconds);
      if (!found && program.lasting) keep_compiled(program);
    } catch (...) {
      if (!code.ready()) code.abandon();
      throw;
    }
    program.text = {};
    program.stored = {};
  }
}

namespace {

uint64_t flavor_of(const trace::Node& node) {
  uint64_t hash = base::hash_bytes(node.name);
  for (const trace::TensorArg& tensor : node.tensors) {
    hash = base::hash_combine(
        hash, static_cast<uint64_t>(tensor.dtype) << 8 | tensor.geometry.sizes.size());
  }
  return hash;
}

bool raises_at_once(const ops::ValueCheck& check) {
  return check.kind == ops::ValueCheck::Kind::kMatrix ||
         check.kind == ops::ValueCheck::Kind::kBatch;
}

// Lowers the node; throws when that is refused.
trace::ProgramPtr make_program(trace::Node node, const trace::Key& key) {
  auto program = c10::make_intrusive<trace::Program>();
  program->name = node.name;
  trace::Lowered lowered = trace::lower(node);
  program->text = options_line(key) + lowered.text;
  program->outputs = describe_outputs(node, lowered.outputs);
  for (const trace::Program::Output& output : program->outputs) {
    program->output_bytes += output.bytes;
    const bool donated =
        output.write >= 0 && node.tensors[static_cast<size_t>(output.write)].donated;
    if (!donated) program->new_bytes += output.bytes;
  }
  if (node.entry->random) {
    program->draws = count_draws(node);
    program->extra_inputs.emplace_back();
  }
  program->checks = std::move(lowered.checks);
  program->num_counts = lowered.num_counts;
  for (int i = 0; i < trace::kNumCarriers; ++i) program->pack_sizes[i] = node.pack_sizes[i];
  program->num_inputs = node.num_inputs;
  program->num_tensors = node.tensors.size();
  program->flavor = flavor_of(node);
  program->fusible = program->num_counts == 0 &&
                     std::none_of(program->checks.begin(), program->checks.end(), raises_at_once);
  program->lasting = is_lasting(node);
  program->publish_node(std::move(node));
  return program;
}

}  // namespace

trace::Answer build_program(const Frame& frame) {
  check_writable(frame);
  const Inferred inferred = infer(frame);
  if (casts_into_out(frame)) raise_cpu_error(frame);
  trace::Resizes resizes = find_resizes(frame, inferred);
  if (!resizes.all.empty()) return std::make_shared<const trace::Resizes>(std::move(resizes));
  trace::ProgramPtr program;
  try {
    program = make_program(build_node(frame, inferred), frame.key);
  } catch (...) {
    return std::make_shared<const trace::Refusal>(
        trace::Refusal{frame.op.name, refusal_of_lowering(frame)});
  }
  program->numbers = inferred.numbers;
  program->donations_at = frame.donations_at;
  return program;
}

// Two threads may both find it missing; only the publishing is in turn, as inferring may need
// Python's lock.
void add_node(const Frame& frame, trace::Program& program) {
  program.wants_node.store(false, std::memory_order_relaxed);
  if (program.has_node()) return;
  trace::Node node = build_node(frame, infer(frame));
  trace::lower(node);  // fills in what only the lowering knows
  program.publish_node(std::move(node));
}

trace::ProgramPtr donating(const trace::ProgramPtr& program, const std::vector<uint64_t>& mask) {
  trace::Key key = program->key;
  for (size_t i = 0; i < mask.size(); ++i) key.set(program->donations_at + i, mask[i]);
  const uint64_t hash = key.hash();
  cache::ProgramCache& cache = cache::ProgramCache::get();
  const auto as_program = [](const trace::Answer& answer) {
    const auto* found = std::get_if<trace::ProgramPtr>(&answer);
    return found == nullptr ? trace::ProgramPtr() : *found;
  };
  if (trace::ProgramPtr known = as_program(cache.find(key, hash))) return known;
  if (trace::ProgramPtr stored = as_program(cache::ProgramStore::get().load(key))) {
    return as_program(cache.insert(key, hash, std::move(stored)));
  }
  if (!program->has_node()) {
    program->wants_node.store(true, std::memory_order_relaxed);
    return program;
  }
  trace::Node node = program->node();
  for (size_t i = 0; i < node.tensors.size(); ++i) {
    node.tensors[i].donated = (mask[i / 64] >> (i % 64) & 1) != 0;
  }
  trace::ProgramPtr made = make_program(std::move(node), key);
  made->numbers = program->numbers;
  made->key = key;
  made->donations_at = program->donations_at;
  return as_program(cache.insert(key, hash, std::move(made)));
}

namespace {

void compile_forms(const trace::ProgramPtr& program) {
  ensure_compiled(*program);
  std::vector<uint64_t> mask(program->num_tensors / 64 + 1, 0);
  bool writes = false;
  for (const trace::Program::Output& output : program->outputs) {
    if (!output.defined || output.input < 0) continue;
    mask[static_cast<size_t>(output.write) / 64] |= uint64_t{1} << (output.write % 64);
    writes = true;
  }
  if (writes && program->fusible) ensure_compiled(*donating(program, mask));
}

}  // namespace

std::vector<std::string> compile_all() {
  std::vector<std::string> failures;
  for (const trace::ProgramPtr& program : cache::ProgramCache::get().runnable()) {
    try {
      compile_forms(program);
    } catch (const std::exception& error) {  // a call of it raises the same
      failures.push_back(program->name + ": " + error.what());
    }
  }
  return failures;
}

}  // namespace torch_tpu::dispatch
