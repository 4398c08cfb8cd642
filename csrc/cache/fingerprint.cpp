#include "csrc/cache/fingerprint.h"

#include <algorithm>
#include <cstring>
#include <fstream>
#include <iterator>
#include <set>
#include <sstream>

#include <c10/core/DefaultDtype.h>
#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <sched.h>
#include <sys/utsname.h>
#include <torch/version.h>

#include "csrc/base/env.h"
#include "csrc/cache/bytes.h"
#include "csrc/pjrt/runtime.h"
#include "csrc/pjrt/topology.h"

namespace torch_tpu::cache {
namespace {

// Raised when the meaning of keys or of the files changes in a way the build id would not show.
constexpr const char* kFormat = "1";

std::string hex(std::string_view bytes) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string out;
  for (const unsigned char byte : bytes) {
    out += kDigits[byte >> 4];
    out += kDigits[byte & 15];
  }
  return out;
}

struct NoteSearch {
  uintptr_t address;
  std::string id;
};

// dl_iterate_phdr: is this the library, and has it a build id?
int look_at_library(dl_phdr_info* info, size_t, void* data) {
  auto& search = *static_cast<NoteSearch*>(data);
  bool inside = false;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const ElfW(Phdr) & part = info->dlpi_phdr[i];
    const uintptr_t begin = info->dlpi_addr + part.p_vaddr;
    inside |=
        part.p_type == PT_LOAD && search.address >= begin && search.address < begin + part.p_memsz;
  }
  if (!inside) return 0;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const ElfW(Phdr) & part = info->dlpi_phdr[i];
    if (part.p_type != PT_NOTE) continue;
    const auto* at = reinterpret_cast<const char*>(info->dlpi_addr + part.p_vaddr);
    const char* end = at + part.p_memsz;
    const size_t align = part.p_align >= 8 ? 8 : 4;
    const auto padded = [align](size_t n) { return (n + align - 1) / align * align; };
    while (at + sizeof(ElfW(Nhdr)) <= end) {
      ElfW(Nhdr) note;
      std::memcpy(&note, at, sizeof(note));
      const char* name = at + sizeof(note);
      const char* text = name + padded(note.n_namesz);
      if (text + note.n_descsz > end) break;
      if (note.n_type == NT_GNU_BUILD_ID && note.n_namesz == 4 &&
          std::memcmp(name, "GNU", 4) == 0) {
        search.id = hex({text, note.n_descsz});
        return 1;
      }
      at = text + padded(note.n_descsz);
    }
  }
  return 1;
}

// A library of another build differs nearly everywhere, so a few hundred KiB of it will do.
std::string sample_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) return "";
  constexpr int64_t kPieces = 64, kPiece = 4096;
  const int64_t size = file.tellg();
  std::string samples = std::to_string(size) + ":";
  for (int64_t i = 0; i < kPieces; ++i) {
    std::string piece(kPiece, '\0');
    file.clear();
    file.seekg(std::max<int64_t>(0, size - kPiece) / (kPieces - 1) * i);
    file.read(piece.data(), kPiece);
    samples.append(piece, 0, static_cast<size_t>(file.gcount()));
  }
  return base::digest(samples).hex();
}

// XLA:CPU programs are machine code for this processor.
std::string host_cpu() {
  std::ifstream file("/proc/cpuinfo");
  std::string line, model, features;
  while (std::getline(file, line)) {
    const size_t colon = line.find(':');
    if (colon == line.npos) {
      if (!features.empty()) break;  // the first processor will do
      continue;
    }
    const std::string name = line.substr(0, line.find_last_not_of(" \t", colon - 1) + 1);
    const std::string value = colon + 2 <= line.size() ? line.substr(colon + 2) : "";
    if (name == "model name" || name == "CPU part") model = value;
    if (name == "flags" || name == "Features") features = value;
  }
  std::istringstream words(features);
  std::set<std::string> sorted{std::istream_iterator<std::string>(words), {}};
  std::string out = model + ";";
  for (const std::string& feature : sorted) out += " " + feature;
  utsname name{};
  return (uname(&name) == 0 ? std::string(name.machine) + "; " : "") + out;
}

std::string host_threads() {
  cpu_set_t set;
  CPU_ZERO(&set);
  return sched_getaffinity(0, sizeof(set), &set) == 0 ? std::to_string(CPU_COUNT(&set)) : "?";
}

template <typename Devices>
std::string kinds_of(const Devices& devices) {
  std::set<std::string> kinds;
  for (const auto& device : devices) kinds.insert(device.kind());
  std::string out;
  for (const std::string& one : kinds) out += (out.empty() ? "" : ", ") + one;
  return out;
}

std::vector<Fingerprint::Field> fields_of(const std::string& platform, const std::string& version,
                                          const std::string& kinds, const pjrt::Plugin& plugin,
                                          const std::string& compile_options) {
  std::string attributes;
  for (const auto& [name, value] : plugin.attributes()) {
    attributes += name + "=" + pjrt::to_string(value) + " ";
  }
  return {
      {"platform", platform},
      {"device", kinds},
      {"format", kFormat},
      {"torch_tpu", library_id(reinterpret_cast<const void*>(&Fingerprint::current))},
      {"torch", TORCH_VERSION},
      {"torch_library", library_id(reinterpret_cast<const void*>(&c10::set_default_dtype))},
      {"plugin", library_id(plugin.api())},
      {"plugin_version", version},
      {"plugin_attributes", attributes},
      {"pjrt_api", pjrt::api_version_string(plugin.api())},
      {"compile_options", hex(compile_options)},
      {"compiler_flags", base::env_compiler_flags()},
  };
}

Fingerprint make_current() {
  const pjrt::Runtime& runtime = pjrt::Runtime::get();
  const pjrt::Client& client = runtime.client();
  std::vector<Fingerprint::Field> fields =
      fields_of(client.platform_name(), client.platform_version(),
                kinds_of(client.addressable_devices()), client.plugin(), runtime.compile_options());
  if (runtime.host_addressable()) {
    fields.push_back({"host_cpu", host_cpu()});
    fields.push_back({"host_threads", host_threads()});  // decides how loops are split
  }
  return Fingerprint(std::move(fields));
}

void add_json_string(std::string& out, const std::string& text) {
  static constexpr char kDigits[] = "0123456789abcdef";
  out += '"';
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      out += std::string("\\u00") + kDigits[(c >> 4) & 15] + kDigits[c & 15];
    } else {
      out += c;
    }
  }
  out += '"';
}

// What to print of a value: words that only one of two lists has, when they are lists.
std::string shown(const std::string& value, const std::string& other) {
  constexpr size_t kShort = 80;
  if (value.size() <= kShort) return value.empty() ? "none" : value;
  std::istringstream mine(value), theirs(other);
  const std::set<std::string> others{std::istream_iterator<std::string>(theirs), {}};
  std::string out;
  for (std::string word; mine >> word;) {
    if (!others.count(word)) out += (out.empty() ? "" : " ") + word;
  }
  if (out.empty()) return "less";
  return out.size() <= 4 * kShort ? "... " + out : out.substr(0, 4 * kShort) + "...";
}

}  // namespace

std::string library_id(const void* address) {
  NoteSearch search{reinterpret_cast<uintptr_t>(address), ""};
  dl_iterate_phdr(look_at_library, &search);
  if (!search.id.empty()) return search.id;
  Dl_info info{};
  if (dladdr(address, &info) == 0 || info.dli_fname == nullptr) return "";
  return sample_file(info.dli_fname);
}

const Fingerprint& Fingerprint::current() {
  static const auto* fingerprint = new Fingerprint(make_current());
  return *fingerprint;
}

Fingerprint Fingerprint::of(const pjrt::Topology& topology) {
  return Fingerprint(fields_of(topology.platform_name(), topology.platform_version(),
                               kinds_of(topology.devices()), topology.plugin(),
                               pjrt::CompileOptions::portable().serialize()));
}

std::string Fingerprint::value(std::string_view name) const {
  for (const Field& field : fields_) {
    if (field.name == name) return field.value;
  }
  return "";
}

base::Digest Fingerprint::digest() const { return base::digest(serialize()); }

std::string Fingerprint::folder_name() const {
  std::string platform;
  for (const char c : value("platform")) {
    if ((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9')) platform += c;
  }
  return (platform.empty() ? "device" : platform) + "-" + digest().hex();
}

std::string Fingerprint::json() const {
  std::string out = "{\n";
  for (size_t i = 0; i < fields_.size(); ++i) {
    out += "  ";
    add_json_string(out, fields_[i].name);
    out += ": ";
    add_json_string(out, fields_[i].value);
    out += i + 1 < fields_.size() ? ",\n" : "\n";
  }
  return out + "}\n";
}

std::string Fingerprint::serialize() const {
  ByteWriter out;
  out.add<uint32_t>(static_cast<uint32_t>(fields_.size()));
  for (const Field& field : fields_) {
    out.add_text(field.name);
    out.add_text(field.value);
  }
  return out.take();
}

std::optional<Fingerprint> Fingerprint::parse(std::string_view bytes) {
  try {
    ByteReader in(bytes);
    std::vector<Field> fields(in.count<uint32_t>(16));
    for (Field& field : fields) {
      field.name = in.text();
      field.value = in.text();
    }
    if (!in.done()) return std::nullopt;
    return Fingerprint(std::move(fields));
  } catch (const BadBytes&) {
    return std::nullopt;
  }
}

std::string Fingerprint::differences(const Fingerprint& here) const {
  std::string out;
  std::set<std::string> names;
  const auto compare = [&](const Field& field) {
    if (!names.insert(field.name).second) return;
    const std::string mine = value(field.name), theirs = here.value(field.name);
    if (mine == theirs) return;
    out += "  " + field.name + ": " + shown(mine, theirs) + " there, " + shown(theirs, mine) +
           " here\n";
  };
  for (const Field& field : fields_) compare(field);
  for (const Field& field : here.fields_) compare(field);
  return out;
}

}  // namespace torch_tpu::cache
