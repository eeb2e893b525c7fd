// What is declared of a key, whatever its type; the table itself is keys.cpp. Internal to lib/config.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "lib/config/config.h"
#include "lib/config/keys.h"
#include "lib/config/node.h"

namespace quintet::config {

// What a key's value looks like in YAML.
enum class Kind { boolean, integer, number, text, choice, integers, numbers, axes, sources, validation };

// The largest size that is taken, so that a product of two sizes fits into 64 bits.
inline constexpr double kLargestSize = 2147483647;

// Ids of the tokenizer "bytes".
inline constexpr int64_t kByteIds = 256;

enum class TextRule { any, folder_name, split };

struct Rule {
  double minimum = -std::numeric_limits<double>::infinity();
  double maximum = std::numeric_limits<double>::infinity();
  bool above_minimum = false;  // the minimum itself is not legal
  bool below_maximum = false;  // nor is the maximum
  bool infinity = false;       // .inf is legal
  std::string_view word = {};  // "auto" or "null": the value that stands for none
  TextRule text = TextRule::any;
  std::string_view note = {};  // added to messages: what to write instead

  Rule or_auto() const {
    Rule rule = *this;
    rule.word = "auto";
    return rule;
  }
  Rule or_null() const {
    Rule rule = *this;
    rule.word = "null";
    return rule;
  }
  Rule or_infinity() const {
    Rule rule = *this;
    rule.infinity = true;
    return rule;
  }
  Rule with_note(std::string_view words) const {
    Rule rule = *this;
    rule.note = words;
    return rule;
  }
};

inline Rule any() { return {}; }
inline Rule at_least(double minimum) { return {.minimum = minimum}; }
inline Rule above(double minimum) { return {.minimum = minimum, .above_minimum = true}; }
inline Rule from_to(double minimum, double maximum) { return {.minimum = minimum, .maximum = maximum}; }
inline Rule from_to_below(double minimum, double maximum) {
  return {.minimum = minimum, .maximum = maximum, .below_maximum = true};
}
inline Rule above_to(double minimum, double maximum) {
  return {.minimum = minimum, .maximum = maximum, .above_minimum = true};
}
inline Rule between(double minimum, double maximum) {
  return {.minimum = minimum, .maximum = maximum, .above_minimum = true, .below_maximum = true};
}
inline Rule size(double minimum) { return from_to(minimum, kLargestSize); }
inline Rule text(TextRule rule) { return {.text = rule}; }

struct Key {
  std::string path;
  std::string default_text;  // a YAML literal, an expression over other keys if `derive` is set, or "-" for required
  Node default_node;         // of default_text, used where it is a literal
  Rule rule;
  ResumeClass resume{};
  std::string help;
  Kind kind{};
  std::span<const std::string_view> choices;

  std::function<bool(const Key&, const Node&, Problems&, Config&)> read;  // reports and returns false
  std::function<std::string(const Config&)> write;                        // as YAML
  std::function<void(Config&)> derive;                                    // sets the default from other keys

  bool required() const { return default_text == "-"; }
};

struct Section {
  std::string path;
  std::string help;
  // Of sections that may be absent: whether it is there, and makes it so.
  std::function<bool(const Config&)> present;
  std::function<void(Config&)> create;

  bool optional() const { return present != nullptr; }
};

// In declaration order.
const std::vector<Key>& keys();
const std::vector<Section>& sections();

const Key* find_key(std::string_view path);
const Section* find_section(std::string_view path);
// The optional section that holds the key; null if it is always there.
const Section* optional_section_of(const Key& key);
bool is_present(const Key& key, const Config& config);

// "model" of "model.heads"; empty of a path without a dot. And "heads".
std::string_view section_part(std::string_view path);
std::string_view name_part(std::string_view path);

// Keys that a derived default is made of: the words of its expression that name keys, of its own section or by path.
std::vector<std::string> dependencies(const Key& key);

// The legal values in words: "an integer of at least 1, or auto".
std::string legal_values(const Key& key);

// "1, 2, 4 or 8".
template <typename Items>
std::string either(const Items& items) {
  std::string text;
  size_t place = 0;
  for (const auto& item : items) {
    if (place > 0) text += place + 1 == std::size(items) ? " or " : ", ";
    text += fmt::format("{}", item);
    ++place;
  }
  return text;
}

}  // namespace quintet::config
