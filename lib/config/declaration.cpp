#include "lib/config/declaration.h"

#include <algorithm>
#include <cctype>
#include <cmath>

#include "lib/base/error.h"

namespace quintet::config {
namespace {

std::string limit(double value) {
  return std::abs(value) < 1e15 && value == std::floor(value) ? fmt::format("{:.0f}", value) : fmt::format("{}", value);
}

std::string range(const Rule& rule) {
  const bool has_minimum = std::isfinite(rule.minimum);
  if (has_minimum && std::isfinite(rule.maximum) && rule.maximum != kLargestSize) {
    return fmt::format(" {} {} {} {}", rule.above_minimum ? "above" : "from", limit(rule.minimum),
                       rule.below_maximum ? "to below" : "to", limit(rule.maximum));
  }
  if (!has_minimum) return "";
  return fmt::format(" {} {}", rule.above_minimum ? "above" : "of at least", limit(rule.minimum));
}

std::string plain_values(const Key& key) {
  switch (key.kind) {
    case Kind::boolean: return "true or false";
    case Kind::integer: return "an integer" + range(key.rule);
    case Kind::number: return "a number" + range(key.rule) + (key.rule.infinity ? " or .inf" : "");
    case Kind::text:
      switch (key.rule.text) {
        case TextRule::any: return "text";
        case TextRule::folder_name: return "the name of a folder, without /";
        case TextRule::split: return "three shares such as \"969,30,1\"";
      }
      return "text";
    case Kind::choice: return either(key.choices);
    case Kind::integers: return "a list of integers" + range(key.rule);
    case Kind::numbers: return "two numbers" + range(key.rule);
    case Kind::axes: return "a list of dp, tp, pp, ep and cp, each once";
    case Kind::sources: return "a path, or a list of paths or of {path, weight}";
    case Kind::validation: return "a fraction between 0 and 1, a path, or a list of paths or of {path, weight}";
  }
  return "";
}

}  // namespace

const Key* find_key(std::string_view path) {
  for (const Key& key : keys()) {
    if (key.path == path) return &key;
  }
  return nullptr;
}

const Section* find_section(std::string_view path) {
  for (const Section& section : sections()) {
    if (section.path == path) return &section;
  }
  return nullptr;
}

const Section* optional_section_of(const Key& key) {
  const Section* section = find_section(section_part(key.path));
  QUINTET_CHECK(section != nullptr, "key {} stands in no declared section", key.path);
  return section->optional() ? section : nullptr;
}

bool is_present(const Key& key, const Config& config) {
  const Section* section = optional_section_of(key);
  return section == nullptr || section->present(config);
}

std::string_view section_part(std::string_view path) {
  const size_t dot = path.rfind('.');
  return dot == std::string_view::npos ? std::string_view() : path.substr(0, dot);
}

std::string_view name_part(std::string_view path) {
  const size_t dot = path.rfind('.');
  return dot == std::string_view::npos ? path : path.substr(dot + 1);
}

std::vector<std::string> dependencies(const Key& key) {
  std::vector<std::string> found;
  if (!key.derive) return found;
  const auto is_of_word = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '.';
  };
  const std::string& text = key.default_text;
  for (auto begin = text.begin(); begin != text.end();) {
    begin = std::find_if(begin, text.end(), is_of_word);
    const auto end = std::find_if_not(begin, text.end(), is_of_word);
    const std::string word(begin, end);
    const std::string sibling = fmt::format("{}.{}", section_part(key.path), word);
    if (find_key(sibling) != nullptr) {
      found.push_back(sibling);
    } else if (find_key(word) != nullptr) {
      found.push_back(word);
    }
    begin = end;
  }
  return found;
}

std::string legal_values(const Key& key) {
  return key.rule.word.empty() ? plain_values(key) : fmt::format("{}, or {}", plain_values(key), key.rule.word);
}

}  // namespace quintet::config
