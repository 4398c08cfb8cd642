// Runs a model that torch_tpu.export wrote, with nothing but a PJRT plugin: no Python, no torch.
// What is on the command line is read here; export.cpp does the work.

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <map>
#include <optional>
#include <stdexcept>

#include "csrc/pjrt/plugin_resolve.h"
#include "export.h"

namespace {

namespace fs = std::filesystem;
using namespace run_exported;

constexpr const char* kHelp = R"(usage: run_exported FOLDER [options]

Runs a model that torch_tpu.export wrote.

  --input NAME=FILE   an input: a .npy file, or the bare elements in row-major order
  --inputs FILE       inputs by name from a safetensors file
  --output PATH       write the outputs: a .safetensors file, or a folder for .npy files
  --list              only say what goes in and out
  --runs N            call it N times; says how long a call takes (default 1)
  --seed N            of random ops (default 0)
  --plugin PLUGIN     auto, cpu, cuda, tpu, or a PJRT plugin library
                      (default: $TORCH_TPU_PLUGIN, or auto: a TPU where there is one, else cpu)
  --help              this text

Plugins are looked for in the Python packages of $VIRTUAL_ENV, of the user and of the system.
)";

struct Options {
  fs::path folder;
  std::map<std::string, fs::path> inputs;
  std::optional<fs::path> inputs_file;
  std::optional<fs::path> output;
  std::string plugin;
  bool list = false;
  bool help = false;
  int runs = 1;
  uint64_t seed = 0;
};

class UsageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

uint64_t number(const std::string& text) {
  size_t end = 0;
  uint64_t value = 0;
  try {
    value = std::stoull(text, &end);
  } catch (const std::exception&) {
    end = 0;
  }
  if (end == 0 || end != text.size()) throw UsageError("'" + text + "' is no number");
  return value;
}

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const auto next = [&]() -> std::string {
      if (i + 1 >= argc) throw UsageError(word + " needs a value");
      return argv[++i];
    };
    if (word == "--help" || word == "-h") {
      options.help = true;
    } else if (word == "--list") {
      options.list = true;
    } else if (word == "--input") {
      const std::string value = next();
      const size_t equals = value.find('=');
      if (equals == value.npos) throw UsageError("--input takes NAME=FILE, not '" + value + "'");
      options.inputs[value.substr(0, equals)] = value.substr(equals + 1);
    } else if (word == "--inputs") {
      options.inputs_file = next();
    } else if (word == "--output" || word == "-o") {
      options.output = next();
    } else if (word == "--plugin") {
      options.plugin = next();
    } else if (word == "--runs") {
      options.runs = static_cast<int>(number(next()));
    } else if (word == "--seed") {
      options.seed = number(next());
    } else if (word.starts_with("-") || !options.folder.empty()) {
      throw UsageError("'" + word + "' is not understood");
    } else {
      options.folder = word;
    }
  }
  if (options.folder.empty() && !options.help) throw UsageError("which folder?");
  return options;
}

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

// Folders of Python packages that exist, since plugins are distributed as such.
std::vector<std::string> package_folders() {
  std::vector<std::string> found;
  const auto look = [&](const fs::path& lib) {
    std::error_code ignored;
    for (const auto& entry : fs::directory_iterator(lib, ignored)) {
      if (!entry.path().filename().string().starts_with("python3")) continue;
      for (const char* name : {"site-packages", "dist-packages"}) {
        if (fs::is_directory(entry.path() / name, ignored)) found.push_back(entry.path() / name);
      }
    }
  };
  if (const std::string venv = environment("VIRTUAL_ENV"); !venv.empty()) look(venv + "/lib");
  if (const std::string home = environment("HOME"); !home.empty()) look(home + "/.local/lib");
  look("/usr/local/lib");
  look("/usr/lib");
  return found;
}

void list(const Export& exported) {
  for (const Program& program : exported.programs) {
    std::cout << exported.name << " (" << program.module << ")\n";
    for (const Value* input : program.inputs()) {
      std::cout << "  input  " << input->name << ": " << type_text(*input->dtype, input->shape)
                << "\n";
    }
    for (const Value& result : program.results) {
      if (result.kind != "output" && result.kind != "input") continue;
      std::cout << (result.kind == "output" ? "  output " : "  writes ") << result.name << ": "
                << type_text(*result.dtype, result.shape) << "\n";
    }
  }
}

std::vector<Array> read_inputs(const Options& options, const Program& program) {
  std::optional<Safetensors> file;
  if (options.inputs_file) file.emplace(*options.inputs_file);
  std::vector<Array> arrays;
  for (const Value* input : program.inputs()) {
    const std::string wanted = input->name + ": " + type_text(*input->dtype, input->shape);
    const auto given = options.inputs.find(input->name);
    if (given != options.inputs.end()) {
      arrays.push_back(read_array(given->second, *input->dtype, input->shape));
    } else if (file && file->has(input->name)) {
      arrays.push_back(file->read(input->name));
    } else {
      throw UsageError("an input is missing: " + wanted + ". Give --input " + input->name +
                       "=FILE");
    }
    if (arrays.back().dtype != input->dtype || arrays.back().shape != input->shape) {
      throw UsageError("wrong input: expected " + wanted + ", got " + arrays.back().type_text());
    }
  }
  return arrays;
}

// The program whose sizes are those of the inputs, and the inputs.
std::pair<const Program*, std::vector<Array>> choose(const Options& options,
                                                     const Export& exported) {
  for (const auto& [name, path] : options.inputs) {
    bool known = false;
    for (const Value* input : exported.programs[0].inputs()) known |= input->name == name;
    if (!known) throw UsageError("there is no input '" + name + "'; see --list");
  }
  for (size_t i = 0; i < exported.programs.size(); ++i) {
    try {
      return {&exported.programs[i], read_inputs(options, exported.programs[i])};
    } catch (const std::runtime_error&) {
      if (i + 1 == exported.programs.size()) throw;
    }
  }
  throw UsageError("no program");
}

void write(const fs::path& path, const NamedArrays& outputs) {
  if (path.extension() == ".safetensors") {
    write_safetensors(path, outputs);
    return;
  }
  fs::create_directories(path);
  for (const auto& [name, array] : outputs) {
    if (name.find('/') != name.npos) {
      throw UsageError("the output '" + name + "' has a name for no file; write a .safetensors");
    }
    write_npy(path / (name + ".npy"), array);
  }
}

int run(const Options& options) {
  const Export exported = Export::read(options.folder);
  if (options.list) {
    list(exported);
    return 0;
  }
  const auto [program, inputs] = choose(options, exported);
  if (!options.plugin.empty()) setenv("TORCH_TPU_PLUGIN", options.plugin.c_str(), 1);
  torch_tpu::pjrt::set_search_dirs(package_folders());
  using Clock = std::chrono::steady_clock;
  const auto milliseconds = [](Clock::duration time) {
    return std::chrono::duration<double, std::milli>(time).count();
  };
  const auto start = Clock::now();
  Session session(exported, *program, options.seed);
  for (size_t i = 0; i < inputs.size(); ++i) session.set_input(i, inputs[i]);
  const auto loaded = Clock::now();
  NamedArrays outputs;
  for (int i = 0; i < options.runs; ++i) outputs = session.run();
  const auto done = Clock::now();
  for (const auto& [name, array] : outputs) {
    std::cout << name << ": " << array.type_text() << " " << array.values_text(8) << "\n";
  }
  std::cerr << "loaded in " << milliseconds(loaded - start) << " ms, "
            << milliseconds(done - loaded) / std::max(1, options.runs) << " ms a call\n";
  if (options.output) write(*options.output, outputs);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const Options options = parse(argc, argv);
    if (options.help) {
      std::cout << kHelp;
      return 0;
    }
    return run(options);
  } catch (const UsageError& error) {
    std::cerr << "run_exported: " << error.what() << "\n(--help says more)\n";
    return 2;
  } catch (const std::exception& error) {
    std::cerr << "run_exported: " << error.what() << "\n";
    return 1;
  }
}
