#include "lib/training/run_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <filesystem>
#include <system_error>

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

FolderLock::FolderLock(const std::string& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  descriptor_ = open((folder + "/.lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (descriptor_ < 0)
    fail(ExitCode::config, "run.dir: {} cannot be used: {}", folder, std::generic_category().message(errno));
  if (flock(descriptor_, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) return;
  close(descriptor_);
  fail(ExitCode::config, "run.name: {} is in use by another run; wait for its end or choose another name", folder);
}

FolderLock::~FolderLock() { close(descriptor_); }

std::string run_folder(const config::Config& config) { return config.run.dir + "/" + config.run.name; }

std::string prepare_run_folder(const config::Config& config) {
  const fs::path folder = run_folder(config);
  try {
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
