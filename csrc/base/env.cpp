// The table of TORCH_TPU_* variables and their parsers.
#include "csrc/base/env.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <string_view>
#include <thread>

#include <unistd.h>

namespace torch_tpu::base {
namespace {

enum Index {
  kPlugin,
  kMode,
  kCpuDevices,
  kPluginLog,
  kFallback,
  kDebugNans,
  kMemoryLimit,
  kDump,
  kCacheSize,
  kFusedCompile,
  kFusedMinNodes,
  kFusedMaxNodes,
  kFusedMaxBytes,
  kCompileThreads,
  kExplain,
  kCompileNotice,
  kLogCompiles,
  kCacheDir,
  kCacheBytes,
  kPack,
  kFlight,
  kFlightSize,
  kCompareDevice,
  kCount
};

constexpr int kMaxCpuDevices = 64;

const EnvVar& row(Index index) { return env_table()[index]; }

// The value as set, or the table's default.
std::string value_of(Index index) {
  const char* value = std::getenv(row(index).name);
  return value != nullptr && *value != '\0' ? value : row(index).default_value;
}

[[noreturn]] void reject(const char* what, const std::string& value, const char* allowed) {
  throw std::invalid_argument(std::string("[") + what + "] expected " + allowed + ", got '" +
                              value + "'.");
}

[[noreturn]] void reject(Index index, const std::string& value) {
  reject(row(index).name, value, row(index).allowed);
}

bool parse_int(std::string_view text, int64_t& result) {
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, result);
  return error == std::errc() && stop == end;
}

int64_t int_between(Index index, int64_t low, int64_t high) {
  const std::string value = value_of(index);
  int64_t result = 0;
  if (!parse_int(value, result) || result < low || result > high) reject(index, value);
  return result;
}

int64_t bytes_of(Index index) {
  const std::string value = value_of(index);
  std::string_view digits = value;
  int shift = 0;
  switch (digits.back()) {  // never empty: the default is a number
    case 'K':
    case 'k':
      shift = 10;
      break;
    case 'M':
    case 'm':
      shift = 20;
      break;
    case 'G':
    case 'g':
      shift = 30;
      break;
    default:
      break;
  }
  if (shift != 0) digits.remove_suffix(1);
  int64_t bytes = 0;
  if (!parse_int(digits, bytes) || bytes < 0 ||
      bytes > (std::numeric_limits<int64_t>::max() >> shift)) {
    reject(index, value);
  }
  return bytes << shift;
}

bool is_on(std::string_view v) { return v == "1" || v == "true" || v == "on"; }
bool is_off(std::string_view v) { return v == "0" || v == "false" || v == "off"; }

bool bool_of(Index index) {
  const std::string value = value_of(index);
  if (is_on(value)) return true;
  if (is_off(value)) return false;
  reject(index, value);
}

}  // namespace

const std::vector<EnvVar>& env_table() {
  // In the order of Index. Never destroyed: threads may read it at exit.
  static const auto& table = *new std::vector<EnvVar>{
      {"TORCH_TPU_PLUGIN", "choice or path",
       "auto, cpu, cuda, tpu, or the path of a plugin library", "auto",
       "Which PJRT plugin runs the programs; auto is the TPU if one is attached, else XLA:CPU."},
      {"TORCH_TPU_MODE", "choice", "debug, strict or fused", "fused",
       "How eager ops run: each op checked, each op on its own, or fused into larger programs."},
      {"TORCH_TPU_CPU_DEVICES", "int", "an integer from 1 to 64", "1",
       "Number of XLA:CPU devices in the process (tpu:0, tpu:1, ...). Unless set, a process that "
       "torchrun started has one for each of the machine's processes (LOCAL_WORLD_SIZE)."},
      {"TORCH_TPU_PLUGIN_LOG", "choice", "off, on, info, warning or error", "off",
       "Lets the plugin's own log reach the terminal, from the given level up (on means info)."},
      {"TORCH_TPU_FALLBACK", "choice", "warn, error or silent", "warn",
       "What happens when an op has no lowering and would run on the CPU."},
      {"TORCH_TPU_DEBUG_NANS", "bool", "0 or 1", "0",
       "In Debug Eager: raises at the op that first produces a NaN or infinity."},
      {"TORCH_TPU_MEMORY_LIMIT", "bytes", "a number of bytes with an optional suffix K, M or G",
       "0", "Most bytes allocated per device before an out-of-memory error; 0 means no limit."},
      {"TORCH_TPU_DUMP", "path", "a folder", "",
       "Writes the StableHLO of every compiled program into this folder."},
      {"TORCH_TPU_CACHE_SIZE", "int", "an integer from 1 to 1000000000", "16384",
       "Most compiled programs kept in memory."},
      {"TORCH_TPU_FUSED_COMPILE", "choice", "first, second or never", "second",
       "When Fused Eager compiles a program: at first sight (waiting for it), when it is met again "
       "(in the background), or never (it runs as single ops)."},
      {"TORCH_TPU_FUSED_MIN_NODES", "int", "an integer from 1 to 65536", "64",
       "How long a part of the op stream must be before Fused Eager looks for its repetition."},
      {"TORCH_TPU_FUSED_MAX_NODES", "int", "0, or an integer from 2 to 65536", "0",
       "Most ops in a program of Fused Eager; 0 means 1024 on XLA:CPU and 128 elsewhere."},
      {"TORCH_TPU_FUSED_MAX_BYTES", "bytes", "0, or at least 1M, with an optional suffix K, M or G",
       "0",
       "Most bytes that the ops of a pending program may produce; 0 means a quarter of the "
       "device."},
      {"TORCH_TPU_COMPILE_THREADS", "int", "an integer from 0 to 64", "0",
       "Threads that compile in the background; 0 means half of the processors, at most 4."},
      {"TORCH_TPU_EXPLAIN", "bool or path", "0, 1, or a file ending in .html, .json or .txt", "0",
       "Writes torch_tpu.explain() when the process ends: into a file, or (1) to the terminal."},
      {"TORCH_TPU_COMPILE_NOTICE", "number", "a number of seconds, 0 or more", "2",
       "Says on stderr, once for each cause, that the host has waited this long for the compiler, "
       "and why; 0 turns it off."},
      {"TORCH_TPU_LOG_COMPILES", "bool", "0 or 1", "0",
       "Writes a line to stderr for every program that is compiled: its name, how long it took, "
       "who "
       "waited, why, and where."},
      {"TORCH_TPU_CACHE_DIR", "path", "a folder, or off", "~/.cache/torch_tpu",
       "Where compiled programs are kept between runs (in $XDG_CACHE_HOME where that is set)."},
      {"TORCH_TPU_CACHE_BYTES", "bytes", "a number of bytes with an optional suffix K, M or G",
       "2G", "Most bytes kept there; what was not used for longest goes first. 0 means no bound."},
      {"TORCH_TPU_PACK", "path", "files written by torch-tpu precompile, separated by ':'", "",
       "Packs of compiled programs, looked into before the folder."},
      {"TORCH_TPU_FLIGHT", "path", "a folder", "",
       "Where each rank writes its last collectives (rank<N>.json) when one fails or times out."},
      {"TORCH_TPU_FLIGHT_SIZE", "int", "an integer from 1 to 1000000", "2048",
       "How many collectives the flight recorder keeps."},
      {"TORCH_TPU_COMPARE_DEVICE", "text", "cpu, cuda or tpu, with an optional number", "",
       "Set by torch-tpu compare for the script that it runs: the device to use."},
  };
  static_assert(kCount == 23, "one row per Index");
  return table;
}

std::string env_plugin() {
  const std::string value = value_of(kPlugin);
  const std::string_view view = value;
  const bool is_path = view.find('/') != view.npos || view.ends_with(".so");
  if (!is_path && view != "auto" && view != "cpu" && view != "cuda" && view != "tpu") {
    reject(kPlugin, value);
  }
  return value;
}

Mode parse_mode(const std::string& value, const char* what) {
  if (value == "debug") return Mode::kDebug;
  if (value == "strict") return Mode::kStrict;
  if (value == "fused") return Mode::kFused;
  reject(what, value, row(kMode).allowed);
}

Mode env_mode() { return parse_mode(value_of(kMode), row(kMode).name); }

int env_cpu_devices() {
  const char* given = std::getenv(row(kCpuDevices).name);
  const char* launched = std::getenv("LOCAL_WORLD_SIZE");
  if ((given == nullptr || *given == '\0') && launched != nullptr) {
    // Scripts for torchrun take the device of their LOCAL_RANK: so there is one. Not a variable of
    // ours: what is no number is left to whoever reads it.
    int processes = 1;
    std::from_chars(launched, launched + std::strlen(launched), processes);
    return std::clamp(processes, 1, kMaxCpuDevices);
  }
  return static_cast<int>(int_between(kCpuDevices, 1, kMaxCpuDevices));
}

int env_plugin_log_level() {
  const std::string value = value_of(kPluginLog);
  if (is_on(value) || value == "info") return 0;
  if (value == "warning") return 1;
  if (value == "error") return 2;
  if (is_off(value)) return 3;
  reject(kPluginLog, value);
}

bool env_plugin_log() { return env_plugin_log_level() < 3; }

Fallback env_fallback() {
  const std::string value = value_of(kFallback);
  if (value == "warn") return Fallback::kWarn;
  if (value == "error") return Fallback::kError;
  if (value == "silent") return Fallback::kSilent;
  reject(kFallback, value);
}

bool env_debug_nans() { return bool_of(kDebugNans); }

int64_t env_memory_limit() { return bytes_of(kMemoryLimit); }

CompileWhen parse_compile_when(const std::string& value, const char* what) {
  for (auto when : {CompileWhen::kFirst, CompileWhen::kSecond, CompileWhen::kNever}) {
    if (value == to_string(when)) return when;
  }
  reject(what, value, row(kFusedCompile).allowed);
}

CompileWhen env_fused_compile() {
  return parse_compile_when(value_of(kFusedCompile), row(kFusedCompile).name);
}

int64_t env_fused_max_nodes() {
  const int64_t nodes = int_between(kFusedMaxNodes, 0, 65536);
  if (nodes == 1) reject(kFusedMaxNodes, value_of(kFusedMaxNodes));
  return nodes;
}

int64_t env_fused_min_nodes() { return int_between(kFusedMinNodes, 1, 65536); }

int64_t env_fused_max_bytes() {
  const int64_t bytes = bytes_of(kFusedMaxBytes);
  if (bytes != 0 && bytes < (1 << 20)) reject(kFusedMaxBytes, value_of(kFusedMaxBytes));
  return bytes;
}

int env_compile_threads() {
  const auto threads = static_cast<int>(int_between(kCompileThreads, 0, 64));
  if (threads > 0) return threads;
  return std::clamp(static_cast<int>(std::thread::hardware_concurrency() / 2), 1, 4);
}

std::string env_dump() { return value_of(kDump); }

int64_t env_cache_size() { return int_between(kCacheSize, 1, 1000000000); }

std::string env_flight() { return value_of(kFlight); }

int64_t env_flight_size() { return int_between(kFlightSize, 1, 1000000); }

std::string env_explain() {
  const std::string value = value_of(kExplain);
  if (is_off(value)) return "";
  if (is_on(value)) return "1";
  const std::string_view view = value;
  if (!view.ends_with(".html") && !view.ends_with(".json") && !view.ends_with(".txt")) {
    reject(kExplain, value);
  }
  return value;
}

double env_compile_notice() {
  const std::string value = value_of(kCompileNotice);
  double seconds = 0;
  const char* end = value.data() + value.size();
  const auto [stop, error] = std::from_chars(value.data(), end, seconds);
  if (error != std::errc() || stop != end || !(seconds >= 0)) reject(kCompileNotice, value);
  return seconds;
}

bool env_log_compiles() { return bool_of(kLogCompiles); }

std::string env_cache_dir() {
  std::string value = value_of(kCacheDir);
  if (is_off(value)) return "";
  const char* home = std::getenv("HOME");
  const bool has_home = home != nullptr && *home == '/';
  const char* given = std::getenv(row(kCacheDir).name);
  if (given == nullptr || *given == '\0') {
    const char* xdg = std::getenv("XDG_CACHE_HOME");
    if (xdg != nullptr && *xdg == '/') return std::string(xdg) + "/torch_tpu";
  }
  if (value.starts_with("~/")) return has_home ? home + value.substr(1) : "";
  if (value.starts_with("/")) return value;
  char* here = getcwd(nullptr, 0);
  if (here == nullptr) return "";
  const std::string folder = std::string(here) + "/" + value;
  std::free(here);
  return folder;
}

int64_t env_cache_bytes() { return bytes_of(kCacheBytes); }

std::vector<std::string> env_packs() {
  std::vector<std::string> files;
  const std::string value = value_of(kPack);
  for (size_t at = 0; at < value.size();) {
    const size_t end = std::min(value.find(':', at), value.size());
    if (end > at) files.push_back(value.substr(at, end - at));
    at = end + 1;
  }
  return files;
}

std::string env_compiler_flags() {
  std::string flags;
  for (const char* name : {"XLA_FLAGS", "LIBTPU_INIT_ARGS"}) {
    const char* value = std::getenv(name);
    if (value == nullptr || std::string_view(value) == kOwnXlaFlags) continue;
    if (*value != '\0') flags += std::string(name) + "=" + value + "\n";
  }
  return flags;
}

const char* to_string(Mode mode) noexcept {
  switch (mode) {
    case Mode::kDebug:
      return "debug";
    case Mode::kStrict:
      return "strict";
    case Mode::kFused:
      return "fused";
  }
  return "?";
}

const char* to_string(CompileWhen when) noexcept {
  switch (when) {
    case CompileWhen::kFirst:
      return "first";
    case CompileWhen::kSecond:
      return "second";
    case CompileWhen::kNever:
      return "never";
  }
  return "?";
}

const char* to_string(Fallback fallback) noexcept {
  switch (fallback) {
    case Fallback::kWarn:
      return "warn";
    case Fallback::kError:
      return "error";
    case Fallback::kSilent:
      return "silent";
  }
  return "?";
}

}  // namespace torch_tpu::base
