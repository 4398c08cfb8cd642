// Threads that compile in the background, at a lower priority than the work they are for. Bounded:
// a full queue refuses, and the caller asks again the next time it meets the program.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace torch_tpu::cache {

class CompilePool {
 public:
  static CompilePool& get();
  CompilePool(size_t threads, size_t max_queue) : max_threads_(threads), max_queue_(max_queue) {}

  // False when the queue is full or the pool was stopped. The task must not throw.
  bool submit(std::function<void()> task);
  // Until nothing is queued or running.
  void wait();
  // Drops what is queued and waits for what is running. No task is taken after this.
  void stop();
  size_t busy();  // queued and running
  size_t max_threads() const { return max_threads_; }

 private:
  void work();

  std::mutex mutex_;
  std::condition_variable wake_;
  std::condition_variable done_;
  std::deque<std::function<void()>> queue_;
  std::vector<std::thread> threads_;
  size_t running_ = 0;
  const size_t max_threads_;
  const size_t max_queue_;
  bool stopped_ = false;
};

}  // namespace torch_tpu::cache
