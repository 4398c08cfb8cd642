#include "csrc/device/generator.h"

#include <array>
#include <bit>
#include <cstring>
#include <mutex>

#include <ATen/EmptyTensor.h>

#include "csrc/device/current.h"
#include "csrc/trace/value.h"

namespace torch_tpu::device {
namespace {

constexpr size_t kWord = sizeof(uint64_t);
static_assert(std::endian::native == std::endian::little, "the state is written little endian");

std::array<at::Generator, trace::Ledger::kMaxDevices>& default_generators() {
  // Leaked: Python may draw while statics are destroyed.
  static auto* generators = [] {
    auto* all = new std::array<at::Generator, trace::Ledger::kMaxDevices>();
    for (size_t i = 0; i < all->size(); ++i) {
      (*all)[i] = at::make_generator<TpuGenerator>(static_cast<int>(i));
      (*all)[i].seed();
    }
    return all;
  }();
  return *generators;
}

}  // namespace

struct TpuGenerator::State {
  std::mutex mutex;
  uint64_t seed = c10::default_rng_seed_val;
  uint64_t offset = 0;
};

TpuGenerator::TpuGenerator(int device)
    : c10::GeneratorImpl(make_device(device), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)),
      state_(std::make_shared<State>()) {}

std::shared_ptr<TpuGenerator::State> TpuGenerator::state() const { return state_.load(); }

std::pair<uint64_t, uint64_t> TpuGenerator::reserve(uint64_t count) {
  const auto state = this->state();
  std::lock_guard lock(state->mutex);
  const uint64_t offset = state->offset;
  state->offset += count;
  return {state->seed, offset};
}

void TpuGenerator::set_current_seed(uint64_t seed) {
  const auto state = this->state();
  std::lock_guard lock(state->mutex);
  state->seed = seed;
  state->offset = 0;
}

uint64_t TpuGenerator::current_seed() const {
  const auto state = this->state();
  std::lock_guard lock(state->mutex);
  return state->seed;
}

uint64_t TpuGenerator::seed() {
  const uint64_t seed = c10::detail::getNonDeterministicRandom();
  set_current_seed(seed);
  return seed;
}

void TpuGenerator::set_offset(uint64_t offset) {
  const auto state = this->state();
  std::lock_guard lock(state->mutex);
  state->offset = offset;
}

uint64_t TpuGenerator::get_offset() const {
  const auto state = this->state();
  std::lock_guard lock(state->mutex);
  return state->offset;
}

void TpuGenerator::set_state(const c10::TensorImpl& new_state) {
  at::detail::check_rng_state(new_state);
  const auto bytes = static_cast<size_t>(new_state.numel());
  TORCH_CHECK(bytes == 2 * kWord || bytes == kWord, "RNG state is wrong size: expected ", 2 * kWord,
              " bytes, got ", bytes);
  const auto* data = static_cast<const char*>(new_state.data());
  uint64_t seed = 0;
  uint64_t offset = 0;
  std::memcpy(&seed, data, kWord);
  if (bytes == 2 * kWord) std::memcpy(&offset, data + kWord, kWord);
  const auto state = this->state();
  std::lock_guard lock(state->mutex);
  state->seed = seed;
  state->offset = offset;
}

c10::intrusive_ptr<c10::TensorImpl> TpuGenerator::get_state() const {
  at::TensorBase tensor =
      at::detail::empty_cpu({static_cast<int64_t>(2 * kWord)}, c10::ScalarType::Byte);
  auto* data = static_cast<char*>(tensor.mutable_data_ptr());
  const auto state = this->state();
  {
    std::lock_guard lock(state->mutex);
    std::memcpy(data, &state->seed, kWord);
    std::memcpy(data + kWord, &state->offset, kWord);
  }
  return tensor.getIntrusivePtr();
}

void TpuGenerator::graphsafe_set_state(const c10::intrusive_ptr<c10::GeneratorImpl>& other) {
  auto* generator = dynamic_cast<TpuGenerator*>(other.get());
  TORCH_CHECK(generator != nullptr, "Expected a 'tpu' device type for generator but found '",
              other->device().type(), "'");
  state_.store(generator->state());
}

c10::intrusive_ptr<c10::GeneratorImpl> TpuGenerator::graphsafe_get_state() const {
  auto twin = c10::make_intrusive<TpuGenerator>(device().index());
  twin->state_.store(state());
  return twin;
}

TpuGenerator* TpuGenerator::clone_impl() const {
  auto* copy = new TpuGenerator(device().index());
  const auto to = copy->state();
  const auto from = state();
  std::lock_guard lock(from->mutex);
  to->seed = from->seed;
  to->offset = from->offset;
  return copy;
}

const at::Generator& default_generator(int device) {
  return default_generators().at(static_cast<size_t>(device));
}

void seed_all(uint64_t seed) {
  for (at::Generator& generator : default_generators()) generator.set_current_seed(seed);
}

TpuGenerator& generator_for(const std::optional<at::Generator>& generator, int device) {
  const at::Generator& chosen =
      generator && generator->defined() ? *generator : default_generator(device);
  auto* tpu = at::check_generator<TpuGenerator>(chosen);
  TORCH_CHECK(tpu->device().index() == device, "Expected a generator of device tpu:", device,
              " but found one of ", tpu->device());
  return *tpu;
}

}  // namespace torch_tpu::device
