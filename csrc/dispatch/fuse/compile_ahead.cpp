#include "csrc/dispatch/fuse/compile_ahead.h"

#include <algorithm>
#include <atomic>
#include <unordered_set>

#include "csrc/cache/compile_pool.h"
#include "csrc/dispatch/program/build.h"

namespace torch_tpu::dispatch {

struct CompileAhead::Work {
  std::vector<trace::ProgramPtr> programs;  // each once
  std::atomic<size_t> next{0};

  bool compile_one() noexcept {
    const size_t mine = next.fetch_add(1, std::memory_order_relaxed);
    if (mine >= programs.size()) return false;
    try {
      ensure_compiled(*programs[mine]);
    } catch (...) {  // thrown again where it runs
    }
    return true;
  }
};

CompileAhead::CompileAhead(const std::vector<trace::ProgramPtr>& programs) {
  std::vector<trace::ProgramPtr> missing;
  std::unordered_set<const trace::Program*> known;
  for (const trace::ProgramPtr& program : programs) {
    if (program->code.ready()) continue;
    if (known.insert(program.get()).second) missing.push_back(program);
  }
  if (missing.size() < 2) return;
  work_ = std::make_shared<Work>();
  work_->programs = std::move(missing);
  cache::CompilePool& pool = cache::CompilePool::get();
  const size_t helpers = std::min(pool.max_threads(), work_->programs.size() - 1);
  for (size_t i = 0; i < helpers; ++i) {
    pool.submit([work = work_] {
      while (work->compile_one()) {
      }
    });
  }
}

void CompileAhead::help_until_compiled(const trace::Program& program) {
  if (!work_) return;
  while (!program.code.ready() && work_->compile_one()) {
  }
}

}  // namespace torch_tpu::dispatch
