// Signals belong to the program's own threads: those started while this lives get none, so that
// handlers (a profiler's, Python's) run where the program expects them. XLA:CPU's threads must not
// be interrupted at all: a SIGPROF in a matrix product damages the heap.
#pragma once

#include <csignal>

namespace torch_tpu::base {

class WithoutSignals {
 public:
  WithoutSignals() noexcept {
    sigset_t all;
    sigfillset(&all);
    // A thread's own faults end the process, with whatever handler there is.
    for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP}) {
      sigdelset(&all, fault);
    }
    set_ = pthread_sigmask(SIG_SETMASK, &all, &before_) == 0;
  }
  ~WithoutSignals() {
    if (set_) pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  WithoutSignals(const WithoutSignals&) = delete;
  WithoutSignals& operator=(const WithoutSignals&) = delete;

 private:
  sigset_t before_{};
  bool set_ = false;
};

}  // namespace torch_tpu::base
