#include "csrc/cache/program_store.h"

#include <chrono>

#include <c10/util/Exception.h>

#include "csrc/base/env.h"
#include "csrc/base/journal.h"
#include "csrc/cache/program_file.h"
#include "csrc/pjrt/error.h"

namespace torch_tpu::cache {
namespace {

Words words_of(const trace::Key& key) { return {key.data(), key.size()}; }

trace::Code::Origin origin_of(bool from_pack) {
  return from_pack ? trace::Code::Origin::kPack : trace::Code::Origin::kDisk;
}

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

ProgramStore& ProgramStore::get() {
  static auto* store = new ProgramStore();
  return *store;
}

void ProgramStore::open_packs() {
  std::call_once(packs_opened_, [this] {
    for (const std::string& path : base::env_packs()) {
      // A pack that does not fit must not stop the program: it only starts slower.
      try {
        load_pack(path);
      } catch (const std::exception& error) {
        TORCH_WARN("TORCH_TPU_PACK: ", error.what());
      }
    }
  });
}

size_t ProgramStore::load_pack(const std::string& path) {
  auto pack = std::make_shared<const Pack>(Pack::open(path, Fingerprint::current()));
  const std::lock_guard lock(mutex_);
  packs_.push_back(pack);
  return pack->size();
}

std::optional<std::string> ProgramStore::find(Words words, bool& from_pack) {
  open_packs();
  std::vector<std::shared_ptr<const Pack>> packs;
  {
    const std::lock_guard lock(mutex_);
    packs = packs_;
  }
  from_pack = true;
  for (const auto& pack : packs) {
    try {
      if (auto blob = pack->load(words)) return blob;
    } catch (const std::exception& error) {
      warn_of_pack(error);
    }
  }
  from_pack = false;
  DiskCache* disk = DiskCache::get();
  return disk == nullptr ? std::nullopt : disk->load(words);
}

void ProgramStore::warn_of_pack(const std::exception& error) noexcept {
  if (said_pack_.exchange(true)) return;
  try {
    TORCH_WARN("A program of a pack is not used: ", error.what(), ". It is compiled instead.");
  } catch (...) {  // warnings are errors here
  }
}

// What a process cannot read is compiled again and written anew.
void ProgramStore::refuse(Words words, const std::exception& error, bool from_pack) noexcept {
  if (from_pack) warn_of_pack(error);
  DiskCache* disk = DiskCache::get();
  if (from_pack || disk == nullptr) return;
  const auto* answer = dynamic_cast<const pjrt::Error*>(&error);
  if (answer != nullptr && answer->is_unimplemented()) {
    disk->turn_off("the plugin cannot load stored programs.");
  } else if (answer == nullptr || !answer->is_out_of_memory()) {
    disk->drop(words, error.what());
  }
}

trace::Answer ProgramStore::load(const trace::Key& key) {
  const auto start = std::chrono::steady_clock::now();
  const Words words = words_of(key);
  bool from_pack = false;
  if (!base::env_dump().empty()) return {};  // who wants to see the text wants all of it
  const std::optional<std::string> blob = find(words, from_pack);
  if (!blob) return {};
  trace::Answer answer;
  try {
    answer = decode_answer(*blob);
  } catch (const std::exception& error) {
    refuse(words, error, from_pack);
    return {};
  }
  double saved = 0;
  if (const auto* program = std::get_if<trace::ProgramPtr>(&answer)) {
    (*program)->key = key;
    (*program)->stored.origin = origin_of(from_pack);
    if (!(*program)->stored.code.empty()) saved = (*program)->stored.compile_seconds;
  }
  record(words, *blob);
  count_load(from_pack, saved, seconds_since(start));
  return answer;
}

trace::Runnable::Stored ProgramStore::find_code(const trace::Key& key) noexcept {
  const Words words = words_of(key);
  bool from_pack = false;
  try {
    if (!base::env_dump().empty()) return {};
    const auto start = std::chrono::steady_clock::now();
    const std::optional<std::string> blob = find(words, from_pack);
    if (!blob) return {};
    trace::Runnable::Stored stored = decode_code(*blob);
    stored.origin = origin_of(from_pack);
    record(words, *blob);
    count_load(from_pack, stored.compile_seconds, seconds_since(start));
    return stored;
  } catch (const std::exception& error) {
    refuse(words, error, from_pack);
    return {};
  }
}

void ProgramStore::count_load(bool from_pack, double saved, double took) {
  const std::lock_guard lock(mutex_);
  ++stats_.loads;
  if (from_pack) ++stats_.pack_loads;
  stats_.saved_seconds += saved;
  stats_.load_seconds += took;
}

pjrt::LoadedExecutable ProgramStore::load_code(const trace::Key& key,
                                               const trace::Runnable::Stored& stored,
                                               const ResultTypes& results, const std::string& name,
                                               uint64_t fingerprint) noexcept {
  const auto start = std::chrono::steady_clock::now();
  const base::journal::Span span(base::journal::Kind::kLoadFromDisk, name, fingerprint);
  try {
    pjrt::LoadedExecutable loaded = load_executable(stored.code, results);
    const std::lock_guard lock(mutex_);
    stats_.load_seconds += seconds_since(start);
    return loaded;
  } catch (const std::exception& error) {
    refuse(words_of(key), error, stored.origin == trace::Code::Origin::kPack);
    return {};
  }
}

bool ProgramStore::active() {
  if (DiskCache::get() != nullptr) return true;
  const std::lock_guard lock(mutex_);
  return recording_;
}

void ProgramStore::keep(Words words, const std::string& blob) {
  record(words, blob);
  if (DiskCache* disk = DiskCache::get()) disk->store(words, blob);
}

void ProgramStore::store(const trace::Key& key, const trace::Answer& answer) noexcept {
  try {
    if (!active()) return;
    if (const auto blob = encode_answer(answer)) keep(words_of(key), *blob);
  } catch (...) {
    // A plugin that cannot serialize, or no memory: the program is only not kept.
  }
}

void ProgramStore::store(const trace::Key& key, const trace::Program& program) noexcept {
  try {
    if (!active()) return;
    if (const auto blob = encode_program(program)) keep(words_of(key), *blob);
  } catch (...) {
    // As above.
  }
}

void ProgramStore::store_code(const trace::Key& key, const trace::Code& code) noexcept {
  try {
    if (active()) keep(words_of(key), encode_code(code));
  } catch (...) {
    // As above.
  }
}

void ProgramStore::record(Words words, std::string_view blob) {
  const std::lock_guard lock(mutex_);
  if (recording_) recorded_.insert_or_assign({words.begin(), words.end()}, std::string(blob));
}

void ProgramStore::start_record() {
  const std::lock_guard lock(mutex_);
  recording_ = true;
}

void ProgramStore::drop_record() {
  const std::lock_guard lock(mutex_);
  recording_ = false;
  recorded_.clear();
}

size_t ProgramStore::write_record(const std::string& path) {
  const Fingerprint& fingerprint = Fingerprint::current();
  const base::Digest digest = fingerprint.digest();
  std::vector<std::string> entries;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [words, blob] : recorded_) {
      entries.push_back(encode_entry(digest, words, blob));
    }
  }
  drop_record();
  write_pack(path, fingerprint, entries);
  return entries.size();
}

StoreStats ProgramStore::stats() {
  // Asking must not start the client.
  const std::lock_guard lock(mutex_);
  StoreStats stats = stats_;
  if (DiskCache* disk = DiskCache::if_started()) stats.disk = disk->stats();
  return stats;
}

}  // namespace torch_tpu::cache
