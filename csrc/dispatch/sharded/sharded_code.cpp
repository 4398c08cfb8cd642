#include "csrc/dispatch/sharded/sharded_code.h"

#include <chrono>
#include <mutex>
#include <stdexcept>

#include "csrc/base/digest.h"
#include "csrc/base/hash.h"
#include "csrc/base/journal.h"
#include "csrc/cache/program_store.h"
#include "csrc/dispatch/report/waits.h"
#include "csrc/pjrt/runtime.h"
#include "csrc/pjrt/sharded.h"

namespace torch_tpu::dispatch {
namespace {

using base::journal::Kind;
using base::journal::Span;

// Programs over several devices wait for each other on them: they must be started one after
// another, or two of them could each have half of the devices.
std::mutex launching;

// The text says all but the devices; the first word keeps it apart from the keys of ops.
trace::Key key_of(const std::string& text, const std::vector<int64_t>& devices) {
  static constexpr uint64_t kTag = base::hash_bytes("torch_tpu sharded program");
  const base::Digest digest = base::digest(text);
  trace::Key key;
  for (const uint64_t word : {kTag, digest.high, digest.low, uint64_t{text.size()}}) key.add(word);
  for (const int64_t device : devices) key.add(device);
  return key;
}

}  // namespace

ShardedCode::ShardedCode(std::string name, const std::string& text,
                         const std::vector<int64_t>& devices, size_t results, bool keep)
    : name_(std::move(name)), fingerprint_(base::hash_bytes(text)) {
  const trace::Key key = key_of(text, devices);
  cache::ProgramStore& store = cache::ProgramStore::get();
  code_.claim();
  trace::Runnable::Stored stored;
  if (keep) stored = store.find_code(key);
  pjrt::LoadedExecutable loaded;
  if (!stored.code.empty()) {  // of which devices have which parts, so only the number is known
    loaded = store.load_code(key, stored, cache::ResultTypes(results), name_, fingerprint_);
  }
  if (loaded) {
    code_.publish(std::move(loaded), stored.origin, stored.compile_seconds);
    return;
  }
  const Span span(Kind::kCompile, name_, fingerprint_);
  const auto start = std::chrono::steady_clock::now();
  loaded = pjrt::compile_sharded(pjrt::Runtime::get().client(), text, devices);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  note_compile(name_, fingerprint_, took.count());
  if (loaded.num_outputs() != results) {
    throw std::runtime_error(name_ + ": the module has " + std::to_string(loaded.num_outputs()) +
                             " results, not " + std::to_string(results));
  }
  code_.publish(std::move(loaded), trace::Code::Origin::kCompiled, took.count());
  if (keep) store.store_code(key, code_);
}

std::vector<Outputs> ShardedCode::start(const std::vector<std::vector<PJRT_Buffer*>>& args,
                                        std::span<const int64_t> keep) {
  std::vector<Outputs> outs(args.size());
  std::vector<PJRT_Buffer* const*> arg_lists;
  std::vector<PJRT_Buffer**> out_lists;
  for (size_t d = 0; d < args.size(); ++d) {
    arg_lists.push_back(args[d].data());
    out_lists.push_back(outs[d].prepare(code_.executable().num_outputs()));
  }
  runs_.fetch_add(1, std::memory_order_relaxed);
  const Span span(Kind::kLaunch, name_, fingerprint_);
  const std::lock_guard lock(launching);
  pjrt::execute_sharded(pjrt::Runtime::get().client(), code_.executable(), arg_lists,
                        args.at(0).size(), out_lists, keep);
  return outs;
}

}  // namespace torch_tpu::dispatch
