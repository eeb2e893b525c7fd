#include "lib/training/trainer.h"

#include <memory>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "apps/quintet/commands.h"
#include "apps/quintet/launch.h"
#include "lib/config/load.h"
#include "lib/training/signals.h"

namespace quintet {

void add_train(CLI::App& app, Run& run, int* argc, char*** argv) {
  struct Arguments {
    std::string config;
    std::vector<std::string> overrides;
    int64_t ranks = 0;
  };
  auto arguments = std::make_shared<Arguments>();
  CLI::App* command = app.add_subcommand("train", "Train the model that CONFIG declares, on every rank of the world");
  command->add_option("CONFIG", arguments->config, "YAML file")->required();
  command->add_option("KEY=VALUE", arguments->overrides, "Overrides, such as mesh.dp=4");
  command->add_option("--ranks", arguments->ranks, "Run so many ranks as threads of this process")
      ->check(CLI::Range(1, 4096));
  command->callback([arguments, &run, argc, argv] {
    run = [arguments, argc, argv] {
      training::watch_signals();
      return run_ranks(arguments->ranks, argc, argv, [&](comm::Communicator& communicator) {
        const config::Config config =
            config::load(arguments->config, arguments->overrides, communicator.placement().world_size);
        return training::train(config, communicator);
      });
    };
  });
}

}  // namespace quintet
