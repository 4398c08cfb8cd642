// Threads that wait for messages of the transport, which has no other way to tell. One message per
// thread, or one that never comes would hold up the others.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>

namespace torch_tpu::distributed {

class Waiters {
 public:
  static Waiters& get();
  void run(std::function<void()> task);

 private:
  void work();

  std::mutex mutex_;
  std::condition_variable added_;
  std::deque<std::function<void()>> tasks_;
  size_t idle_ = 0;
};

}  // namespace torch_tpu::distributed
