// Where a program that is not in memory may come from before it is compiled: packs that were
// loaded, then the folder. And where a compiled one goes.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "csrc/cache/disk_cache.h"
#include "csrc/cache/pack.h"
#include "csrc/cache/program_file.h"
#include "csrc/trace/fused.h"
#include "csrc/trace/key.h"
#include "csrc/trace/program.h"

namespace torch_tpu::cache {

struct StoreStats {
  uint64_t loads = 0;  // programs that need not be compiled
  uint64_t pack_loads = 0;
  double load_seconds = 0;
  double saved_seconds = 0;  // what compiling them took when they were stored
  DiskStats disk;
};

// Thread-safe.
class ProgramStore {
 public:
  static ProgramStore& get();

  // What is kept of a call. Never throws for what is on disk: that is compiled again.
  trace::Answer load(const trace::Key& key);
  void store(const trace::Key& key, const trace::Answer& answer) noexcept;
  void store(const trace::Key& key, const trace::Program& program) noexcept;

  // Of other programs only the code is kept. An empty one: nobody has it.
  trace::Runnable::Stored find_code(const trace::Key& key) noexcept;
  void store_code(const trace::Key& key, const trace::Code& code) noexcept;

  // The executable of what was found. Without one it is of no use: compile the program.
  pjrt::LoadedExecutable load_code(const trace::Key& key, const trace::Runnable::Stored& stored,
                                   const ResultTypes& results, const std::string& name,
                                   uint64_t fingerprint) noexcept;

  // Throws std::runtime_error with what differs when it is for another compiler, device or build.
  // Returns the number of programs in it.
  size_t load_pack(const std::string& path);
  // From here on keeps a copy of every program used; write_record() writes them into a pack.
  void start_record();
  size_t write_record(const std::string& path);
  void drop_record();

  StoreStats stats();

 private:
  ProgramStore() = default;
  void open_packs();  // TORCH_TPU_PACK
  bool active();
  std::optional<std::string> find(Words words, bool& from_pack);
  void keep(Words words, const std::string& blob);
  void refuse(Words words, const std::exception& error, bool from_pack) noexcept;
  void warn_of_pack(const std::exception& error) noexcept;  // once
  void record(Words words, std::string_view blob);
  void count_load(bool from_pack, double saved, double took);

  std::mutex mutex_;
  std::once_flag packs_opened_;
  std::vector<std::shared_ptr<const Pack>> packs_;
  bool recording_ = false;
  std::map<std::vector<uint64_t>, std::string> recorded_;
  StoreStats stats_;
  std::atomic<bool> said_pack_{false};
};

}  // namespace torch_tpu::cache
