#include <array>
#include <string>

#include <CLI/CLI.hpp>

#include "apps/quintet/commands.h"
#include "lib/base/error.h"

namespace quintet {
namespace {

// A command of Quintet that this version does not have yet.
struct Unbuilt {
  const char* group;  // "" = of quintet itself
  const char* name;
};

constexpr std::array kUnbuilt = {
    Unbuilt{"", "eval"},       Unbuilt{"", "generate"}, Unbuilt{"", "plan"},
    Unbuilt{"", "checkpoint"}, Unbuilt{"", "trace"},    Unbuilt{"data", "tokenize"},
};

}  // namespace

void add_unbuilt(CLI::App& app, Run& run) {
  for (const Unbuilt& unbuilt : kUnbuilt) {
    const std::string group = unbuilt.group;
    CLI::App& parent = group.empty() ? app : *app.get_subcommand(group);
    CLI::App* command = parent.add_subcommand(unbuilt.name, "Not built yet");
    command->group("");  // not in --help
    command->allow_extras();
    command->set_help_flag();
    const std::string full_name = (group.empty() ? "" : group + " ") + unbuilt.name;
    command->callback([full_name, &parent, &run] {
      run = [full_name, &parent]() -> int {
        fail(ExitCode::config, "quintet {} is not built yet; what works now: {}", full_name, command_names(parent));
      };
    });
  }
}

}  // namespace quintet
