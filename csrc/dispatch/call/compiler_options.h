// XLA options that the user asks for: process-wide, part of the keys of the calls that are made
// under them, and the first line of those programs' texts (pjrt/option_overrides.h).
#pragma once

#include <string>

#include "csrc/pjrt/option_overrides.h"
#include "csrc/trace/key.h"
#include "csrc/trace/settings_word.h"

namespace torch_tpu::dispatch {

// Those of calls from here on. What was issued before keeps its own: the caller launches it first,
// or a piece would have calls of both.
void note_compiler_options(const pjrt::OptionOverrides& options);
pjrt::OptionOverrides compiler_options();

// 0 without options, else a number below 2^16 that no other options of this process have.
uint64_t options_tag() noexcept;
using trace::kOptionsShift;
// The two words behind the word of settings, for a tag that is not 0.
void add_options(trace::Key& key, uint64_t tag);
// The line that the text of a program begins with: "" without options. By the key of a call, and by
// the settings now.
std::string options_line(const trace::Key& key);
std::string options_line(uint64_t tag);
std::string current_options_line();

// A number for the settings that a recording of several calls depends on: these options and the
// precision of float32 products.
uint64_t settings_word();

}  // namespace torch_tpu::dispatch
