// What a compiled program depends on beside its key: the compiler, the device, torch, and our own
// code. Programs on disk live in one folder per fingerprint, so that none ever meets another.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "csrc/base/digest.h"

namespace torch_tpu::pjrt {
class Topology;
}

namespace torch_tpu::cache {

class Fingerprint {
 public:
  struct Field {
    std::string name;
    std::string value;
  };

  Fingerprint() = default;
  explicit Fingerprint(std::vector<Field> fields) : fields_(std::move(fields)) {}
  // Of this process. Starts the client.
  static const Fingerprint& current();
  // Of a process like this one on a machine with such devices.
  static Fingerprint of(const pjrt::Topology& topology);

  const std::vector<Field>& fields() const { return fields_; }
  std::string value(std::string_view name) const;  // empty when there is none

  // Of all fields, names included.
  base::Digest digest() const;
  std::string folder_name() const;  // "cpu-" and 32 digits
  std::string json() const;         // for people

  // For packs.
  std::string serialize() const;
  static std::optional<Fingerprint> parse(std::string_view bytes);
  // One line per field that is not the same: "torch: 2.12.0 there, 2.13.0 here".
  std::string differences(const Fingerprint& here) const;

 private:
  std::vector<Field> fields_;
};

// Tells two builds of the library that holds `address` apart: its ELF build id or, where the linker
// left none, a digest of samples of the file.
std::string library_id(const void* address);

}  // namespace torch_tpu::cache
