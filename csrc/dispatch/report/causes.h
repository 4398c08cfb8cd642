// Why programs are compiled, as a user would say it: all calls of a step that had no program
// because one size changed are one cause, and so are those that came for the first time. What was
// waited for each is added by waits.h. Thread-safe; nothing here is asked when a program is found.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "csrc/dispatch/report/key_text.h"

namespace torch_tpu::dispatch {

using Words = std::vector<uint64_t>;
using WordsPtr = std::shared_ptr<const Words>;

struct Cause {
  enum class Kind : uint8_t {
    kFirst,   // no call like it from that line before
    kChange,  // from what an earlier call from the same line was given
    kOrder,   // the ops are known, not in this order
  };
  Kind kind = Kind::kFirst;
  bool graph = false;                // of torch.compile
  std::string where;                 // the line of the first of its calls, or ""
  std::string name;                  // the op, or the graph
  Difference change;                 // the newest, of a kChange
  int rank = 0;                      // of the tensor whose size changed
  std::vector<std::string> values;   // that the field took, in the order they came
  std::vector<double> value_waited;  // of `waited`, for each of the values
  std::set<std::string> ops;         // that had no program for it
  uint64_t calls = 0;                // of them
  uint64_t programs = 0;             // compiled, or waited for
  double waited = 0;                 // seconds, by threads of the user
  double compiled = 0;               // seconds of compilers, on whatever thread
  bool told = false;                 // on stderr
};
using CauseId = uint32_t;
inline constexpr CauseId kNoCause = ~0U;

// What changed between two calls of one op.
struct Change {
  Difference difference;
  int rank = 0;
};
using Compare = std::function<std::optional<Change>(const Words& before, const Words& after)>;

// A call for which there is no program.
struct NewCall {
  std::string name;
  std::string where;        // calls from other lines are not compared with it
  std::string shown;        // the line to name: the user's own
  uint64_t what = 0;        // calls of something else are not compared with it
  uint64_t parameters = 0;  // which parameters of a model it is given, by their sizes; 0: none
  uint64_t identity = 0;    // under which cause_of() finds it
  WordsPtr key;
  bool graph = false;
};

struct Explained {
  CauseId cause = kNoCause;
  WordsPtr nearest;  // of the calls from the same line; null: there was none
};
// Which cause the call belongs to. `compare` puts the difference of two keys in words.
Explained explain_call(const NewCall& call, const Compare& compare);

// The cause of a call that was explained, with the number that tells which of them is newer.
struct KnownCause {
  CauseId cause = kNoCause;
  uint64_t serial = 0;
};
KnownCause cause_of(uint64_t identity) noexcept;
// The line of a call that was explained, or "".
std::string line_of(uint64_t identity);
// A cause of its own for each line.
CauseId unexplained(Cause::Kind kind, const std::string& name, const std::string& where);

// Adds to what the cause cost. The cause as it is then.
Cause charge(CauseId cause, uint64_t programs, double waited, double compiled);
// True for one caller, once the cause has cost `seconds`.
bool tell_once(CauseId cause, double seconds, Cause& out);

// For `NewCall::shown`: the line, or where that is in a package the innermost one outside.
std::string shown_line(const std::string& where);
// Only the bindings know Python. Set while the module is imported.
void set_user_line(std::string (*find)()) noexcept;

// Those that cost something or had calls since the last reset, oldest first.
std::vector<Cause> causes();
void reset_causes() noexcept;
// Also the calls to compare with.
void forget_causes() noexcept;

// "batch 32 → 8", "first step", "dtype float32 → bfloat16 of aten::mm".
std::string in_words(const Cause& cause);
// What a user could do about it.
std::string advice(const Cause& cause);

}  // namespace torch_tpu::dispatch
