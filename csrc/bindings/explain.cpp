// What torch_tpu.explain() and torch_tpu.stats() are made of: journal, programs and misses.

#include "csrc/base/env.h"
#include "csrc/base/journal.h"
#include "csrc/bindings/bindings.h"
#include "csrc/cache/program_info.h"
#include "csrc/dispatch/report/causes.h"
#include "csrc/dispatch/report/misses.h"

namespace torch_tpu::bindings {
namespace {

namespace journal = base::journal;

constexpr double kSecond = 1e-9;

py::dict count_dict(const journal::Count& count) {
  py::dict out;
  out["count"] = count.events;
  out["seconds"] = static_cast<double>(count.ns) * kSecond;
  out["bytes"] = count.bytes;
  return out;
}

py::dict journal_counts() {
  py::dict kinds;
  for (int i = 0; i < journal::kNumKinds; ++i) {
    const auto kind = static_cast<journal::Kind>(i);
    kinds[journal::name(kind)] = count_dict(journal::count_of(kind));
  }
  py::dict cuts;
  for (int i = 0; i < journal::kNumCuts; ++i) {
    const auto reason = static_cast<journal::Cut>(i);
    if (const uint64_t count = journal::cuts(reason); count > 0)
      cuts[journal::name(reason)] = count;
  }
  py::dict out;
  out["kinds"] = kinds;
  out["cuts"] = cuts;
  out["background_compiles"] = journal::background_compiles();
  return out;
}

py::list journal_totals() {
  const std::vector<std::string> texts = journal::texts();
  py::list out;
  for (const journal::Total& total : journal::totals()) {
    py::dict row = count_dict(total.count);
    row["kind"] = journal::name(total.kind);
    row["text"] = texts.at(total.text);
    out.append(row);
  }
  return out;
}

// Rows of (kind, thread, text, start, duration, program, nodes, bytes), times in seconds.
py::dict journal_events() {
  const std::vector<journal::Event> events = journal::events();
  const std::vector<std::string> texts = journal::texts();  // after the events: has all of theirs
  py::list rows;
  for (const journal::Event& event : events) {
    rows.append(py::make_tuple(journal::name(event.kind), event.thread, texts.at(event.text),
                               static_cast<double>(event.start_ns) * kSecond,
                               static_cast<double>(event.duration_ns) * kSecond, event.program,
                               event.nodes, event.bytes));
  }
  py::dict out;
  out["events"] = rows;
  out["threads"] = journal::thread_names();
  out["dropped"] = journal::dropped();
  out["now"] = static_cast<double>(journal::now_ns()) * kSecond;
  return out;
}

bool record(const std::string& kind, bool on) {
  for (int i = 0; i < journal::kNumKinds; ++i) {
    const auto one = static_cast<journal::Kind>(i);
    if (kind != journal::name(one)) continue;
    const bool before = journal::enabled(one);
    journal::enable(one, on);
    return before;
  }
  throw py::value_error("no kind of event '" + kind + "'");
}

py::list programs(bool memory) {
  py::list out;
  for (const cache::ProgramInfo& info : cache::all_programs()) {
    py::dict row;
    row["name"] = info.name;
    row["fused"] = info.fused;
    row["ops"] = info.ops;
    row["fingerprint"] = info.fingerprint;
    row["runs"] = info.runs;
    row["hits"] = info.hits;
    row["compile_seconds"] = info.compile_seconds;
    row["origin"] = cache::name(info.origin);
    row["state"] = cache::name(info.state);
    row["reason"] = info.reason;
    if (memory) {
      const pjrt::CompiledMemoryStats stats = cache::memory_of(info);
      row["argument_bytes"] = stats.argument_bytes;
      row["output_bytes"] = stats.output_bytes;
      row["temp_bytes"] = stats.temp_bytes;
    }
    out.append(row);
  }
  return out;
}

py::list misses() {
  py::list out;
  for (const dispatch::Miss& miss : dispatch::misses()) {
    py::dict row;
    row["op"] = miss.op;
    row["where"] = miss.where;
    row["time"] = static_cast<double>(miss.time_ns) * kSecond;
    row["first"] = miss.first;
    row["readable"] = miss.readable;
    row["signature"] = miss.signature;
    row["text"] = miss.text;
    row["label"] = miss.difference.label;
    row["argument"] = miss.difference.argument;
    row["before"] = miss.difference.before;
    row["after"] = miss.difference.after;
    row["others"] = miss.difference.others;
    out.append(row);
  }
  return out;
}

const char* kind_name(dispatch::Cause::Kind kind) {
  switch (kind) {
    case dispatch::Cause::Kind::kFirst:
      return "first";
    case dispatch::Cause::Kind::kChange:
      return "change";
    case dispatch::Cause::Kind::kOrder:
      return "order";
  }
  return "?";
}

py::list causes() {
  py::list out;
  for (const dispatch::Cause& cause : dispatch::causes()) {
    py::dict row;
    row["kind"] = kind_name(cause.kind);
    row["graph"] = cause.graph;
    row["where"] = cause.where;
    row["name"] = cause.name;
    row["label"] = cause.change.label;
    row["argument"] = cause.change.argument;
    row["values"] = cause.values;
    row["value_waited"] = cause.value_waited;
    row["ops"] = cause.ops;
    row["calls"] = cause.calls;
    row["programs"] = cause.programs;
    row["waited_seconds"] = cause.waited;
    row["compile_seconds"] = cause.compiled;
    row["text"] = dispatch::in_words(cause);
    row["advice"] = dispatch::advice(cause);
    out.append(row);
  }
  return out;
}

}  // namespace

void bind_explain(py::module_& m) {
  m.def("_journal_counts", &journal_counts, "Counts by kind of event, and cuts by reason.");
  m.def("_journal_totals", &journal_totals, "Counts by kind of event and text.");
  m.def("_journal_events", &journal_events, "The newest events, oldest first.");
  m.def(
      "_journal_reset",
      [] {
        journal::reset();
        dispatch::reset_misses();
      },
      "Forgets events, counts and misses.");
  m.def("_forget_calls", &dispatch::forget_calls,
        "Forgets the calls that misses are compared with; for tests.");
  m.def("_journal_record", &record, py::arg("kind"), py::arg("on"),
        "Whether events of that kind are kept; returns what was so before.");
  m.def("_programs", &programs, py::arg("memory") = false, "The programs in memory.");
  m.def("_misses", &misses, "The newest calls that had no program, and why.");
  m.def("_causes", &causes, "Why programs were compiled, and what was waited for them.");
  m.def("_env_explain", &base::env_explain, "TORCH_TPU_EXPLAIN.");
  m.def("_env_compile_notice", &base::env_compile_notice, "TORCH_TPU_COMPILE_NOTICE.");
  m.def("_env_log_compiles", &base::env_log_compiles, "TORCH_TPU_LOG_COMPILES.");
}

}  // namespace torch_tpu::bindings
