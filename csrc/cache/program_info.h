// What a report says about a program in memory, whichever part of the system keeps it.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "csrc/trace/program.h"

namespace torch_tpu::cache {

struct ProgramInfo {
  using Origin = trace::Code::Origin;
  enum class State : uint8_t { kSeenOnce, kCompiling, kReady, kFailed };

  std::string name;
  bool fused = false;
  std::vector<std::pair<std::string, int>> ops;  // names and how often; in a fused program's order
  uint64_t fingerprint = 0;
  uint64_t runs = 0;
  uint64_t hits = 0;
  double compile_seconds = 0;
  Origin origin = Origin::kCompiled;
  State state = State::kReady;
  std::string reason;  // of kFailed; of a fused program else what was new about it
  // For memory_of(): null while there is none; kept alive by its owner.
  const pjrt::LoadedExecutable* executable = nullptr;
  // Fills in what the code's state tells; `owner_in` keeps it alive.
  void describe(const trace::Code& code, c10::intrusive_ptr<c10::intrusive_ptr_target> owner_in);
  c10::intrusive_ptr<c10::intrusive_ptr_target> owner;
};

const char* name(ProgramInfo::Origin origin) noexcept;  // "compiled"
const char* name(ProgramInfo::State state) noexcept;    // "seen once"

// The executable's own account; zeros where it has none. Asks the plugin, so not for every program.
pjrt::CompiledMemoryStats memory_of(const ProgramInfo& info) noexcept;

// A part of the system that keeps programs tells about them when asked. Sources stay.
using ProgramSource = std::vector<ProgramInfo> (*)();
void add_program_source(ProgramSource source);
// Of the program cache and of all sources.
std::vector<ProgramInfo> all_programs();

}  // namespace torch_tpu::cache
