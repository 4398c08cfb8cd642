// Fused Eager for Python: when programs are compiled, what was cut, and waiting for the background.
#include <cstdio>
#include <map>
#include <unordered_map>

#include "csrc/bindings/bindings.h"
#include "csrc/cache/compile_pool.h"
#include "csrc/cache/fused_cache.h"
#include "csrc/cache/program_info.h"
#include "csrc/dispatch/fuse/pending.h"
#include "csrc/dispatch/program/build.h"
#include "csrc/dispatch/report/causes.h"
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

// Which pieces belong together, and how often each size of a bounded program was met.
struct Families {
  explicit Families(const std::vector<trace::FusedPtr>& programs) {
    for (const trace::FusedPtr& piece : programs) {
      const std::shared_ptr<trace::Family> family = piece->family();
      if (!family) continue;
      const int number =
          numbers.try_emplace(family.get(), static_cast<int>(numbers.size())).first->second;
      of_program[piece.get()] = number;
      const trace::FusedProgram::Service* service = piece->service();
      if (service == nullptr) continue;
      of_program[service->program.get()] = number;
      members[service->program.get()][service->sizes] += piece->sights.load();
    }
  }

  std::unordered_map<const trace::Family*, int> numbers;
  std::unordered_map<const trace::FusedProgram*, int> of_program;
  std::unordered_map<const trace::FusedProgram*, std::map<trace::Point, uint64_t>> members;
};

// What is computed over what is asked for: the sizes of the buffers over those met.
double padding_of(const trace::Bounds& bounds, const std::map<trace::Point, uint64_t>& members) {
  double asked = 0, done = 0;
  for (const auto& [size, times] : members) {
    const auto elements = [](const trace::Point& sizes) {
      return static_cast<double>(sizes[0]) * static_cast<double>(sizes[1]);
    };
    asked += elements(size) * static_cast<double>(times);
    done += elements(bounds.high) * static_cast<double>(times);
  }
  return asked > 0 ? done / asked : 1.0;
}

// The line of the first op that has one.
std::string where(const trace::FusedProgram& program) {
  for (const trace::ProgramPtr& node : program.nodes) {
    if (std::string line = dispatch::line_of(dispatch::identity_of(*node)); !line.empty()) {
      return line;
    }
  }
  return "";
}

// Of one size that varies a number, of two a tuple.
py::object sizes_in_python(const trace::Bounds& bounds, const trace::Point& sizes) {
  if (bounds.symbols == 1) return py::cast(sizes[0]);
  return py::cast(std::pair(sizes[0], sizes[1]));
}

// From and to, of each.
py::object range_of(const trace::Bounds& bounds) {
  const trace::Point &low = bounds.low, &high = bounds.high;
  if (bounds.symbols == 1) return py::cast(std::pair(low[0], high[0]));
  return py::make_tuple(std::pair(low[0], high[0]), std::pair(low[1], high[1]));
}

py::dict members_in_python(const trace::Bounds& bounds,
                           const std::map<trace::Point, uint64_t>& members) {
  py::dict out;
  for (const auto& [sizes, times] : members) {
    out[sizes_in_python(bounds, sizes)] = times;
  }
  return out;
}

py::list fused_programs() {
  py::list out;
  const std::vector<trace::FusedPtr> programs = cache::FusedCache::get().programs();
  const Families families(programs);
  for (const trace::FusedPtr& program : programs) {
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
    const trace::Bounds* bounds = program->bounds.get();
    item["bound"] =
        bounds == nullptr ? py::object(py::none()) : sizes_in_python(*bounds, bounds->bound);
    item["sizes"] = bounds == nullptr ? py::object(py::none()) : range_of(*bounds);
    const auto family = families.of_program.find(program.get());
    item["family"] =
        family == families.of_program.end() ? py::object(py::none()) : py::cast(family->second);
    const trace::FusedProgram::Service* service = program->service();
    item["size"] = service == nullptr ? py::object(py::none())
                                      : sizes_in_python(*service->program->bounds, service->sizes);
    const auto members = families.members.find(program.get());
    const bool serves = bounds != nullptr && members != families.members.end();
    item["members"] =
        serves ? py::object(members_in_python(*bounds, members->second)) : py::object(py::none());
    item["padding"] =
        serves ? py::cast(padding_of(*bounds, members->second)) : py::object(py::none());
    item["where"] = where(*program);
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
