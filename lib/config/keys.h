// What is known of every key: for `quintet config schema|explain`, README's table and resuming.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "lib/config/config.h"

namespace quintet::config {

// What a difference between a checkpoint's config and this run's means: fixed = an error, noted = the config's value
// wins and the change is said, free = nothing.
enum class ResumeClass { fixed, noted, free };

// JSON Schema (draft 2020-12) of a config file, for editors.
std::string schema_json();

// The declaration of a key, or of every key of a section, as text. An unknown key throws an Error with the nearest one.
std::string explain(std::string_view key);

// README's table of keys, in Markdown.
std::string keys_markdown();

// Paths of all keys in declaration order.
std::vector<std::string> key_paths();

struct Difference {
  std::string key;
  std::string saved;  // as YAML
  std::string now;
  ResumeClass resume_class{};
};

// The keys whose resolved values differ, in declaration order.
std::vector<Difference> differences(const Config& saved, const Config& now);

}  // namespace quintet::config
