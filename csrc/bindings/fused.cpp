// Fused Eager for Python: when programs are compiled, what was cut, and waiting for the background.
#include <cstdio>
#include <unordered_map>

#include "csrc/bindings/bindings.h"
#include "csrc/cache/compile_pool.h"
#include "csrc/cache/fused_cache.h"
#include "csrc/cache/program_info.h"
#include "csrc/dispatch/fuse/pending.h"
#include "csrc/dispatch/program/build.h"
#include "csrc/dispatch/report/misses.h"
#include "csrc/trace/bounded.h"
#include "csrc/trace/family.h"

namespace torch_tpu::bindings {
namespace {

using NoGil = py::call_guard<py::gil_scoped_release>;
using State = trace::Code::State;

const char* state_name(State state) {
  switch (state) {
    case State::kAbsent:
      return "seen";
    case State::kCompiling:
      return "compiling";
    case State::kReady:
      return "ready";
    case State::kFailed:
      return "failed";
  }
  return "?";
}

std::string static_because(const trace::FusedProgram& program) {
  const std::shared_ptr<trace::Family> family = program.family();
  return family ? family->refusal() : std::string();
}

// Of one size that varies a number, of two a tuple.
py::object bound_of(const trace::FusedProgram& program) {
  if (!program.bounds) return py::none();
  const trace::Point& bound = program.bounds->bound;
  if (program.bounds->symbols == 1) return py::cast(bound[0]);
  return py::cast(std::pair(bound[0], bound[1]));
}

// From and to.
py::object sizes_of(const trace::FusedProgram& program) {
  if (!program.bounds) return py::none();
  const trace::Point &low = program.bounds->low, &high = program.bounds->high;
  if (program.bounds->symbols == 1) return py::cast(std::pair(low[0], high[0]));
  return py::make_tuple(std::pair(low[0], high[0]), std::pair(low[1], high[1]));
}

py::list fused_programs() {
  py::list out;
  for (const trace::FusedPtr& program : cache::FusedCache::get().programs()) {
    const State state = program->code.state();
    char fingerprint[20];
    std::snprintf(fingerprint, sizeof fingerprint, "%016llx",
                  static_cast<unsigned long long>(program->fingerprint));
    py::list ops;
    for (const trace::ProgramPtr& node : program->nodes) ops.append(node->name);
    py::dict item;
    item["name"] = program->name;
    item["fingerprint"] = fingerprint;
    item["ops"] = ops;
    item["state"] = state_name(state);
    item["sights"] = program->sights.load();
    item["runs"] = program->runs.load();
    item["inputs"] = program->num_externals;
    item["outputs"] = program->alive.size();
    item["donated"] = program->donated.size();
    item["compile_seconds"] = state == State::kReady ? program->code.compile_seconds() : 0.0;
    item["news"] = dispatch::describe_news(*program);
    item["bound"] = bound_of(*program);
    item["sizes"] = sizes_of(*program);
    item["static_because"] = static_because(*program);
    item["failure"] = state == State::kFailed ? program->code.failure() : std::string();
    out.append(std::move(item));
  }
  return out;
}

py::dict fused_counts() {
  const cache::FusedStats stats = cache::FusedCache::get().stats();
  py::dict out;
  out["hits"] = stats.hits;
  out["misses"] = stats.misses;
  out["failures"] = stats.failures;
  out["evictions"] = stats.evictions;
  out["bounded"] = stats.bounded;
  out["bounded_runs"] = stats.bounded_runs;
  return out;
}

// The same for reports that list all kinds of programs.
std::vector<cache::ProgramInfo> describe_fused() {
  std::vector<cache::ProgramInfo> out;
  for (const trace::FusedPtr& program : cache::FusedCache::get().programs()) {
    cache::ProgramInfo info;
    info.name = program->name;
    info.fused = true;
    std::unordered_map<std::string, size_t> places;
    for (const trace::ProgramPtr& node : program->nodes) {
      const auto [at, fresh] = places.try_emplace(node->name, info.ops.size());
      if (fresh) info.ops.emplace_back(node->name, 0);
      ++info.ops[at->second].second;
    }
    info.fingerprint = program->fingerprint;
    info.runs = program->runs.load();
    info.hits = program->sights.load() - 1;
    info.reason = dispatch::describe_news(*program);
    info.describe(program->code, program);
    out.push_back(std::move(info));
  }
  return out;
}

}  // namespace

void bind_fused(py::module_& m) {
  dispatch::register_fused();
  m.def("_fused_programs", &fused_programs, "A dict per fused program, as first met.");
  cache::add_program_source(&describe_fused);
  m.def("_fused_counts", &fused_counts, "Fused programs found, met first, failed, forgotten.");
  m.def(
      "_reset_fused_counts", [] { cache::FusedCache::get().reset_stats(); }, "Sets them to zero.");
  m.def(
      "_fused_flush", [] { dispatch::launch_all(dispatch::Cut::kUserFlush); }, NoGil(),
      "Launches what is pending on all devices.");
  m.def(
      "_fused_wait", [] { cache::CompilePool::get().wait(); }, NoGil(),
      "Waits for background compiles.");
  m.def(
      "_fused_stop", [] { cache::CompilePool::get().stop(); }, NoGil(),
      "Ends the threads that compile; what is queued is dropped.");
  m.def("_compile_programs", &dispatch::compile_all, NoGil(),
        "Compiles the programs of single ops that were only described so far; which failed.");
  m.def(
      "_fused_busy", [] { return cache::CompilePool::get().busy(); }, NoGil(),
      "Programs queued for or in compilation.");
  m.def(
      "_set_fused_compile",
      [](const std::string& text) {
        dispatch::set_compile_when(base::parse_compile_when(text, "compile_when"));
      },
      py::arg("when"), "When fused programs are compiled: first, second or never.");
  m.def(
      "_get_fused_compile", [] { return base::to_string(dispatch::compile_when()); },
      "When fused programs are compiled.");
  m.def(
      "_set_fused_limits",
      [](int64_t min_nodes, int64_t max_nodes, int64_t max_bytes) {
        TORCH_CHECK_VALUE(min_nodes > 0 && max_nodes > 0, "node counts must be positive");
        dispatch::set_planner_limits(
            {static_cast<size_t>(min_nodes), static_cast<size_t>(max_nodes), max_bytes});
      },
      py::arg("min_nodes"), py::arg("max_nodes"), py::arg("max_bytes"), NoGil(),
      "Sets the planner's limits on all devices.");
  m.def(
      "_get_fused_limits",
      [](int device) {
        const trace::PlannerLimits limits = dispatch::planner_limits(device);
        return std::tuple(limits.min_nodes, limits.max_nodes, limits.max_bytes);
      },
      py::arg("device") = 0, NoGil(), "(min_nodes, max_nodes, max_bytes) of the planner.");
}

}  // namespace torch_tpu::bindings
