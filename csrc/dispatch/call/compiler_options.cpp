#include "csrc/dispatch/call/compiler_options.h"

#include <atomic>
#include <map>
#include <mutex>
#include <stdexcept>

#include <ATen/Context.h>

#include "csrc/base/digest.h"
#include "csrc/base/hash.h"

namespace torch_tpu::dispatch {
namespace {

constexpr uint64_t kTags = uint64_t{1} << 16;

// All that were ever asked for, so that a tag stays what it is. A tag is a hash of the line, so
// that keys on disk are found by other processes: taken by other options already, it is the next
// one.
struct Known {
  std::mutex mutex;
  std::map<uint64_t, std::string> lines{{0, ""}};
};

Known& known() {
  static auto* made = new Known();
  return *made;
}

std::atomic<uint64_t> current{0};

}  // namespace

void note_compiler_options(const pjrt::OptionOverrides& options) {
  const std::string line = pjrt::to_line(options);
  Known& all = known();
  const std::lock_guard lock(all.mutex);
  if (all.lines.size() >= kTags / 2) {
    throw std::runtime_error(
        "[compiler options] this process has used 32768 different sets of options, and can tell no "
        "more apart. Use fewer.");
  }
  uint64_t tag = line.empty() ? 0 : 1 + base::hash_bytes(line) % (kTags - 1);
  for (; all.lines.try_emplace(tag, line).first->second != line; ++tag) {
    if (tag == kTags - 1) tag = 0;  // the search goes on at 1
  }
  current.store(tag);
}

pjrt::OptionOverrides compiler_options() { return pjrt::overrides_of(current_options_line()); }

uint64_t options_tag() noexcept { return current.load(std::memory_order_relaxed); }

void add_options(trace::Key& key, uint64_t tag) {
  const base::Digest digest = base::digest(options_line(tag));
  key.add(digest.high);
  key.add(digest.low);
}

std::string options_line(uint64_t tag) {
  Known& all = known();
  const std::lock_guard lock(all.mutex);
  return all.lines.at(tag);
}

std::string options_line(const trace::Key& key) {
  return key.size() < 2 ? "" : options_line(key.data()[1] >> kOptionsShift);
}

uint64_t settings_word() {
  return static_cast<uint64_t>(at::globalContext().float32MatmulPrecision()) | options_tag()
                                                                                   << kOptionsShift;
}

std::string current_options_line() { return options_line(options_tag()); }

}  // namespace torch_tpu::dispatch
