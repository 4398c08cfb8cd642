// torch.profiler: our spans as it runs. On the host they are ranges among PyTorch's own ops (with
// its stacks); what the device did is a child profiler of Kineto's, so that tables, events and
// exported traces have it. While no profiler runs, nothing here is called.
#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <ATen/record_function.h>
#include <IActivityProfiler.h>
#include <libkineto.h>
#include <output_base.h>
#include <sys/syscall.h>
#include <unistd.h>
#if __has_include(<torch/csrc/profiler/standalone/privateuse1_profiler.h>)
#include <torch/csrc/profiler/standalone/privateuse1_profiler.h>
#define TORCH_TPU_HAS_PROFILER_REGISTRY
#endif

#include "csrc/base/gil.h"
#include "csrc/base/interrupt.h"
#include "csrc/base/journal.h"
#include "csrc/dispatch/call/mode.h"
#include "csrc/dispatch/report/profile_collective.h"
#include "csrc/dispatch/report/profile_execution.h"
#include "csrc/pjrt/buffer.h"
#include "csrc/pjrt/client.h"
#include "csrc/pjrt/runtime.h"

namespace torch_tpu::dispatch {
namespace {

using base::journal::Kind;
using libkineto::ActivityType;

// Rows of the device in a trace.
enum Row : int32_t { kCompute = 0, kTransfers = 1, kCollectives = 2 };

struct Record {
  Kind kind = Kind::kWarning;
  std::string text;
  uint64_t program = 0;
  int64_t nodes = 0;
  int64_t bytes = 0;
  IssueLine line{};
  int64_t start_ns = 0;
  int64_t end_ns = 0;   // on the host
  int64_t done_ns = 0;  // on the device, where it is known
  int32_t thread = 0;
  int device = 0;
  int64_t correlation = 0;
  std::string group;      // of a collective
  std::string detail;     // of a collective: dtype, sizes, reduction
  uint64_t seq = 0;       // of a collective, in its group
  bool in_range = false;  // PyTorch has it on the host's row
  bool failed = false;
};
using RecordPtr = std::shared_ptr<Record>;

// All spans of the running session. Leaked: a callback of the device may come at any time. Nothing
// is called under its mutex that takes another lock, nor Python's: threads with that lock want it.
struct Collection {
  std::mutex mutex;
  std::condition_variable settled;
  int64_t programs = 0;     // that run; they end without Python's lock
  int64_t collectives = 0;  // that run; they may need it, to name a line or to free a tensor
  bool on = false;
  std::vector<RecordPtr> records;
};
Collection& collection() {
  static auto* all = new Collection();
  return *all;
}

struct OpenSpan {
  std::optional<at::RecordFunction> range;
  RecordPtr record;
  OpenSpan* outer = nullptr;
};
thread_local OpenSpan* innermost = nullptr;
thread_local std::vector<uint64_t> correlations;

const char* verb(Kind kind) {
  switch (kind) {
    case Kind::kLaunch:
    case Kind::kOpLaunch:
      return "execute";
    case Kind::kHostRead:
      return "read";
    default:
      return base::journal::name(kind);
  }
}

bool on_device(Kind kind) {
  return kind == Kind::kLaunch || kind == Kind::kOpLaunch || kind == Kind::kHostRead ||
         kind == Kind::kUpload || kind == Kind::kCollective;
}

std::string title(const Record& record) {
  std::string out = std::string("tpu::") + verb(record.kind);
  if (!record.text.empty()) out += " " + record.text;
  return out;
}

void* begin(Kind kind, std::string_view text, uint64_t program, int64_t nodes,
            int64_t bytes) noexcept {
  try {
    auto record = std::make_shared<Record>();
    record->kind = kind;
    record->text = text;
    record->program = program;
    record->nodes = nodes;
    record->bytes = bytes;
    record->line = issue_line();
    record->thread = static_cast<int32_t>(::syscall(SYS_gettid));
    auto open = std::make_unique<OpenSpan>();
    open->range.emplace(at::RecordScope::FUNCTION);
    if (open->range->isActive()) {
      open->range->before(title(*record));
      record->in_range = true;
    }
    if (!correlations.empty()) record->correlation = static_cast<int64_t>(correlations.back());
    record->start_ns = base::journal::now_ns();
    open->record = std::move(record);
    open->outer = innermost;
    innermost = open.get();
    return open.release();
  } catch (...) {  // no memory: the span is missing from the trace
    return nullptr;
  }
}

void end(void* span, bool failed) noexcept {
  const std::unique_ptr<OpenSpan> open(static_cast<OpenSpan*>(span));
  if (!open) return;
  innermost = open->outer;
  open->record->end_ns = base::journal::now_ns();
  open->record->failed = failed;
  try {
    Collection& all = collection();
    const std::lock_guard lock(all.mutex);
    if (all.on) all.records.push_back(open->record);
  } catch (...) {
  }
}

constexpr base::journal::Tracer kTracer{&begin, &end};

// Kineto's clock is the system's, ours is steady.
int64_t clock_offset() {
  using namespace std::chrono;
  const auto system = duration_cast<nanoseconds>(system_clock::now().time_since_epoch()).count();
  return system - base::journal::now_ns();
}

// Text goes into JSON as it is.
std::string plain(std::string text) {
  std::replace_if(
      text.begin(), text.end(), [](unsigned char c) { return c < 0x20 || c == '"' || c == '\\'; },
      '\'');
  return text;
}

class Session : public libkineto::IActivityProfilerSession {
 public:
  explicit Session(bool device) : device_(device) {}
  ~Session() override { quit(); }

  void start() override {
    Collection& all = collection();
    {
      const std::lock_guard lock(all.mutex);
      all.records.clear();
      all.on = true;
    }
    running_ = true;
    base::journal::set_tracer(&kTracer);
    status_ = libkineto::TraceStatus::RECORDING;
  }

  void stop() override {
    if (!running_) return;
    base::journal::set_tracer(nullptr);
    Collection& all = collection();
    std::unique_lock lock(all.mutex);
    // What was launched within the session ends within it. A device that hangs is not our error.
    // PyTorch calls this with Python's lock and Kineto's: letting go of the one here and taking it
    // again would be in vain for ever where another thread has it and wants the other. So
    // collectives are waited for before, in profile_settle; these are another thread's.
    using namespace std::chrono_literals;
    all.settled.wait_for(lock, 10s, [&] { return all.programs == 0; });
    all.settled.wait_for(lock, 500ms, [&] { return all.collectives == 0; });
    records_ = std::move(all.records);
    all.records.clear();
    all.on = false;
    running_ = false;
    status_ = libkineto::TraceStatus::PROCESSING;
  }

  std::vector<std::string> errors() override { return {}; }

  void processTrace(libkineto::ActivityLogger& logger) override {
    process(logger, [](int32_t) { return nullptr; });
  }
  void processTrace(libkineto::ActivityLogger& logger, libkineto::getLinkedActivityCallback linked,
                    int64_t, int64_t) override {
    process(logger, linked);
  }

  std::unique_ptr<libkineto::DeviceInfo> getDeviceInfo() override {
    if (!device_) return nullptr;
    return std::make_unique<libkineto::DeviceInfo>(libkineto::DeviceInfo{0, 0, "tpu", "tpu 0"});
  }
  std::vector<libkineto::ResourceInfo> getResourceInfos() override {
    if (!device_) return {};
    return {{kCompute, kCompute, 0, "programs"},
            {kTransfers, kTransfers, 0, "transfers"},
            {kCollectives, kCollectives, 0, "collectives"}};
  }
  std::unique_ptr<libkineto::CpuTraceBuffer> getTraceBuffer() override {
    return std::move(buffer_);
  }

  void pushCorrelationId(uint64_t id) override { correlations.push_back(id); }
  void popCorrelationId() override {
    if (!correlations.empty()) correlations.pop_back();
  }

 private:
  void quit() noexcept {
    if (!running_) return;
    base::journal::set_tracer(nullptr);
    const std::lock_guard lock(collection().mutex);
    collection().on = false;
    collection().records.clear();
  }

  void process(libkineto::ActivityLogger& logger,
               const libkineto::getLinkedActivityCallback& linked) {
    offset_ = clock_offset();
    buffer_ = std::make_unique<libkineto::CpuTraceBuffer>();
    buffer_->span = libkineto::TraceSpan(0, 0, "tpu");
    buffer_->gpuOpCount = 0;
    std::stable_sort(records_.begin(), records_.end(),
                     [](const auto& a, const auto& b) { return a->start_ns < b->start_ns; });
    std::vector<int64_t> ends;  // of programs
    for (const RecordPtr& record : records_) {
      if (record->done_ns != 0) ends.push_back(record->done_ns);
    }
    std::sort(ends.begin(), ends.end());
    std::map<int, int64_t> free_at;  // by device
    for (const RecordPtr& record : records_) {
      if (!record->in_range) add(logger, *record, record->start_ns, record->end_ns, nullptr, false);
      if (!device_ || !on_device(record->kind)) continue;
      int64_t start = record->start_ns;
      const int64_t done = record->done_ns != 0 ? record->done_ns : record->end_ns;
      if (record->done_ns != 0) {
        // A device runs one program after the other: before the last one ended, this one waited.
        int64_t& free = free_at[record->device];
        if (free < done) start = std::max(start, free);
        free = std::max(free, done);
      } else if (record->kind == Kind::kHostRead) {
        // A read waits for the programs before it, some of which it compiles and runs itself.
        const auto after = std::upper_bound(ends.begin(), ends.end(), done);
        if (after != ends.begin()) start = std::max(start, *(after - 1));
      }
      const auto* host =
          record->correlation != 0 ? linked(static_cast<int32_t>(record->correlation)) : nullptr;
      add(logger, *record, start, done, host, true);
    }
  }

  void add(libkineto::ActivityLogger& logger, const Record& record, int64_t start, int64_t end,
           const libkineto::ITraceActivity* host, bool device) {
    ActivityType type = ActivityType::PRIVATEUSE1_RUNTIME;
    int32_t row = record.thread;
    if (device) {
      const bool moves = record.kind == Kind::kHostRead || record.kind == Kind::kUpload;
      type = moves ? ActivityType::GPU_MEMCPY : ActivityType::CONCURRENT_KERNEL;
      row = moves ? kTransfers : record.kind == Kind::kCollective ? kCollectives : kCompute;
    }
    buffer_->emplace_activity(buffer_->span, type, plain(title(record)));
    libkineto::GenericTraceActivity& out = *buffer_->activities.back();
    out.startTime = start + offset_;
    out.endTime = end + offset_;
    out.id = static_cast<int32_t>(record.correlation);
    out.device = device ? record.device : static_cast<int32_t>(::getpid());
    out.resource = row;
    out.threadId = record.thread;
    out.linked = host;
    out.addMetadataQuoted("kind", base::journal::name(record.kind));
    if (record.program != 0) out.addMetadataQuoted("program", std::to_string(record.program));
    if (record.nodes != 0) out.addMetadata("ops", record.nodes);
    if (record.bytes != 0) out.addMetadata("bytes", record.bytes);
    if (!record.group.empty()) {
      out.addMetadataQuoted("group", plain(record.group));
      out.addMetadata("seq", static_cast<int64_t>(record.seq));
    }
    if (!record.detail.empty()) out.addMetadataQuoted("detail", plain(record.detail));
    if (record.failed) out.addMetadata("failed", "true");
    const std::string line = plain(describe(record.line));
    if (!line.empty()) out.addMetadataQuoted("python", line);
    if (device) ++buffer_->gpuOpCount;
    out.log(logger);
  }

  const bool device_;
  bool running_ = false;
  int64_t offset_ = 0;
  std::vector<RecordPtr> records_;
  std::unique_ptr<libkineto::CpuTraceBuffer> buffer_;
};

class Profiler : public libkineto::IActivityProfiler {
 public:
  const std::string& name() const override { return name_; }
  const std::set<ActivityType>& availableActivities() const override { return types_; }

  std::unique_ptr<libkineto::IActivityProfilerSession> configure(
      const std::set<ActivityType>& types, const libkineto::Config&) override {
    // ProfilerActivity.PrivateUse1; the host's own types come with ProfilerActivity.CPU too.
    return std::make_unique<Session>(types.contains(ActivityType::CONCURRENT_KERNEL));
  }
  std::unique_ptr<libkineto::IActivityProfilerSession> configure(
      int64_t, int64_t, const std::set<ActivityType>& types,
      const libkineto::Config& config) override {
    return configure(types, config);
  }

 private:
  const std::string name_ = "tpu";
  const std::set<ActivityType> types_ = {ActivityType::CONCURRENT_KERNEL, ActivityType::GPU_MEMCPY,
                                         ActivityType::PRIVATEUSE1_RUNTIME,
                                         ActivityType::PRIVATEUSE1_DRIVER};
};

std::unique_ptr<libkineto::IActivityProfiler> make_profiler() {
  return std::make_unique<Profiler>();
}

const bool registered = [] {
#ifdef TORCH_TPU_HAS_PROFILER_REGISTRY
  torch::profiler::impl::PrivateUse1ProfilerRegistry::instance().registerFactory(&make_profiler);
#else
  libkineto::api().registerProfilerFactory(&make_profiler);
#endif
  return true;
}();

}  // namespace

void profile_execution(PJRT_Buffer* out, int device) noexcept {
  if (innermost == nullptr) return;
  Collection& all = collection();
  bool counted = false;
  try {
    const RecordPtr record = innermost->record;
    record->device = device;
    pjrt::Buffer buffer(pjrt::Runtime::get().client().api(), out);
    pjrt::Event ready;
    try {
      ready = buffer.ready_event();
    } catch (...) {
    }
    static_cast<void>(buffer.release());  // the caller's
    {
      const std::lock_guard lock(all.mutex);
      ++all.programs;
      counted = true;
    }
    ready.on_ready([record](const pjrt::Error*) {
      Collection& all = collection();
      const std::lock_guard lock(all.mutex);
      record->done_ns = base::journal::now_ns();
      --all.programs;
      all.settled.notify_all();
    });
  } catch (...) {  // the end on the host stands for it
    if (!counted) return;
    const std::lock_guard lock(all.mutex);
    --all.programs;
  }
}

bool profile_collective_begin() noexcept {
  Collection& all = collection();
  const std::lock_guard lock(all.mutex);
  if (all.on) ++all.collectives;
  return all.on;
}

void profile_settle() {
  if (!base::journal::traced()) return;
  Collection& all = collection();
  std::unique_lock lock(all.mutex);
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  base::wait_interruptibly(all.settled, lock, until,
                           [&] { return all.programs == 0 && all.collectives == 0; });
}

void profile_collective_end(const CollectiveSpan& span) noexcept {
  Collection& all = collection();
  RecordPtr record;
  try {
    record = std::make_shared<Record>();
    record->kind = Kind::kCollective;
    record->text = span.op;
    record->group = span.group;
    record->detail = span.detail;
    record->seq = span.seq;
    record->bytes = span.bytes;
    record->device = span.device;
    record->line = span.line;
    record->start_ns = span.start_ns;
    record->end_ns = span.end_ns;
    record->failed = span.failed;
    record->in_range = true;  // c10d's own range is on the host's row
  } catch (...) {             // no memory: the span is missing from the trace
    record = nullptr;
  }
  const std::lock_guard lock(all.mutex);
  --all.collectives;
  all.settled.notify_all();
  try {
    if (all.on && record) all.records.push_back(std::move(record));
  } catch (...) {
  }
}

}  // namespace torch_tpu::dispatch
