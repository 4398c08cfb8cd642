#include "csrc/cache/compile_pool.h"

#include <pthread.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "csrc/base/env.h"
#include "csrc/base/fork.h"
#include "csrc/base/journal.h"
#include "csrc/base/signals.h"

namespace torch_tpu::cache {

namespace {

struct AsConfigured : CompilePool {
  AsConfigured() : CompilePool(static_cast<size_t>(base::env_compile_threads()), 1024) {}
};

}  // namespace

CompilePool& CompilePool::get() {
  // Never ends by itself: stop() is called at exit, by the bindings.
  static base::PerProcess<AsConfigured> pool;
  return pool.get();
}

bool CompilePool::submit(std::function<void()> task) {
  std::lock_guard lock(mutex_);
  if (stopped_ || queue_.size() >= max_queue_) return false;
  queue_.push_back(std::move(task));
  if (threads_.size() < max_threads_ && queue_.size() + running_ > threads_.size()) {
    const base::WithoutSignals for_it;
    threads_.emplace_back([this] { work(); });
  }
  wake_.notify_one();
  return true;
}

void CompilePool::work() {
  pthread_setname_np(pthread_self(), "tpu_compile");
  base::journal::name_thread("compiler", /*background=*/true);
  // Linux has a nice value per thread.
  setpriority(PRIO_PROCESS, static_cast<id_t>(syscall(SYS_gettid)), 10);
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [&] { return stopped_ || !queue_.empty(); });
    if (stopped_) return;
    std::function<void()> task = std::move(queue_.front());
    queue_.pop_front();
    ++running_;
    lock.unlock();
    task();
    task = nullptr;  // what it holds is freed outside the lock
    lock.lock();
    --running_;
    if (running_ == 0 && queue_.empty()) done_.notify_all();
  }
}

void CompilePool::wait() {
  std::unique_lock lock(mutex_);
  done_.wait(lock, [&] { return running_ == 0 && (queue_.empty() || stopped_); });
}

void CompilePool::stop() {
  std::deque<std::function<void()>> dropped;
  std::vector<std::thread> threads;
  {
    std::lock_guard lock(mutex_);
    stopped_ = true;
    dropped.swap(queue_);
    threads.swap(threads_);
    wake_.notify_all();
    if (running_ == 0) done_.notify_all();
  }
  for (std::thread& thread : threads) thread.join();
}

size_t CompilePool::busy() {
  std::lock_guard lock(mutex_);
  return running_ + queue_.size();
}

}  // namespace torch_tpu::cache
