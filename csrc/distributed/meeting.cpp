#include "csrc/distributed/meeting.h"

#include <algorithm>
#include <stdexcept>

namespace torch_tpu::distributed {

std::shared_ptr<Meeting> Meeting::join(const std::string& name, size_t here) {
  static std::mutex mutex;
  static auto* all =
      new std::map<std::string, std::weak_ptr<Meeting>>();  // leaked, as threads may be
  std::lock_guard lock(mutex);
  std::erase_if(*all, [](const auto& entry) { return entry.second.expired(); });
  std::weak_ptr<Meeting>& known = (*all)[name];
  std::shared_ptr<Meeting> meeting = known.lock();
  if (!meeting) known = meeting = std::make_shared<Meeting>(here);
  return meeting;
}

void Meeting::arrive(uint64_t seq, Part part) {
  std::vector<Part> parts;
  {
    std::lock_guard lock(mutex_);
    std::vector<Part>& waiting = waiting_[seq];
    waiting.push_back(std::move(part));
    if (waiting.size() < here_) return;
    parts = std::move(waiting);
    waiting_.erase(seq);
  }
  std::sort(parts.begin(), parts.end(),
            [](const Part& a, const Part& b) { return a.rank < b.rank; });
  run(std::move(parts));
}

void Meeting::run(std::vector<Part> parts) {
  std::vector<std::vector<pjrt::Buffer>> outputs(parts.size());
  std::exception_ptr error;
  try {
    XlaProgram& program = *parts[0].program;
    bool donate = program.what().in_place();
    std::vector<std::vector<trace::ValuePtr>> args;
    for (Part& part : parts) {
      // Ranks compare what they call before; the watchdog finds and names what is left.
      if (part.program.get() != &program) {
        throw std::runtime_error("the ranks do not call the same");
      }
      donate = donate && part.donate;
      args.push_back(std::move(part.args));
    }
    outputs = program.run(args, donate);
  } catch (...) {
    error = std::current_exception();
  }
  for (size_t i = 0; i < parts.size(); ++i) parts[i].done(std::move(outputs[i]), error);
}

void Meeting::leave(int rank) {
  std::vector<Part> dropped;  // after the lock: dropping calls may end groups
  std::lock_guard lock(mutex_);
  for (auto& [seq, parts] : waiting_) {
    for (Part& part : parts) {
      if (part.rank == rank) dropped.push_back(std::move(part));
    }
    std::erase_if(parts, [rank](const Part& part) { return part.rank == rank; });
  }
  std::erase_if(waiting_, [](const auto& entry) { return entry.second.empty(); });
}

}  // namespace torch_tpu::distributed
