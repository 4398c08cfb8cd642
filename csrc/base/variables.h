// Environment variables that libraries read and nobody else sets: see pjrt/plugin_prepare.h. They
// are set while other threads run, and those may read the environment at any time. libc's setenv
// frees the array they read, and its unsetenv moves the entries they look for. Here a new array
// takes the place of the old one, which is kept: who reads sees all of the one or all of the other.
//
// Another thread that *writes* the environment in the same microsecond may have its change undone;
// libc's own lock cannot be taken. We write a handful of times in the life of a process.
#pragma once

#include <string>

namespace torch_tpu::base {

// False, and nothing changes, where the variable is set already.
bool set_variable(const std::string& name, const std::string& value);
void unset_variable(const std::string& name);

}  // namespace torch_tpu::base
