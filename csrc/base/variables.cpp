#include "csrc/base/variables.h"

#include <cstring>
#include <list>
#include <memory>
#include <mutex>
#include <vector>

#include <unistd.h>

namespace torch_tpu::base {
namespace {

// Never freed: libc and other threads go on using what was once part of the environment.
struct Kept {
  std::mutex mutex;
  std::list<std::string> entries;
  std::list<std::vector<char*>> arrays;
};
Kept& kept() {
  static auto* all = new Kept();
  return *all;
}

bool is_named(const char* entry, const std::string& name) {
  return std::strncmp(entry, name.c_str(), name.size()) == 0 && entry[name.size()] == '=';
}

// The entries now, without those of that name.
std::vector<char*> without(const std::string& name) {
  std::vector<char*> entries;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    if (!is_named(*entry, name)) entries.push_back(*entry);
  }
  return entries;
}

bool is_set(const std::string& name) {
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    if (is_named(*entry, name)) return true;
  }
  return false;
}

void publish(Kept& all, std::vector<char*> entries) {
  entries.push_back(nullptr);
  all.arrays.push_back(std::move(entries));
  __atomic_store_n(&environ, all.arrays.back().data(), __ATOMIC_RELEASE);
}

}  // namespace

bool set_variable(const std::string& name, const std::string& value) {
  Kept& all = kept();
  const std::lock_guard lock(all.mutex);
  if (is_set(name)) return false;
  std::vector<char*> entries = without(name);
  all.entries.push_back(name + "=" + value);
  entries.push_back(all.entries.back().data());
  publish(all, std::move(entries));
  return true;
}

void unset_variable(const std::string& name) {
  Kept& all = kept();
  const std::lock_guard lock(all.mutex);
  if (is_set(name)) publish(all, without(name));
}

}  // namespace torch_tpu::base
