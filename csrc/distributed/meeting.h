// Where the ranks of a group that are in this process meet, call by call: the last to come runs the
// program for all of them. Where the client spans processes, a rank may be alone here; its device
// meets the others.
#pragma once

#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "csrc/distributed/xla_program.h"
#include "csrc/pjrt/buffer.h"
#include "csrc/trace/value.h"

namespace torch_tpu::distributed {

class Meeting {
 public:
  // What a rank brings, and how it is told what came out.
  struct Part {
    int rank = 0;
    std::shared_ptr<XlaProgram> program;
    std::vector<trace::ValuePtr> args;
    bool donate = false;
    std::function<void(std::vector<pjrt::Buffer> outputs, const std::exception_ptr& error)> done;
  };

  // One per group and process. `name` is the group's alone, among all that there ever are.
  static std::shared_ptr<Meeting> join(const std::string& name, size_t here);

  explicit Meeting(size_t here) : here_(here) {}

  // Returns at once unless this is the last part of call `seq`; then after the program was started.
  // Every part is told once, on whatever thread.
  void arrive(uint64_t seq, Part part);
  // Takes back what this rank has brought and nobody has used: it does not wait any more.
  void leave(int rank);

 private:
  void run(std::vector<Part> parts);

  const size_t here_;  // ranks in this process
  std::mutex mutex_;
  std::map<uint64_t, std::vector<Part>> waiting_;
};

}  // namespace torch_tpu::distributed
