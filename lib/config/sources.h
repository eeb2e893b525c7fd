// Reads files, their includes and overrides, and gathers which key was given what, and where. Internal to lib/config.
#pragma once

#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lib/config/node.h"
#include "lib/config/problems.h"

namespace quintet::config {

// What was written of the config; later sources have won already.
struct Given {
  std::map<std::string, Node, std::less<>> values;     // of keys
  std::map<std::string, Place, std::less<>> sections;  // that stand in a file or override; optional ones are present
  bool complete = true;                                // every source could be read

  const Place* place_of(std::string_view path) const;  // of a key's value or a section; null if not given
};

// The problems' first source is `name` afterwards.
Given gather_file(const std::string& path, std::span<const std::string> overrides, Problems& problems);
Given gather_text(const std::string& text, const std::string& name, std::span<const std::string> overrides,
                  Problems& problems);

}  // namespace quintet::config
