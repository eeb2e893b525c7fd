#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <sstream>
#include <string>
#include <system_error>
#include <vector>

#include <fmt/core.h>
#include <CLI/CLI.hpp>

#include "apps/quintet/commands.h"
#include "apps/quintet/launch.h"
#include "lib/base/error.h"

namespace quintet {
namespace {

// Opens closed standard streams on nothing: otherwise the first output file would take their number, and their lines.
void hold_standard_streams() {
  for (int stream = STDIN_FILENO; stream <= STDERR_FILENO; ++stream)
    if (fcntl(stream, F_GETFD) == -1) (void)open("/dev/null", O_RDWR);
}

// libgomp's threads spin for a millisecond and more at the end of each loop, which starves those that still compute on
// a machine that others use as well. It reads how long before main() begins: start once more with a time that is
// shorter than a time slice.
void shorten_spinning(char** argv) {
  if (std::getenv("GOMP_SPINCOUNT") != nullptr || std::getenv("OMP_WAIT_POLICY") != nullptr) return;
  setenv("GOMP_SPINCOUNT", "2000", 1);
  std::error_code problem;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", problem);
  if (!problem) execv(program.c_str(), argv);
}

bool is_built(const CLI::App* command) { return !command->get_group().empty(); }

// Command groups take nothing but a command, so a wrong or missing one can be named here, with the legal ones.
void check_commands(CLI::App& app, int argc, char** argv) {
  CLI::App* group = &app;
  std::string path = app.get_name();
  for (int i = 1; group->get_require_subcommand_min() > 0; ++i) {
    const std::string word = i < argc ? argv[i] : "";
    if (!word.empty() && word.front() == '-') return;
    const auto found = group->get_subcommands([&](const CLI::App* command) { return command->check_name(word); });
    if (found.empty() || word.empty())
      fail(ExitCode::config, "{}: {}; choose {}, or see --help", path,
           word.empty() ? "a command is missing" : fmt::format("there is no command {}", word), command_names(*group));
    group = found.front();
    path += " " + word;
  }
}

int run_command_line(int argc, char** argv) {
  CLI::App app("Quintet: trains GPT-style models over data, tensor, pipeline, expert and context parallelism.",
               "quintet");
  app.require_subcommand(1);
  app.set_version_flag("--version", version_text);
  Run run;
  add_train(app, run, &argc, &argv);
  add_config(app, run);
  add_data(app, run);
  add_bench(app, run, &argc, &argv);
  add_unbuilt(app, run);
  try {
    check_commands(app, argc, argv);
    app.parse(argc, argv);
    return run();
  } catch (const CLI::ParseError& problem) {
    std::ostringstream text;
    if (app.exit(problem, text, text) == 0) {
      fmt::print("{}", text.str());
      return 0;
    }
    return refuse(ExitCode::config, text.str().substr(0, text.str().find_last_not_of('\n') + 1), &argc, &argv);
  } catch (const Error& problem) {
    return refuse(problem.code(), problem.what(), &argc, &argv);
  }
}

}  // namespace

std::string command_names(const CLI::App& app) {
  const std::vector<const CLI::App*> commands = app.get_subcommands(is_built);
  std::string names;
  for (size_t i = 0; i < commands.size(); ++i)
    names += (i == 0 ? "" : i + 1 == commands.size() ? " or " : ", ") + commands[i]->get_name();
  return names;
}

}  // namespace quintet

int main(int argc, char** argv) {
  quintet::hold_standard_streams();
  quintet::shorten_spinning(argv);
  try {
    return quintet::run_command_line(argc, argv);
  } catch (const std::exception& problem) {
    fmt::print(stderr, "internal error: {}\n", problem.what());
    return 70;
  }
}
