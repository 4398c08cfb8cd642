#include "csrc/distributed/flight.h"

#include <chrono>
#include <cstdio>
#include <sstream>

#include <sys/stat.h>
#include <unistd.h>

#include "csrc/base/env.h"
#include "csrc/dispatch/call/mode.h"

namespace torch_tpu::distributed {
namespace {

double now() {
  using namespace std::chrono;
  return duration<double>(system_clock::now().time_since_epoch()).count();
}

}  // namespace

const char* name_of(Flight::State state) noexcept {
  static const char* const kNames[] = {"queued", "running", "done", "failed"};
  return kNames[static_cast<size_t>(state)];
}

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      char code[8];
      std::snprintf(code, sizeof code, "\\u%04x", static_cast<unsigned>(c));
      out += code;
    } else {
      out += c;
    }
  }
  return out + "\"";
}

Flight::Flight() : ring_(static_cast<size_t>(base::env_flight_size())) {}

Flight& Flight::get() {
  static auto* flight = new Flight();  // leaked: threads use it at exit
  return *flight;
}

Flight::Entry* Flight::find(uint64_t id) {
  Entry& entry = ring_[id % ring_.size()];
  return entry.id == id && id < next_ ? &entry : nullptr;
}

uint64_t Flight::add(Entry entry) {
  entry.issued = now();
  std::lock_guard lock(mutex_);
  entry.id = next_++;
  const uint64_t id = entry.id;
  ring_[id % ring_.size()] = std::move(entry);
  return id;
}

void Flight::start(uint64_t id) {
  std::lock_guard lock(mutex_);
  if (Entry* entry = find(id)) {
    entry->state = State::kRunning;
    entry->started = now();
  }
}

void Flight::over_host(uint64_t id) {
  std::lock_guard lock(mutex_);
  if (Entry* entry = find(id)) entry->on_device = false;
}

void Flight::finish(uint64_t id, const std::string& error) {
  std::lock_guard lock(mutex_);
  Entry* entry = find(id);
  if (entry == nullptr || entry->finished > 0) return;
  entry->state = error.empty() ? State::kDone : State::kFailed;
  entry->finished = now();
  entry->error = error;
}

std::vector<Flight::Entry> Flight::entries() {
  std::lock_guard lock(mutex_);
  std::vector<Entry> result;
  const uint64_t count = std::min<uint64_t>(next_, ring_.size());
  for (uint64_t id = next_ - count; id < next_; ++id) {
    if (ring_[id % ring_.size()].issued > 0) result.push_back(ring_[id % ring_.size()]);
  }
  return result;
}

void Flight::clear() {
  std::lock_guard lock(mutex_);
  for (Entry& entry : ring_) entry = Entry();
}

void Flight::set_rank(int rank, int world_size) {
  std::lock_guard lock(mutex_);
  rank_ = rank;
  world_size_ = world_size;
}

std::string Flight::json(const std::string& reason) {
  const std::vector<Entry> all = entries();
  char host[256] = "";
  gethostname(host, sizeof host - 1);
  std::ostringstream out;
  out.precision(17);
  out << "{\"version\": 1, \"rank\": " << rank_ << ", \"world_size\": " << world_size_
      << ", \"host\": " << quoted(host) << ", \"pid\": " << getpid() << ", \"time\": " << now()
      << ", \"reason\": " << quoted(reason) << ",\n\"collectives\": [";
  const char* separator = "\n";
  for (const Entry& entry : all) {
    out << separator << "{\"id\": " << entry.id << ", \"group\": " << quoted(entry.group)
        << ", \"seq\": " << entry.seq << ", \"op\": " << quoted(entry.op)
        << ", \"detail\": " << quoted(entry.detail) << ", \"peer\": " << entry.peer
        << ", \"rank\": " << entry.rank << ", \"bytes\": " << entry.bytes
        << ", \"transport\": " << (entry.on_device ? "\"xla\"" : "\"host\"")
        << ", \"where\": " << quoted(dispatch::describe(entry.line)) << ", \"state\": \""
        << name_of(entry.state) << "\", \"issued\": " << entry.issued
        << ", \"started\": " << entry.started << ", \"finished\": " << entry.finished
        << ", \"error\": " << quoted(entry.error) << "}";
    separator = ",\n";
  }
  out << "\n]}\n";
  return out.str();
}

std::string Flight::dump(const std::string& reason) noexcept {
  try {
    const std::string folder = base::env_flight();
    if (folder.empty()) return "";
    mkdir(folder.c_str(), 0777);
    const std::string path = folder + "/rank" + std::to_string(rank_) + ".json";
    const std::string temporary = path + "." + std::to_string(getpid());
    const std::string text = json(reason);
    std::FILE* file = std::fopen(temporary.c_str(), "w");
    if (file == nullptr) return "";
    const bool written = std::fwrite(text.data(), 1, text.size(), file) == text.size();
    if (std::fclose(file) != 0 || !written || std::rename(temporary.c_str(), path.c_str()) != 0) {
      std::remove(temporary.c_str());
      return "";
    }
    return path;
  } catch (...) {
    return "";
  }
}

}  // namespace torch_tpu::distributed
