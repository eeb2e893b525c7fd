// From a Config to YAML, and what differs between two.
#include <string_view>

#include <fmt/format.h>

#include "lib/config/declaration.h"
#include "lib/config/load.h"

namespace quintet::config {
namespace {

size_t depth_of(std::string_view path) {
  size_t depth = 0;
  for (const char c : path) depth += c == '.' ? 1 : 0;
  return depth;
}

std::string indented(std::string_view path, std::string_view value) {
  return fmt::format("{:{}}{}:{}{}\n", "", 2 * depth_of(path), name_part(path), value.empty() ? "" : " ", value);
}

bool holds(std::string_view section, std::string_view path) {
  return path.size() > section.size() && path.substr(0, section.size()) == section && path[section.size()] == '.';
}

// Heads of the sections that `path` opens after `previous`.
std::string heads(std::string_view previous, std::string_view path) {
  std::string text;
  for (size_t dot = path.find('.'); dot != std::string_view::npos; dot = path.find('.', dot + 1)) {
    const std::string_view section = path.substr(0, dot);
    if (!holds(section, previous)) text += indented(section, "");
  }
  return text;
}

}  // namespace

std::string to_yaml(const Config& config) {
  std::string text;
  std::string_view previous;
  std::string_view absent;
  for (const Key& key : keys()) {
    if (is_present(key, config)) {
      text += heads(previous, key.path) + indented(key.path, key.write(config));
      previous = key.path;
    } else if (absent != section_part(key.path)) {
      absent = section_part(key.path);
      text += indented(absent, "null");
    }
  }
  return text;
}

std::vector<Difference> differences(const Config& saved, const Config& now) {
  const auto value_in = [](const Key& key, const Config& config) {
    return is_present(key, config) ? key.write(config) : std::string("absent");
  };
  std::vector<Difference> found;
  for (const Key& key : keys()) {
    std::string before = value_in(key, saved), after = value_in(key, now);
    if (before != after) found.push_back({key.path, std::move(before), std::move(after), key.resume});
  }
  return found;
}

}  // namespace quintet::config
