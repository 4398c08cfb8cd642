// Programs on disk and in packs for Python and the command line.
#include <cstring>

#include "csrc/base/env.h"
#include "csrc/bindings/bindings.h"
#include "csrc/cache/disk_cache.h"
#include "csrc/cache/pack.h"
#include "csrc/cache/program_store.h"

namespace torch_tpu::bindings {
namespace {

using cache::DiskCache;
using cache::EntryState;
using cache::Fingerprint;
using cache::ProgramStore;

py::dict to_python(const Fingerprint& fingerprint) {
  py::dict out;
  for (const auto& [name, value] : fingerprint.fields()) out[py::str(name)] = value;
  return out;
}

py::dict store_stats() {
  const cache::StoreStats stats = ProgramStore::get().stats();
  py::dict out;
  out["loads"] = stats.loads;
  out["pack_loads"] = stats.pack_loads;
  out["load_seconds"] = stats.load_seconds;
  out["saved_seconds"] = stats.saved_seconds;
  out["hits"] = stats.disk.hits;
  out["misses"] = stats.disk.misses;
  out["stores"] = stats.disk.stores;
  out["damaged"] = stats.disk.damaged;
  out["refused"] = stats.disk.refused;
  out["evictions"] = stats.disk.evictions;
  out["failures"] = stats.disk.failures;
  out["bytes_read"] = stats.disk.bytes_read;
  out["bytes_written"] = stats.disk.bytes_written;
  return out;
}

DiskCache& disk_cache() {
  DiskCache* disk = DiskCache::get();
  if (disk == nullptr) {
    throw std::runtime_error("the disk cache is off (TORCH_TPU_CACHE_DIR, or there is no HOME).");
  }
  return *disk;
}

size_t export_cache(const std::string& path) {
  const Fingerprint& fingerprint = Fingerprint::current();
  const base::Digest digest = fingerprint.digest();
  std::vector<std::string> entries;
  disk_cache().for_each([&](const std::string& entry) {
    std::string words;
    if (cache::read_entry_key(entry, digest, words) == EntryState::kGood) entries.push_back(entry);
  });
  cache::write_pack(path, fingerprint, entries);
  return entries.size();
}

size_t import_cache(const std::string& path) {
  const cache::Pack pack = cache::Pack::open(path, Fingerprint::current());
  DiskCache& disk = disk_cache();
  const base::Digest digest = pack.fingerprint().digest();
  const uint64_t before = disk.stats().stores;
  for (size_t i = 0; i < pack.size(); ++i) {
    const std::string entry = pack.entry(i);
    std::string bytes;
    if (cache::read_entry_key(entry, digest, bytes) != EntryState::kGood) continue;
    std::vector<uint64_t> words(bytes.size() / 8);
    std::memcpy(words.data(), bytes.data(), bytes.size());
    disk.store_entry(words, entry);
  }
  return disk.stats().stores - before;
}

py::dict pack_info(const std::string& path) {
  const cache::Pack pack = cache::Pack::open(path);
  py::dict out;
  out["programs"] = pack.size();
  out["fingerprint"] = to_python(pack.fingerprint());
  return out;
}

}  // namespace

void bind_cache(py::module_& m) {
  using no_gil = py::call_guard<py::gil_scoped_release>;
  m.def("_cache_dir", &base::env_cache_dir, "The folder of programs; empty when it is off.");
  m.def("_cache_bytes", &base::env_cache_bytes, "The bound of that folder; 0 means none.");
  m.def("_store_stats", &store_stats, "Counts of programs loaded and stored.");
  m.def(
      "_fingerprint", [] { return to_python(Fingerprint::current()); },
      "What programs depend on beside their keys. Starts the client.");
  m.def(
      "_load_pack", [](const std::string& path) { return ProgramStore::get().load_pack(path); },
      py::arg("path"), no_gil(), "Looks into the pack from now on; returns how many programs.");
  m.def(
      "_start_record", [] { ProgramStore::get().start_record(); }, no_gil(),
      "Keeps a copy of every program used from now on.");
  m.def(
      "_write_record",
      [](const std::string& path) { return ProgramStore::get().write_record(path); },
      py::arg("path"), no_gil(), "Writes them into a pack and stops; returns how many.");
  m.def(
      "_drop_record", [] { ProgramStore::get().drop_record(); }, no_gil(),
      "Stops without writing them.");
  m.def("_export_cache", &export_cache, py::arg("path"), no_gil(),
        "Writes the folder's programs for this fingerprint into a pack; returns how many.");
  m.def("_import_cache", &import_cache, py::arg("path"), no_gil(),
        "Puts the programs of a pack into the folder; returns how many.");
  m.def("_pack_info", &pack_info, py::arg("path"), "dict with programs and fingerprint.");
}

}  // namespace torch_tpu::bindings
