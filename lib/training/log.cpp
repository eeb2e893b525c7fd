#include "lib/training/log.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include <spdlog/logger.h>
#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/stdout_sinks.h>

namespace quintet::training {
namespace {

// Open MPI's mpirun gives rank 0 a pseudo-terminal, even where its own output is a file; that has no width.
// scripts/launch knows better.
bool console_is_terminal() {
  if (std::getenv("QUINTET_TERMINAL") != nullptr) return true;
  winsize size{};
  return isatty(STDOUT_FILENO) != 0 && ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
}

}  // namespace

struct Log::Sinks {
  std::unique_ptr<spdlog::logger> console;  // and log.txt
  std::unique_ptr<spdlog::logger> file;     // log.txt alone
  std::unique_ptr<spdlog::logger> own;      // this rank's file
  bool is_terminal = false;
  bool shows_progress = false;
};

Log::Log(const std::string& folder, int64_t rank, bool debug) : sinks_(std::make_unique<Sinks>()) {
  try {
    if (rank == 0) {
      sinks_->is_terminal = console_is_terminal();
      auto console = std::make_shared<spdlog::sinks::stdout_sink_st>();
      console->set_pattern("%v");
      auto file = std::make_shared<spdlog::sinks::basic_file_sink_st>(folder + "/log.txt");
      file->set_pattern("%Y-%m-%d %H:%M:%S  %v");
      sinks_->console = std::make_unique<spdlog::logger>("run", spdlog::sinks_init_list{console, file});
      sinks_->console->flush_on(spdlog::level::info);
      sinks_->file = std::make_unique<spdlog::logger>("note", file);
      sinks_->file->flush_on(spdlog::level::info);
    }
    if (debug) {
      std::filesystem::create_directories(folder + "/log");
      auto file =
          std::make_shared<spdlog::sinks::basic_file_sink_st>(fmt::format("{}/log/rank_{:05}.txt", folder, rank));
      file->set_pattern("%H:%M:%S.%f  %v");
      sinks_->own = std::make_unique<spdlog::logger>("rank", std::move(file));
      sinks_->own->set_level(spdlog::level::debug);
      sinks_->own->flush_on(spdlog::level::debug);
    }
  } catch (const std::exception& problem) {
    fail(ExitCode::config, "run.dir: the log in {} cannot be written: {}", folder, problem.what());
  }
}

// An error is printed once the run has unwound: not behind a progress bar.
Log::~Log() {
  if (!sinks_->shows_progress) return;
  std::fputs("\r\x1b[K", stdout);
  std::fflush(stdout);
}

bool Log::speaks() const { return sinks_->console != nullptr; }
bool Log::debugs() const { return sinks_->own != nullptr; }

void Log::write_info(const std::string& line) {
  if (sinks_->shows_progress) fmt::print("\r\x1b[K");
  sinks_->shows_progress = false;
  std::fflush(stdout);
  sinks_->console->info(line);
}

void Log::write_note(const std::string& line) { sinks_->file->info(line); }

void Log::write_debug(const std::string& line) { sinks_->own->debug(line); }

void Log::progress(std::string_view line) {
  if (!speaks() || !sinks_->is_terminal) return;
  fmt::print("\r\x1b[K{}", line);
  std::fflush(stdout);
  sinks_->shows_progress = true;
}

}  // namespace quintet::training
