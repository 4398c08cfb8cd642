#include "csrc/dispatch/sharded/sharded_code.h"

#include <chrono>
#include <mutex>

#include "csrc/base/digest.h"
#include "csrc/base/hash.h"
#include "csrc/base/journal.h"
#include "csrc/cache/program_store.h"
#include "csrc/pjrt/runtime.h"
#include "csrc/pjrt/sharded.h"

namespace torch_tpu::dispatch {
namespace {

// Programs over several devices wait for each other on them: they must be started one after
// another, or two of them could each have half of the devices.
std::mutex launching;

}  // namespace

void load_sharded(trace::Program& program, const std::string& text,
                  const std::vector<int64_t>& devices, bool keep) {
  program.fingerprint = base::hash_bytes(text);
  // The text says all but the devices; the first word keeps it apart from the keys of ops.
  static constexpr uint64_t kTag = base::hash_bytes("torch_tpu sharded program");
  const base::Digest digest = base::digest(text);
  for (const uint64_t word : {kTag, digest.high, digest.low, uint64_t{text.size()}}) {
    program.key.add(word);
  }
  for (const int64_t device : devices) program.key.add(device);
  cache::ProgramStore& store = cache::ProgramStore::get();
  if (keep) store.find_code(program);
  if (program.code.empty() || !store.load_code(program)) {
    program.origin = trace::Program::Origin::kCompiled;
    const base::journal::Span span(base::journal::Kind::kCompile, program.name,
                                   program.fingerprint);
    const auto start = std::chrono::steady_clock::now();
    program.executable = pjrt::compile_sharded(pjrt::Runtime::get().client(), text, devices);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    program.compile_seconds = took.count();
    if (keep) store.store(program.key, program);
  }
  program.code = {};
  program.temp_bytes = program.executable.executable().temp_bytes();
}

std::vector<std::vector<PJRT_Buffer*>> start_sharded(
    trace::Program& program, const std::vector<std::vector<PJRT_Buffer*>>& args,
    std::span<const int64_t> keep) {
  const size_t nouts = program.executable.num_outputs();
  std::vector<std::vector<PJRT_Buffer*>> outs(args.size(), std::vector<PJRT_Buffer*>(nouts));
  std::vector<PJRT_Buffer* const*> arg_lists;
  std::vector<PJRT_Buffer**> out_lists;
  for (size_t d = 0; d < args.size(); ++d) {
    arg_lists.push_back(args[d].data());
    out_lists.push_back(outs[d].data());
  }
  program.runs.fetch_add(1, std::memory_order_relaxed);
  const base::journal::Span span(base::journal::Kind::kLaunch, program.name, program.fingerprint);
  const std::lock_guard lock(launching);
  pjrt::execute_sharded(pjrt::Runtime::get().client(), program.executable, arg_lists,
                        args.at(0).size(), out_lists, keep);
  return outs;
}

}  // namespace torch_tpu::dispatch
