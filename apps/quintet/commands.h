// The subcommands of quintet, one file each. Each adds itself to the command line and, once parsed, leaves what to do in
// `run`, which returns the exit code.
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

// The text of quintet --version.
std::string version_text();

}  // namespace quintet
