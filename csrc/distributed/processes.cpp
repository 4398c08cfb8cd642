#include "csrc/distributed/processes.h"

#include <fstream>

#include <unistd.h>

namespace torch_tpu::distributed {
namespace {

std::string first_line(const char* path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

}  // namespace

const std::string& machine() {
  static const auto& name = *new std::string([] {
    char host[256] = "", space[64] = "";
    gethostname(host, sizeof host - 1);
    static_cast<void>(!readlink("/proc/self/ns/pid", space, sizeof space - 1));
    return std::string(host) + " " + first_line("/proc/sys/kernel/random/boot_id") + " " + space;
  }());
  return name;
}

Process state_of(int64_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string text;
  if (!std::getline(file, text)) return Process::kGone;
  const size_t bracket = text.rfind(')');
  const char state =
      bracket != std::string::npos && bracket + 2 < text.size() ? text[bracket + 2] : 'R';
  if (state == 'Z' || state == 'X') return Process::kGone;
  return state == 'T' || state == 't' ? Process::kStopped : Process::kRuns;
}

}  // namespace torch_tpu::distributed
