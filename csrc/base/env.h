// The only place that reads TORCH_TPU_* environment variables. Every variable
// is one row of env_table(), from which the documentation is generated.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace torch_tpu::base {

struct EnvVar {
  const char* name;
  const char* type;           // "choice", "int", "bool", "bytes", "path"
  const char* allowed;        // what a value may be, as shown in error messages
  const char* default_value;  // as the user would write it
  const char* doc;            // one line
};

// All variables, in the order of the documentation.
const std::vector<EnvVar>& env_table();

enum class Mode { kDebug, kStrict, kFused };
// When Fused Eager compiles a program it has cut.
enum class CompileWhen {
  kFirst,   // when it is first met, on the calling thread
  kSecond,  // when it is met again, in the background
  kNever,   // it always runs as single ops
};
enum class Fallback { kWarn, kError, kSilent };

// The accessors read the environment on each call, so that a change made with
// setenv (or os.environ) is seen by the next reader. A read scans the whole
// environment: callers on a hot path keep the result. getenv and setenv race by
// the rules of POSIX; nothing here calls setenv.
//
// A value that is not allowed throws std::invalid_argument naming the variable,
// the value and what is allowed. An empty value counts as unset.

std::string env_plugin();         // TORCH_TPU_PLUGIN: auto|cpu|cuda|tpu|<path>
Mode env_mode();                  // TORCH_TPU_MODE
int env_cpu_devices();            // TORCH_TPU_CPU_DEVICES: 1..64
bool env_plugin_log();            // TORCH_TPU_PLUGIN_LOG: may logs reach the terminal
int env_plugin_log_level();       // 0 info .. 3 fatal; 3 when the log is off
Fallback env_fallback();          // TORCH_TPU_FALLBACK
bool env_debug_nans();            // TORCH_TPU_DEBUG_NANS
int64_t env_memory_limit();       // TORCH_TPU_MEMORY_LIMIT: bytes, 0 = none
std::string env_dump();           // TORCH_TPU_DUMP: folder, empty = off
int64_t env_cache_size();         // TORCH_TPU_CACHE_SIZE: programs in memory
CompileWhen env_fused_compile();  // TORCH_TPU_FUSED_COMPILE
int64_t env_fused_min_nodes();    // TORCH_TPU_FUSED_MIN_NODES: 1..65536
int64_t env_fused_max_nodes();    // TORCH_TPU_FUSED_MAX_NODES: 2..65536, 0: by the platform
int64_t env_fused_max_bytes();    // TORCH_TPU_FUSED_MAX_BYTES: from 1 MiB, 0 = by the device
int env_compile_threads();        // TORCH_TPU_COMPILE_THREADS: 1..64
std::string env_flight();         // TORCH_TPU_FLIGHT: folder, empty = off
int64_t env_flight_size();        // TORCH_TPU_FLIGHT_SIZE: collectives kept
std::string env_explain();        // TORCH_TPU_EXPLAIN: file, "1" = terminal, empty = off
double env_compile_notice();      // TORCH_TPU_COMPILE_NOTICE: seconds, 0 = off
bool env_log_compiles();          // TORCH_TPU_LOG_COMPILES

// TORCH_TPU_CACHE_DIR: absolute; empty when it is "off", or when the default is wanted and there is
// no home to put it in.
std::string env_cache_dir();
int64_t env_cache_bytes();             // TORCH_TPU_CACHE_BYTES: bytes on disk, 0 = no bound
std::vector<std::string> env_packs();  // TORCH_TPU_PACK: files

// What XLA:CPU is told where the user has not set XLA_FLAGS (see pjrt/plugin_prepare.cpp).
inline constexpr const char* kOwnXlaFlags =
    "--xla_backend_extra_options=xla_cpu_disable_loop_unrolling";
// What the compilers themselves read (XLA_FLAGS, LIBTPU_INIT_ARGS): "NAME=value" lines, since
// programs depend on it.
std::string env_compiler_flags();

// The names as the user writes them ("debug", "warn", ...).
const char* to_string(Mode mode) noexcept;
const char* to_string(Fallback fallback) noexcept;
const char* to_string(CompileWhen when) noexcept;
CompileWhen parse_compile_when(const std::string& value, const char* what);
// Parses a mode name as TORCH_TPU_MODE does; same error, naming `what`.
Mode parse_mode(const std::string& value, const char* what);

}  // namespace torch_tpu::base
