#include "lib/config/config.h"

#include <memory>
#include <string>
#include <vector>

#include <fmt/core.h>
#include <CLI/CLI.hpp>

#include "apps/quintet/commands.h"
#include "lib/config/keys.h"
#include "lib/config/load.h"
#include "lib/mesh/describe.h"

namespace quintet {
namespace {

struct Arguments {
  std::string config, key;
  std::vector<std::string> overrides;
  int64_t world = 0;
  bool groups = false;
};

// The world that the config is resolved for: --world, or the smallest one that its mesh allows.
config::Config load(const Arguments& arguments) {
  return config::load(arguments.config, arguments.overrides, arguments.world);
}

void add_config_options(CLI::App& command, Arguments& arguments) {
  command.add_option("CONFIG", arguments.config, "YAML file")->required();
  command.add_option("KEY=VALUE", arguments.overrides, "Overrides, such as mesh.dp=4");
  command
      .add_option("--world,--ranks", arguments.world,
                  "Number of ranks; default: what the mesh multiplies to, dp: auto as 1")
      ->check(CLI::PositiveNumber);
}

}  // namespace

void add_config(CLI::App& app, Run& run) {
  auto arguments = std::make_shared<Arguments>();
  CLI::App* command = app.add_subcommand("config", "Show, check and explain configs");
  command->require_subcommand(1);

  CLI::App* show = command->add_subcommand("show", "Print the config with every key resolved");
  add_config_options(*show, *arguments);
  show->add_flag("--groups", arguments->groups, "Print which ranks work together, and in what, instead");
  show->callback([arguments, &run] {
    run = [arguments] {
      const config::Config config = load(*arguments);
      fmt::print("{}", arguments->groups ? describe_groups(Mesh(config.mesh.sizes(), config.mesh.order))
                                         : config::to_yaml(config));
      return 0;
    };
  });

  CLI::App* validate = command->add_subcommand("validate", "List every problem of a config");
  add_config_options(*validate, *arguments);
  validate->callback([arguments, &run] {
    run = [arguments] {
      load(*arguments);
      fmt::print("{} is valid\n", arguments->config);
      return 0;
    };
  });

  command->add_subcommand("schema", "Print a JSON Schema of configs, for editors")->callback([&run] {
    run = [] {
      fmt::print("{}\n", config::schema_json());
      return 0;
    };
  });
  command->add_subcommand("keys", "Print the table of keys as Markdown")->callback([&run] {
    run = [] {
      fmt::print("{}", config::keys_markdown());
      return 0;
    };
  });

  CLI::App* explain = command->add_subcommand("explain", "Say what a key means");
  explain->add_option("KEY", arguments->key, "A key's path, such as parallel.zero.stage, or a section")->required();
  explain->callback([arguments, &run] {
    run = [arguments] {
      fmt::print("{}\n", config::explain(arguments->key));
      return 0;
    };
  });
}

}  // namespace quintet
