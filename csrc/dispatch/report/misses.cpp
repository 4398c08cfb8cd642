#include "csrc/dispatch/report/misses.h"

#include <algorithm>
#include <cstdlib>
#include <deque>
#include <mutex>
#include <unordered_map>

#include "csrc/base/hash.h"
#include "csrc/base/journal.h"
#include "csrc/dispatch/call/mode.h"
#include "csrc/dispatch/report/causes.h"
#include "csrc/dispatch/report/waits.h"
#include "csrc/trace/bounded.h"

namespace torch_tpu::dispatch {
namespace {

// A training run has hundreds of programs; one that never settles must not fill the memory.
constexpr size_t kMaxKept = 4096;
constexpr size_t kRecentKeys = 8;

struct Record {
  const Op* op = nullptr;  // never freed once it ran
  WordsPtr key;
  WordsPtr nearest;  // null: first call of the op
  std::string where;
  int64_t time_ns = 0;
};

struct Log {
  std::mutex mutex;
  std::deque<Record> records;
  std::unordered_map<uint64_t, std::deque<WordsPtr>> recent;  // by op id, newest first
  uint64_t total = 0;
};

Log& log() {
  static auto* all = new Log();
  return *all;
}

size_t common_prefix(const Words& a, const Words& b) {
  const auto [x, y] = std::mismatch(a.begin(), a.end(), b.begin(), b.end());
  return static_cast<size_t>(x - a.begin());
}

// The values of the fields after `at` whose labels are elements of `name`: "8, 128".
std::string elements(const std::vector<Field>& fields, size_t at, const std::string& name) {
  std::string out;
  for (size_t i = at + 1; i < fields.size(); ++i) {
    if (fields[i].label.ends_with(".dim()")) continue;
    if (!fields[i].label.starts_with(name + "[")) break;
    out += (out.empty() ? "" : ", ") + fields[i].value;
  }
  return "[" + out + "]";
}

std::string signature_of(const std::vector<Field>& fields) {
  std::string out;
  const auto add = [&](const std::string& text) { out += (out.empty() ? "" : ", ") + text; };
  for (size_t i = 0; i < fields.size(); ++i) {
    const Field& field = fields[i];
    if (field.argument.empty()) continue;
    const size_t dot = field.label.rfind('.');
    if (field.label.starts_with("input[")) {
      const bool is_dtype = dot == field.label.find('.') && field.label.ends_with(".dtype");
      if (is_dtype) add(field.value + elements(fields, i, field.label.substr(0, dot) + ".shape"));
    } else if (field.label == field.argument) {
      if (field.value != "None") add(field.label + "=" + field.value);
    } else if (field.label == field.argument + ".length" && i + 1 < fields.size() &&
               fields[i + 1].argument == field.argument) {
      add(field.argument + "=" + elements(fields, i, field.argument));
    }
  }
  return out;
}

Miss describe(const Record& record) {
  Miss out;
  out.op = record.op->name;
  out.where = record.where;
  out.time_ns = record.time_ns;
  out.first = record.nearest == nullptr;
  const std::vector<Field> fields = key_fields(*record.op, *record.key);
  out.readable = !fields.empty();
  out.signature = signature_of(fields);
  if (out.first) {
    out.text = "first call of this op";
    return out;
  }
  const auto difference = first_difference(key_fields(*record.op, *record.nearest), fields);
  if (difference) {
    out.difference = *difference;
    out.text = difference->text();
  } else if (out.readable) {
    out.text = "the program was dropped";  // cleared or evicted: the same key again
  } else {
    out.text = "another call";
  }
  return out;
}

// Of the last calls of the op, from whatever line, the one with the longest common beginning.
WordsPtr nearest_of(const std::deque<WordsPtr>& recent, const Words& key) {
  WordsPtr nearest;
  size_t longest = 0;
  for (const WordsPtr& other : recent) {
    const size_t length = common_prefix(key, *other);
    if (nearest == nullptr || length > longest) {
      longest = length;
      nearest = other;
    }
  }
  return nearest;
}

// Which of its tensors are parameters, and of what sizes: layers that share a line differ in that.
uint64_t parameters_of(const Frame& frame) {
  uint64_t hash = 0;
  for (size_t i = 0; i < frame.tensors.size(); ++i) {
    c10::TensorImpl* impl = frame.tensors[i].impl;
    if (impl == nullptr || !impl->requires_grad()) continue;
    const at::Tensor tensor(
        c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>::reclaim_copy(impl));
    if (!tensor.is_leaf()) continue;
    hash = base::hash_combine(hash, i + 1);
    for (const int64_t size : tensor.sizes()) {
      hash = base::hash_combine(hash, static_cast<uint64_t>(size));
    }
  }
  return hash;
}

// The call, whoever gets the memory of what it writes: that is decided later.
uint64_t identity(const trace::Key& key, size_t donations_at, size_t num_tensors) {
  Words words(key.data(), key.data() + key.size());
  for (size_t i = 0; donations_at > 0 && i <= num_tensors / 64; ++i) {
    if (donations_at + i < words.size()) words[donations_at + i] = 0;
  }
  return base::hash_words(words);
}

std::optional<Change> compare(const Op& op, const Words& before, const Words& after) {
  const std::vector<Field> fields = key_fields(op, after);
  std::optional<Difference> difference = first_difference(key_fields(op, before), fields);
  if (!difference) return std::nullopt;
  Change change{std::move(*difference), 0};
  const std::string& label = change.difference.label;
  if (const size_t at = label.rfind(".shape["); at != label.npos) {
    const std::string rank = label.substr(0, at) + ".dim()";
    for (const Field& field : fields) {
      if (field.label == rank) change.rank = std::atoi(field.value.c_str());
    }
  }
  return change;
}

// The nearest of the calls from the same line.
WordsPtr explain(const Frame& frame, const Record& record) {
  NewCall call;
  call.name = frame.op.name;
  call.where = record.where;
  call.shown = shown_line(record.where);
  call.what = frame.op.id;
  call.parameters = parameters_of(frame);
  call.identity = identity(frame.key, frame.donations_at, frame.tensors.size());
  call.key = record.key;
  const Explained found = explain_call(call, [&](const Words& before, const Words& after) {
    return compare(frame.op, before, after);
  });
  note_thread_cause(found.cause);
  return found.nearest;
}

}  // namespace

uint64_t identity_of(const trace::Program& program) {
  return identity(program.key, program.donations_at, program.num_tensors);
}

void note_miss(const Frame& frame) noexcept {
  try {
    Record record;
    record.op = &frame.op;
    record.where = python_location();
    record.time_ns = base::journal::now_ns();
    record.key = std::make_shared<Words>(frame.key.data(), frame.key.data() + frame.key.size());
    base::journal::add(base::journal::Kind::kMiss, frame.op.name, record.time_ns, 0);
    record.nearest = explain(frame, record);
    Log& all = log();
    std::lock_guard lock(all.mutex);
    std::deque<WordsPtr>& recent = all.recent[frame.op.id];
    if (record.nearest == nullptr) record.nearest = nearest_of(recent, *record.key);
    recent.push_front(record.key);
    if (recent.size() > kRecentKeys) recent.pop_back();
    ++all.total;
    all.records.push_back(std::move(record));
    if (all.records.size() > kMaxKept) all.records.pop_front();
  } catch (...) {  // a report must never fail a call
  }
}

std::vector<Miss> misses() {
  std::vector<Record> records;
  {
    Log& all = log();
    std::lock_guard lock(all.mutex);
    records.assign(all.records.begin(), all.records.end());
  }
  std::vector<Miss> out;
  for (const Record& record : records) out.push_back(describe(record));
  return out;
}

uint64_t num_misses() noexcept {
  Log& all = log();
  std::lock_guard lock(all.mutex);
  return all.total;
}

void reset_misses() noexcept {
  reset_causes();
  Log& all = log();
  std::lock_guard lock(all.mutex);
  all.records.clear();
  all.total = 0;
}

void forget_calls() noexcept {
  forget_causes();
  Log& all = log();
  std::lock_guard lock(all.mutex);
  all.recent.clear();
}

std::string describe_news(const trace::FusedProgram& program) {
  if (program.bounds) {
    const trace::Bounds& bounds = *program.bounds;
    const auto text = [&](const trace::Point& sizes) {
      std::string out = std::to_string(sizes[0]);
      for (size_t s = 1; s < bounds.symbols; ++s) out += " x " + std::to_string(sizes[s]);
      return out;
    };
    return "for sizes from " + text(bounds.low) + " to " + text(bounds.high) + ", in buffers for " +
           text(bounds.bound);
  }
  const trace::FusedProgram::News& news = program.news;
  if (news.alone) return "no program like it before";
  if (!news.before && !news.after) return "the same ops, other results held or given away";
  std::string out =
      "op " + std::to_string(news.at + 1) + " of " + std::to_string(program.nodes.size()) + ": ";
  if (!news.after) return "it ends after op " + std::to_string(news.at);
  if (!news.before) return out + news.after->name + " where another ended";
  if (news.before->name != news.after->name) {
    return out + news.before->name + " → " + news.after->name;
  }
  out += news.after->name + ": ";
  const Op& op = find_op(news.after->name);
  const auto words = [](const trace::Key& key) { return std::span(key.data(), key.size()); };
  const auto difference = first_difference(key_fields(op, words(news.before->key)),
                                           key_fields(op, words(news.after->key)));
  return out + (difference ? difference->text() : "another call");
}

}  // namespace torch_tpu::dispatch
