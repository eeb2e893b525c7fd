// The subcommands of quintet, one file each. Each adds itself to the command line and, once parsed, leaves what to do
// in `run`, which returns the exit code.
#pragma once

#include <functional>
#include <string>

namespace CLI {
class App;
}

namespace quintet {

using Run = std::function<int()>;

// argc and argv are what MPI_Init wants to see.
void add_train(CLI::App& app, Run& run, int* argc, char*** argv);
void add_config(CLI::App& app, Run& run);
void add_data(CLI::App& app, Run& run);
void add_bench(CLI::App& app, Run& run, int* argc, char*** argv);
// The commands that are still to come, which say so. Added last.
void add_unbuilt(CLI::App& app, Run& run);

// "train, config, data or bench": the built commands of `app`, or of one of its groups of commands.
std::string command_names(const CLI::App& app);

// The text of quintet --version.
std::string version_text();

}  // namespace quintet
