#include "lib/config/problems.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "lib/base/error.h"

namespace quintet::config {

int Problems::add_source(std::string name, std::string override_key) {
  sources_.push_back({std::move(name), std::move(override_key)});
  return static_cast<int>(sources_.size()) - 1;
}

void Problems::add(const Place& place, std::string_view key, std::string_view text) {
  const Source& source = sources_[static_cast<size_t>(place.source)];
  std::string line = source.override_key.empty() ? fmt::format("{}:{}:{}: ", source.name, place.line, place.column)
                                                 : fmt::format("command line: {}: ", source.name);
  if (!key.empty() && key != source.override_key) line += fmt::format("{}: ", key);
  problems_.push_back({place, line + std::string(text)});
}

void Problems::add(int source, std::string_view text) {
  problems_.push_back({{source, 0, 0}, fmt::format("{}: {}", source_name(source), text)});
}

void Problems::throw_if_any() const {
  if (problems_.empty()) return;
  std::vector<Problem> sorted = problems_;
  std::stable_sort(sorted.begin(), sorted.end(), [](const Problem& a, const Problem& b) { return a.place < b.place; });
  std::vector<std::string> lines;
  for (Problem& problem : sorted) {
    if (lines.empty() || lines.back() != problem.line) lines.push_back(std::move(problem.line));
  }
  throw Error(ExitCode::config, fmt::format("{}", fmt::join(lines, "\n")));
}

}  // namespace quintet::config
