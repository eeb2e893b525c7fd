#include "lib/training/run_folder.h"

#include <array>
#include <filesystem>

#include "lib/base/error.h"
#include "lib/checkpoint/atomic_file.h"
#include "lib/config/load.h"

namespace quintet::training {
namespace {

namespace fs = std::filesystem;

constexpr std::array kOutputs = {"metrics.jsonl", "log.txt", "log", "config.yaml", "gradients", "weights", "loss.png"};

std::string set_aside(const fs::path& folder) {
  int number = 1;
  while (fs::exists(folder / fmt::format("earlier_{}", number))) ++number;
  const fs::path aside = folder / fmt::format("earlier_{}", number);
  fs::create_directory(aside);
  for (const char* output : kOutputs)
    if (fs::exists(folder / output)) fs::rename(folder / output, aside / output);
  return aside.string();
}

}  // namespace

std::string run_folder(const config::Config& config) { return config.run.dir + "/" + config.run.name; }

std::string prepare_run_folder(const config::Config& config) {
  const fs::path folder = run_folder(config);
  try {
    fs::create_directories(folder);
    std::string aside;
    if (fs::exists(folder / "metrics.jsonl")) {
      if (config.checkpoint.resume == "never")
        fail(ExitCode::config,
             "checkpoint.resume: never, and {} holds an earlier run; choose another run.name or remove the folder",
             folder.string());
      aside = set_aside(folder);
    }
    checkpoint::write_file(folder / "config.yaml", config::to_yaml(config));
    return aside;
  } catch (const fs::filesystem_error& problem) {
    fail(ExitCode::config, "run.dir: {} cannot be used: {}", folder.string(), problem.code().message());
  }
}

}  // namespace quintet::training
