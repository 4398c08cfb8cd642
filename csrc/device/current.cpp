#include "csrc/device/current.h"

#include <algorithm>
#include <string>

#include <c10/util/Exception.h>

#include "csrc/pjrt/runtime.h"
#include "csrc/trace/value.h"

namespace torch_tpu::device {
namespace {

thread_local int current = 0;

std::string describe_count(int count) {
  if (count == 1) return "there is only 1 tpu device, tpu:0";
  return "there are only " + std::to_string(count) +
         " tpu devices, tpu:0 to tpu:" + std::to_string(count - 1);
}

}  // namespace

int device_count() noexcept {
  try {
    int count = pjrt::Runtime::device_count_hint();
    if (count < 0) count = pjrt::Runtime::get().device_count();
    return std::min(count, trace::Ledger::kMaxDevices);
  } catch (...) {
    return 0;
  }
}

int current_device() noexcept { return current; }

int check_device(int64_t index) {
  if (index == -1) return current;
  if (index == current) return current;
  const int count = device_count();
  if (count == 0) pjrt::Runtime::get();  // says what is missing
  TORCH_CHECK(index >= 0 && index < count, "Invalid device id: tpu:", index, " was asked for, but ",
              describe_count(count), ".");
  return static_cast<int>(index);
}

void set_device(int64_t index) { current = check_device(index); }

int exchange_device(int64_t index) {
  const int previous = current;
  current = check_device(index);
  return previous;
}

void set_device_unchecked(int index) noexcept {
  if (index >= 0) current = index;
}

void check_not_forked() {
  if (pjrt::Runtime::in_bad_fork()) pjrt::Runtime::get();  // throws
}

}  // namespace torch_tpu::device
