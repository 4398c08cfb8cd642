#include "csrc/cache/program_info.h"

#include <iterator>
#include <mutex>

#include "csrc/cache/program_cache.h"

namespace torch_tpu::cache {
namespace {

struct Sources {
  std::mutex mutex;
  std::vector<ProgramSource> all;
};

Sources& sources() {
  static auto* made = new Sources();
  return *made;
}

}  // namespace

const char* name(ProgramInfo::Origin origin) noexcept {
  switch (origin) {
    case ProgramInfo::Origin::kCompiled:
      return "compiled";
    case ProgramInfo::Origin::kDisk:
      return "disk";
    case ProgramInfo::Origin::kPack:
      return "pack";
  }
  return "?";
}

const char* name(ProgramInfo::State state) noexcept {
  switch (state) {
    case ProgramInfo::State::kSeenOnce:
      return "seen once";
    case ProgramInfo::State::kCompiling:
      return "compiling";
    case ProgramInfo::State::kReady:
      return "ready";
    case ProgramInfo::State::kFailed:
      return "failed";
  }
  return "?";
}

void ProgramInfo::describe(const trace::Code& code,
                           c10::intrusive_ptr<c10::intrusive_ptr_target> owner_in) {
  switch (code.state()) {
    case trace::Code::State::kAbsent:
      state = State::kSeenOnce;
      break;
    case trace::Code::State::kCompiling:
      state = State::kCompiling;
      break;
    case trace::Code::State::kReady:
      state = State::kReady;
      compile_seconds = code.compile_seconds();
      origin = code.origin();
      executable = &code.executable();
      owner = std::move(owner_in);
      break;
    case trace::Code::State::kFailed:
      state = State::kFailed;
      reason = code.failure();
      break;
  }
}

pjrt::CompiledMemoryStats memory_of(const ProgramInfo& info) noexcept {
  if (info.executable == nullptr || !*info.executable) return {};
  try {
    return info.executable->executable().memory_stats();
  } catch (...) {  // the plugin does not tell
    return {};
  }
}

void add_program_source(ProgramSource source) {
  Sources& known = sources();
  std::lock_guard lock(known.mutex);
  known.all.push_back(source);
}

std::vector<ProgramInfo> all_programs() {
  std::vector<ProgramInfo> out = ProgramCache::get().programs();
  std::vector<ProgramSource> asked;
  {
    Sources& known = sources();
    std::lock_guard lock(known.mutex);
    asked = known.all;
  }
  for (ProgramSource source : asked) {
    std::vector<ProgramInfo> more = source();
    out.insert(out.end(), std::make_move_iterator(more.begin()),
               std::make_move_iterator(more.end()));
  }
  return out;
}

}  // namespace torch_tpu::cache
