// What the writer of a wrong word probably meant. Internal to lib/config.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace quintet::config {

// The candidate within a few typing errors of `word`, if there is one.
std::optional<std::string_view> nearest(std::string_view word, std::span<const std::string_view> candidates);

// For a path that no key or section has: "did you mean optimizer.learning_rate?", or what its section holds.
std::string suggestion_for(const std::string& path);

}  // namespace quintet::config
