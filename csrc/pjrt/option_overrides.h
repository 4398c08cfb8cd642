// XLA options of single programs, beyond those of the platform, as one line of text: a comment at
// the head of the module. So whoever has the text of a program knows how it is compiled, and what
// keeps programs by their text keeps those of other options apart.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "csrc/pjrt/compile_options.h"

namespace torch_tpu::pjrt {

using OptionOverrides = std::map<std::string, OptionOverride>;

// "// compile options: xla_a=b:1 xla_b=i:3\n"; "" for none. Throws std::invalid_argument for names
// and values with spaces or control characters.
std::string to_line(const OptionOverrides& overrides);
// What the first line of a module says; nothing if it says nothing.
OptionOverrides overrides_of(std::string_view module);
// Behind the bytes of CompileOptions::serialize they take the place of what is there.
std::string serialize_overrides(const OptionOverrides& overrides);

}  // namespace torch_tpu::pjrt
