// Random state of a device: a seed and an offset into its counter-based stream. Draws take a range
// of offsets, so the state is 16 bytes and never lives on the device.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include <ATen/core/Generator.h>

namespace torch_tpu::device {

// Thread-safe without GeneratorImpl::mutex_, which callers may hold: the state has its own lock, as
// several generators can share one state (graphsafe_get_state).
class TpuGenerator final : public c10::GeneratorImpl {
 public:
  explicit TpuGenerator(int device);

  static c10::DeviceType device_type() { return c10::DeviceType::PrivateUse1; }

  // The (seed, offset) of a draw of `count` numbers; the next draw starts after it.
  std::pair<uint64_t, uint64_t> reserve(uint64_t count);

  void set_current_seed(uint64_t seed) override;  // and the offset becomes 0
  uint64_t current_seed() const override;
  uint64_t seed() override;  // a new nondeterministic seed
  void set_offset(uint64_t offset) override;
  uint64_t get_offset() const override;

  // A CPU byte tensor: seed, then offset, 8 bytes each, little endian. Without the offset it is 0.
  void set_state(const c10::TensorImpl& state) override;
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override;
  // Shares the state instead of copying it.
  void graphsafe_set_state(const c10::intrusive_ptr<c10::GeneratorImpl>& other) override;
  c10::intrusive_ptr<c10::GeneratorImpl> graphsafe_get_state() const override;

 private:
  struct State;
  TpuGenerator* clone_impl() const override;
  std::shared_ptr<State> state() const;

  std::atomic<std::shared_ptr<State>> state_;  // replaced only by graphsafe_set_state
};

// The default generator of a device, made on first use with a nondeterministic seed; never freed.
// Needs no client.
const at::Generator& default_generator(int device);

// Seeds the default generators of all devices, also those not counted yet.
void seed_all(uint64_t seed);

// The generator an op draws from: the one given, which must be a tpu generator of this device, or
// the device's default one.
TpuGenerator& generator_for(const std::optional<at::Generator>& generator, int device);

}  // namespace torch_tpu::device
