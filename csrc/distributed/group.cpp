#include "csrc/distributed/group.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/ivalue.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/Exception.h>
#include <pthread.h>

#include "csrc/base/gil.h"
#include "csrc/base/hash.h"
#include "csrc/base/journal.h"
#include "csrc/base/signals.h"
#include "csrc/dispatch/call/mode.h"
#include "csrc/dispatch/report/profile_collective.h"
#include "csrc/distributed/agreement.h"
#include "csrc/distributed/flight.h"
#include "csrc/distributed/waiters.h"
#include "csrc/distributed/watchdog.h"

namespace torch_tpu::distributed {
namespace {

using Clock = std::chrono::steady_clock;

uint64_t fingerprint_of(const Collective& call) {
  // Both ends of a message have their own name for it.
  return base::hash_bytes((call.message ? "message" : call.op) + "\n" +
                          (call.local_detail ? "" : call.detail));
}

std::chrono::milliseconds left_of(const Collective& call) {
  const auto until = call.issued + call.timeout;
  return std::max(std::chrono::milliseconds(0),
                  std::chrono::duration_cast<std::chrono::milliseconds>(until - Clock::now()));
}

}  // namespace

std::exception_ptr make_error(const std::string& text) {
  return std::make_exception_ptr(
      c10::DistBackendError({__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, text));
}

std::string text_of(const std::exception_ptr& error) {
  try {
    if (error) std::rethrow_exception(error);
    return "";
  } catch (const c10::Error& e) {
    return e.what_without_backtrace();
  } catch (const std::exception& e) {
    return e.what();
  } catch (...) {
    return "unknown error";
  }
}

std::string Collective::where() const {
  {
    const std::lock_guard lock(words_);
    if (!site_.empty()) return " at " + site_;
  }
  const std::string text = dispatch::describe(line);
  if (text.empty()) return text;
  const std::lock_guard lock(words_);
  site_ = text;
  return " at " + text;
}

int64_t GroupInfo::global(int rank) const {
  return rank >= 0 && static_cast<size_t>(rank) < ranks.size() ? ranks[static_cast<size_t>(rank)]
                                                               : rank;
}

Group::Group(GroupInfo info) : info_(std::move(info)) {}

std::exception_ptr Group::failure() {
  std::lock_guard lock(mutex_);
  return failure_;
}

void Group::check() {
  if (std::exception_ptr error = failure()) std::rethrow_exception(error);
}

bool Group::failed() { return failure() != nullptr; }

void Group::issue(const CollectivePtr& call) {
  call->line = dispatch::issue_line();
  call->issued = Clock::now();
  if (call->timeout <= std::chrono::milliseconds(0)) call->timeout = info_.timeout;
  call->fingerprint = fingerprint_of(*call);
  for (const Operand& operand : call->operands) call->bytes += operand.nbytes();
  if (call->bytes == 0) {
    for (const Destination& destination : call->destinations) call->bytes += destination.nbytes();
  }
  const base::WithoutGil released;  // nothing below may wait with Python's lock
  if (std::exception_ptr error = failure()) {
    call->promise->finish(error);
    std::rethrow_exception(error);
  }

  if (base::journal::traced()) call->profiled = dispatch::profile_collective_begin();
  std::unique_lock order(order_);
  if (call->message) {
    call->seq = ++messages_[2 * call->peer + static_cast<int>(call->receives)];
  } else {
    call->seq = ++seq_;
  }
  if (info_.size > 1 && call->peer != info_.rank) {
    // What follows what is part of it: two ranks that take turns with known calls in different
    // order then notice as well.
    const uint64_t before =
        call->message ? static_cast<uint64_t>(2 * call->peer + call->receives) : previous_;
    // While a message from anyone is awaited nobody knows whose number it takes.
    if (call->message && call->peer < 0) ++from_anyone_;
    call->agree = !(call->message && call->receives && from_anyone_ > 0) &&
                  agreed_.insert(base::hash_combine(before, call->fingerprint)).second;
    if (!call->message) previous_ = call->fingerprint;
  }
  Flight::Entry entry;
  entry.group = info_.name;
  entry.seq = call->seq;
  entry.op = call->op;
  entry.detail = call->detail;
  entry.peer = call->message ? static_cast<int>(info_.global(call->peer)) : -1;
  entry.rank = static_cast<int>(info_.global(info_.rank));
  entry.on_device = call->on_device;
  entry.bytes = call->bytes;
  entry.line = call->line;
  call->record = Flight::get().add(std::move(entry));
  {
    std::lock_guard lock(mutex_);
    outstanding_.emplace(call->record, call);
    if (!call->message) {
      progress_.issued = call->seq;
      history_.add(call);
    }
  }
  if (call->in_turn) call->turn = std::make_shared<Turn>(Turns::of(call->device));
  bool ready = queue_.empty() && !call->agree && (!call->turn || call->turn->has_come());
  try {
    for (size_t i = 0; ready && i < call->operands.size(); ++i) {
      const Operand& operand = call->operands[i];
      ready = call->on_device ? operand.launched() : operand.ready();
    }
  } catch (...) {
    ready = false;  // the queue finds the same error and settles the call with it
  }
  if (ready) {
    const std::function<void()> rest = start(call);
    order.unlock();
    rest();
    return;
  }
  queue_.push_back(call);
  start_thread();
  queued_.notify_one();
}

void Group::start_thread() {
  if (running_) return;
  const base::WithoutSignals for_it;
  std::thread([self = shared_from_this()] { self->run_queue(); }).detach();
  running_ = true;
}

void Group::run_queue() {
  pthread_setname_np(pthread_self(), "tpu_group");
  std::unique_lock order(order_);
  while (true) {
    queued_.wait(order, [this] { return stopping_ || !queue_.empty(); });
    if (queue_.empty()) {
      running_ = false;
      return;
    }
    const CollectivePtr call = queue_.front();  // stays there, so that nobody overtakes it
    order.unlock();
    const bool ready = await_sources(call) && (!call->agree || agree(call)) && await_turn(call);
    order.lock();
    std::function<void()> rest;
    if (ready && !call->promise->done()) rest = start(call);
    if (!queue_.empty() && queue_.front() == call) queue_.pop_front();
    if (!rest) continue;
    order.unlock();
    rest();
    rest = nullptr;
    order.lock();
  }
}

bool Group::await_sources(const CollectivePtr& call) {
  try {
    for (const Operand& operand : call->operands) {
      const auto left = left_of(*call);
      if (!(call->on_device ? operand.await_launch(left) : operand.await(left))) {
        complete(call, make_error("its inputs were not computed in time"), true);
        return false;
      }
    }
    return true;
  } catch (...) {
    complete(call, std::current_exception(), false);
    return false;
  }
}

bool Group::await_turn(const CollectivePtr& call) {
  if (!call->turn || call->turn->await(call->issued + call->timeout)) return true;
  if (call->promise->done()) return false;  // it has failed meanwhile
  complete(call, make_error("what was called before on the device did not start in time"), true);
  return false;
}

c10d::Store& Group::store() {
  if (!store_) store_ = info_.store->clone();
  return *store_;
}

bool Group::agree(const CollectivePtr& call) {
  try {
    const std::string problem =
        compare_with_others(store(), info_, *call, [&] { return call->promise->done(); });
    if (problem.empty()) return true;
    Watchdog::get().report(shared_from_this(), call, problem, /*final=*/true);
  } catch (...) {
    complete(call, std::current_exception(), true);
  }
  return false;
}

namespace {

// Host tensors are plain memory here, made on one thread and written on another: neither autograd
// nor inference mode has a say in it.
struct PlainTensors {
  const c10::InferenceMode no_inference{false};
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
};

bool is_of_arguments(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const c10::Error&) {
    return true;
  } catch (...) {
    return false;
  }
}

}  // namespace

std::function<void()> Group::start(const CollectivePtr& call) {
  const PlainTensors plain;
  Flight::get().start(call->record);
  call->started_ns = base::journal::now_ns();
  std::vector<WorkPtr> works;
  try {
    works = call->start(*call);
    if (works.empty()) call->rooted = true;  // nothing to send: nobody is met
    if (call->turn) call->turn->pass();
  } catch (...) {
    return [self = shared_from_this(), call, error = std::current_exception()] {
      self->complete(call, error, /*of_transport=*/!is_of_arguments(error));
    };
  }
  struct Left {
    std::atomic<size_t> count;
    std::mutex mutex;
    std::exception_ptr error;
  };
  auto left = std::make_shared<Left>();
  left->count = works.size() + 1;
  const auto step = [self = shared_from_this(), call, left](std::exception_ptr error) {
    if (error) {
      std::lock_guard lock(left->mutex);
      if (!left->error) left->error = error;
    }
    if (left->count.fetch_sub(1) == 1) self->complete(call, left->error, true);
  };
  for (const WorkPtr& work : works) {
    if (call->message) {
      Waiters::get().run([self = shared_from_this(), work, call, step] {
        try {
          work->wait();
          if (call->peer < 0) {
            call->source_rank = work->sourceRank();
            const std::lock_guard lock(self->order_);  // its sender has counted it, too
            ++self->messages_[2 * call->source_rank + 1];
            --self->from_anyone_;
          }
          step(nullptr);
        } catch (...) {
          step(std::current_exception());
        }
      });
    } else {
      work->getFuture()->addCallback([step, work](c10::ivalue::Future& future) {
        step(future.hasError() ? future.exception_ptr() : nullptr);
      });
    }
  }
  return [step] { step(nullptr); };
}

void Group::complete(const CollectivePtr& call, std::exception_ptr error, bool of_transport) {
  const PlainTensors plain;
  if (!error) {
    try {
      if (call->finish) call->finish(*call);
      if (!call->promise->done()) {
        for (Destination& destination : call->destinations) destination.deliver();
      }
    } catch (...) {
      error = std::current_exception();
      of_transport = false;
    }
  }
  // Before the promise is kept: see DeviceValue::demand.
  call->operands.clear();
  call->destinations.clear();
  call->start = nullptr;
  call->finish = nullptr;
  if (error && of_transport && info_.size > 1) {
    Watchdog::get().report(shared_from_this(), call, text_of(error));
    return;
  }
  settle(call, error);
}

namespace {

void add_span(const GroupInfo& info, const Collective& call, bool failed) {
  const int64_t end = base::journal::now_ns();
  const int64_t start = call.started_ns != 0 ? call.started_ns : end;
  base::journal::add(base::journal::Kind::kCollective, call.op, start, end - start, 0, 0,
                     call.bytes);
  if (!call.profiled) return;
  dispatch::CollectiveSpan span;
  span.op = call.op;
  span.detail = call.detail;
  span.group = info.name;
  span.seq = call.seq;
  span.bytes = call.bytes;
  span.device = call.device;
  span.line = call.line;
  span.start_ns = start;
  span.end_ns = end;
  span.failed = failed;
  dispatch::profile_collective_end(span);
}

}  // namespace

void Group::settle(const CollectivePtr& call, std::exception_ptr error) {
  if (call->turn) call->turn->pass();
  Flight::get().finish(call->record, text_of(error));
  {
    std::lock_guard lock(mutex_);
    outstanding_.erase(call->record);
    if (!call->message && !error) {
      progress_.completed = std::max(progress_.completed, call->seq);
      if (!call->rooted) progress_.met = std::max(progress_.met, call->seq);
    }
    if (outstanding_.empty() || failure_) settled_.notify_all();
  }
  const bool failed = error != nullptr;
  call->promise->finish(std::move(error));
  // Afterwards, so that nobody waits for it.
  add_span(info_, *call, failed);
}

}  // namespace torch_tpu::distributed
