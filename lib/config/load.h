// From YAML to a Config, and back.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "lib/config/config.h"

namespace quintet::config {

// Reads `path`, its includes and the overrides ("mesh.tp=4", values are YAML) for a run of `world_size` ranks (0: as
// many as the mesh asks for). Command line beats file beats default. A section with nothing below it means its
// defaults; null takes model.moe and model.rope_scaling away. Throws an Error (ExitCode::config) whose message lists
// every problem, one a line: "quickstart.yaml:7:7: mesh.tp: 3 does not divide model.heads (8); choose 1, 2, 4 or 8".
Config load(const std::string& path, std::span<const std::string> overrides, int64_t world_size);

// The same from text that is called `name` in messages; includes are relative to the working directory.
Config load_from_string(const std::string& text, const std::string& name, std::span<const std::string> overrides,
                        int64_t world_size);

// Every key, resolved, in declaration order; loading it gives an equal Config. Doubles are in the shortest form that
// reads back to the same bits.
std::string to_yaml(const Config& config);

}  // namespace quintet::config
