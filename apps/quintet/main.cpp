#include <cstdio>
#include <exception>

#include <CLI/CLI.hpp>
#include <fmt/core.h>

#include "apps/quintet/commands.h"
#include "lib/base/error.h"

int main(int argc, char** argv) {
  using namespace quintet;
  constexpr int kUsage = static_cast<int>(ExitCode::config);
  CLI::App app("Quintet: trains GPT-style models over data, tensor, pipeline, expert and context parallelism.", "quintet");
  app.require_subcommand(1);
  app.set_version_flag("--version", version_text);
  Run run;
  add_train(app, run, &argc, &argv);
  add_config(app, run);
  add_data(app, run);
  add_bench(app, run, &argc, &argv);
  try {
    app.parse(argc, argv);
    return run();
  } catch (const CLI::ParseError& problem) {
    return app.exit(problem) == 0 ? 0 : kUsage;
  } catch (const Error& problem) {
    fmt::print(stderr, "error: {}\n", problem.what());
    return static_cast<int>(problem.code());
  } catch (const std::exception& problem) {
    fmt::print(stderr, "internal error: {}\n", problem.what());
    return 70;
  }
}
