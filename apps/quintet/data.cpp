#include <memory>
#include <string>
#include <vector>

#include <fmt/core.h>
#include <CLI/CLI.hpp>

#include "apps/quintet/commands.h"
#include "lib/data/inspect.h"

namespace quintet {

void add_data(CLI::App& app, Run& run) {
  struct Arguments {
    std::vector<std::string> paths;
    int64_t sequence_length = 1024;
    std::string format = "auto";
  };
  auto arguments = std::make_shared<Arguments>();
  CLI::App* command = app.add_subcommand("data", "Look at datasets");
  command->require_subcommand(1);
  CLI::App* inspect = command->add_subcommand("inspect", "Say what files, folders or globs hold");
  inspect->add_option("PATH", arguments->paths, "Files, folders or globs")->required();
  inspect->add_option("--seq-length", arguments->sequence_length, "Sequence length that windows are counted for")
      ->check(CLI::PositiveNumber);
  inspect->add_option("--format", arguments->format, "As data.format: auto or text");
  inspect->callback([arguments, &run] {
    run = [arguments] {
      const data::Inspection found =
          data::inspect(arguments->paths, arguments->sequence_length, {.format = arguments->format});
      for (const data::SourceFile& file : found.files)
        fmt::print("{:>14} bytes {:>14} tokens  {}\n", file.bytes, file.tokens, file.path);
      fmt::print("{} files, {} bytes, {} tokens, {} windows of {}\n", found.files.size(), found.bytes, found.tokens,
                 found.windows, arguments->sequence_length);
      return 0;
    };
  });
}

}  // namespace quintet
