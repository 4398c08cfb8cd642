#include "csrc/distributed/xla_program.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>
#include <mutex>
#include <utility>

#include <c10/util/Exception.h>

#include "csrc/base/digest.h"
#include "csrc/base/hash.h"
#include "csrc/base/journal.h"
#include "csrc/cache/program_store.h"
#include "csrc/pjrt/runtime.h"
#include "csrc/pjrt/sharded.h"

namespace torch_tpu::distributed {
namespace {

constexpr uint64_t kTag = base::hash_bytes("torch_tpu collective of a group");

// Programs of a client over several devices wait for each other: they must be started one after
// another, or two of them could each have half of the devices.
std::mutex launching;

std::atomic<bool> refuse_programs{false};

// Else all processes compile: compilers of several may work together, and wait for each other.
bool all_are_here(const std::vector<int64_t>& devices) {
  const auto& here = pjrt::Runtime::get().client().addressable_devices();
  return std::all_of(devices.begin(), devices.end(), [&](int64_t id) {
    return std::any_of(here.begin(), here.end(), [id](const auto& d) { return d.id() == id; });
  });
}

}  // namespace

void set_refuse_programs(bool refuse) noexcept { refuse_programs.store(refuse); }

std::shared_ptr<XlaProgram> XlaProgram::get(const XlaCollective& what,
                                            const std::vector<int64_t>& devices) {
  struct Entry {
    std::mutex mutex;
    bool tried = false;
    std::shared_ptr<XlaProgram> program;
  };
  if (refuse_programs.load(std::memory_order_relaxed)) return nullptr;
  static std::mutex mutex;
  static auto* entries =
      new std::map<std::string, std::shared_ptr<Entry>>();  // leaked: see Runtime
  std::string key = what.key() + "@";
  for (const int64_t device : devices) key += std::to_string(device) + ",";
  std::shared_ptr<Entry> entry;
  {
    std::lock_guard lock(mutex);
    std::shared_ptr<Entry>& found = (*entries)[key];
    if (!found) found = std::make_shared<Entry>();
    entry = found;
  }
  std::lock_guard lock(entry->mutex);  // who comes meanwhile waits for it
  if (!std::exchange(entry->tried, true)) {
    try {
      entry->program.reset(new XlaProgram(what, devices));
    } catch (const pjrt::Error& error) {
      TORCH_WARN("[distributed] a collective goes over the host, the compiler does not take it: ",
                 error.what());
    }
  }
  return entry->program;
}

XlaProgram::XlaProgram(const XlaCollective& what, const std::vector<int64_t>& devices)
    : what_(what), program_(c10::make_intrusive<trace::Program>()) {
  const std::string text = xla_module(what);
  trace::Program& program = *program_;
  program.name = std::string("collective_") + name_of(what.kind);
  program.fingerprint = base::hash_bytes(text);
  program.outputs.resize(what.outputs.size());
  for (const stablehlo::Dims& dims : what.outputs) {
    new_bytes_ += stablehlo::product(dims) * stablehlo::dtype_bytes(what.dtype);
  }
  const base::Digest digest = base::digest(text);
  for (const uint64_t word : {kTag, digest.high, digest.low, uint64_t{text.size()}}) {
    program.key.add(word);
  }
  for (const int64_t device : devices) program.key.add(device);
  cache::ProgramStore& store = cache::ProgramStore::get();
  const bool keep = all_are_here(devices);
  if (keep) {
    const trace::ProgramPtr known = store.load(program.key);
    if (known && !known->code.empty()) {
      program.code = std::move(known->code);
      program.origin = known->origin;
      program.compile_seconds = known->compile_seconds;
    }
  }
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

std::vector<std::vector<pjrt::Buffer>> XlaProgram::run(
    const std::vector<std::vector<trace::ValuePtr>>& args, bool donate) {
  const pjrt::Runtime& runtime = pjrt::Runtime::get();
  const size_t here = args.size();
  const size_t nouts = program_->executable.num_outputs();
  std::vector<std::vector<PJRT_Buffer*>> raw(here);
  std::vector<std::vector<PJRT_Buffer*>> outs(here, std::vector<PJRT_Buffer*>(nouts));
  std::vector<PJRT_Buffer* const*> arg_lists;
  std::vector<PJRT_Buffer**> out_lists;
  for (size_t d = 0; d < here; ++d) {
    for (const trace::ValuePtr& value : args[d]) raw[d].push_back(value->raw());
    arg_lists.push_back(raw[d].data());
    out_lists.push_back(outs[d].data());
    if (!donate) trace::Ledger::of(args[d].at(0)->device()).check_room(new_bytes_);
  }
  const int64_t first = 0;
  const std::span<const int64_t> keep(&first, what_.in_place() && !donate ? 1 : 0);
  program_->runs.fetch_add(1, std::memory_order_relaxed);
  {
    const base::journal::Span span(base::journal::Kind::kLaunch, program_->name,
                                   program_->fingerprint);
    std::lock_guard lock(launching);
    pjrt::execute_sharded(runtime.client(), program_->executable, arg_lists, args.at(0).size(),
                          out_lists, keep);
  }
  std::vector<std::vector<pjrt::Buffer>> results(here);
  for (size_t d = 0; d < here; ++d) {
    for (PJRT_Buffer* buffer : outs[d]) results[d].emplace_back(runtime.api(), buffer);
  }
  return results;
}

}  // namespace torch_tpu::distributed
