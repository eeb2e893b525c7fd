#include "lib/config/codec.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numeric>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "lib/config/suggestion.h"

namespace quintet::config {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// The decimal integer that the text is, without leading zeros.
std::optional<int64_t> parse_integer(std::string_view text) {
  if (!text.empty() && text[0] == '+') text.remove_prefix(1);
  const std::string_view digits = !text.empty() && text[0] == '-' ? text.substr(1) : text;
  if (digits.empty() || !is_digit(digits[0]) || (digits.size() > 1 && digits[0] == '0')) return std::nullopt;
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// A number as YAML 1.2's core schema has it, .inf and .nan included; nothing if it is none or beyond fp64.
std::optional<double> parse_number(std::string_view text) {
  if (text == ".nan" || text == ".NaN" || text == ".NAN") return std::numeric_limits<double>::quiet_NaN();
  const bool negative = !text.empty() && text[0] == '-';
  if (!text.empty() && (text[0] == '-' || text[0] == '+')) text.remove_prefix(1);
  if (text == ".inf" || text == ".Inf" || text == ".INF") {
    return (negative ? -1 : 1) * std::numeric_limits<double>::infinity();
  }
  // from_chars alone would take "inf", "nan" and "infinity".
  const auto is_numeric = [](char c) {
    return is_digit(c) || c == '.' || c == 'e' || c == 'E' || c == '-' || c == '+';
  };
  if (text.empty() || !(is_digit(text[0]) || text[0] == '.') || !std::all_of(text.begin(), text.end(), is_numeric)) {
    return std::nullopt;
  }
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return negative ? -value : value;
}

// What the writer of a near-integer meant: 1e3, 1000.0, 1_000, 0x10, 0o17, 017.
std::optional<int64_t> meant_integer(std::string_view text) {
  std::string plain;
  std::copy_if(text.begin(), text.end(), std::back_inserter(plain), [](char c) { return c != '_' && c != ','; });
  int base = 10;
  if (plain.size() > 2 && plain[0] == '0' && (plain[1] == 'x' || plain[1] == 'o' || plain[1] == 'b')) {
    base = plain[1] == 'x' ? 16 : plain[1] == 'o' ? 8 : 2;
    plain.erase(0, 2);
  }
  int64_t value = 0;
  const auto [end, error] = std::from_chars(plain.data(), plain.data() + plain.size(), value, base);
  if (error == std::errc() && end == plain.data() + plain.size()) return value;
  const std::optional<double> number = base == 10 ? parse_number(plain) : std::nullopt;
  if (number && *number == std::floor(*number) && std::abs(*number) < 9e15) return static_cast<int64_t>(*number);
  return std::nullopt;
}

bool in_range(double value, const Rule& rule) {
  if (std::isnan(value)) return false;
  if (std::isinf(value)) return rule.infinity && value > 0;
  if (value < rule.minimum || (rule.above_minimum && value == rule.minimum)) return false;
  return value < rule.maximum || (value == rule.maximum && !rule.below_maximum);
}

std::string note_of(const Rule& rule) { return rule.note.empty() ? "" : fmt::format("; {}", rule.note); }

bool fail_range(const Node& node, const Reading& reading, double value) {
  const Rule& rule = reading.key.rule;
  if (rule.maximum == kLargestSize && value > rule.maximum) {
    return reading.fail(node, fmt::format("is too large; the largest is {:.0f}", kLargestSize));
  }
  return reading.fail(node, fmt::format("is out of range; expected {}{}", legal_values(reading.key), note_of(rule)));
}

// A quoted number or boolean is text; says so where the text would have been right.
bool fail_quoted(const Node& node, const Reading& reading, bool would_do) {
  if (!would_do) return reading.fail_kind(node);
  return reading.fail(node, fmt::format("is text; write {} without quotes", node.text));
}

bool read_integer(const Node& node, const Reading& reading, int64_t& value) {
  if (node.kind != NodeKind::scalar) return reading.fail_kind(node);
  const std::optional<int64_t> parsed = parse_integer(node.text);
  if (node.quoted) return fail_quoted(node, reading, parsed.has_value());
  if (!parsed) {
    if (const std::optional<int64_t> meant = meant_integer(node.text)) {
      return reading.fail(node, fmt::format("is not written as an integer; write {}", *meant));
    }
    const size_t sign = !node.text.empty() && (node.text[0] == '-' || node.text[0] == '+') ? 1 : 0;
    if (node.text.size() > sign && std::all_of(node.text.begin() + sign, node.text.end(), is_digit)) {
      return reading.fail(node, "does not fit into 64 bits");
    }
    return reading.fail_kind(node);
  }
  const Rule& rule = reading.key.rule;
  if (!in_range(static_cast<double>(*parsed), rule)) return fail_range(node, reading, static_cast<double>(*parsed));
  value = *parsed;
  return true;
}

bool read_path(const Node& node, const Reading& reading, std::string& path) {
  if (node.kind != NodeKind::scalar) return reading.fail_kind(node);
  if (node.text.empty()) return reading.fail(node, "is empty; expected a path");
  path = node.text;
  return true;
}

bool read_source(const Node& node, const Reading& reading, DataSource& source) {
  if (node.kind != NodeKind::map) return read_path(node, reading, source.path);
  bool good = true;
  for (const NodeEntry& entry : node.entries) {
    if (entry.name == "path") {
      good &= read_path(entry.value, reading, source.path);
    } else if (entry.name == "weight") {
      const std::optional<double> weight =
          entry.value.kind == NodeKind::scalar && !entry.value.quoted ? parse_number(entry.value.text) : std::nullopt;
      if (weight && std::isfinite(*weight) && *weight >= 0) {
        source.weight = *weight;
      } else {
        good = reading.fail(entry.value, "is no weight; expected a number of at least 0");
      }
    } else {
      reading.problems.add(entry.place, reading.key.path,
                           fmt::format("{}: unknown key; an entry has path and weight", entry.name));
      good = false;
    }
  }
  if (good && source.path.empty()) return reading.fail(node, "without a path; expected {path, weight}");
  return good;
}

bool check_weights(const Node& node, const Reading& reading, const std::vector<DataSource>& sources) {
  const auto weighted =
      std::count_if(sources.begin(), sources.end(), [](const auto& s) { return s.weight.has_value(); });
  if (weighted == 0) return true;
  if (weighted != std::ssize(sources)) {
    return reading.fail(node, "gives a weight to some paths only; give every path a weight, or none");
  }
  const double sum = std::accumulate(sources.begin(), sources.end(), 0.0,
                                     [](double total, const DataSource& source) { return total + *source.weight; });
  if (sum > 0 && std::isfinite(sum)) return true;
  return reading.fail(node,
                      sum > 0 ? "has weights whose sum is infinite" : "has only weights of 0; one must be above 0");
}

bool is_folder_name(const std::string& text) {
  return !text.empty() && text != "." && text != ".." && text.size() <= 255 &&
         std::none_of(text.begin(), text.end(),
                      [](char c) { return c == '/' || static_cast<unsigned char>(c) < 0x20; });
}

// "969,30,1": three non-negative numbers that are not all 0.
bool is_split(std::string_view text) {
  double sum = 0;
  for (int part = 0; part < 3; ++part) {
    const size_t comma = part < 2 ? text.find(',') : text.size();
    if (comma == std::string_view::npos) return false;
    const std::optional<double> share = parse_number(text.substr(0, comma));
    if (!share || !std::isfinite(*share) || *share < 0) return false;
    sum += *share;
    text.remove_prefix(std::min(comma + 1, text.size()));
  }
  return sum > 0 && std::isfinite(sum);
}

// Whether text means itself when it stands plain in any place.
bool is_plain(const std::string& text) {
  const auto is_letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; };
  const auto is_inner = [&](char c) { return is_letter(c) || is_digit(c) || c == '-' || c == '.' || c == '/'; };
  const bool starts = !text.empty() &&
                      (is_letter(text[0]) || text[0] == '/' || text.substr(0, 2) == "./" || text.substr(0, 3) == "../");
  if (!starts || !std::all_of(text.begin(), text.end(), is_inner)) return false;
  std::string lower = text;
  std::transform(lower.begin(), lower.end(), lower.begin(), [](char c) { return c >= 'A' && c <= 'Z' ? c + 32 : c; });
  for (const std::string_view word : {"null", "true", "false", "yes", "no", "on", "off", "y", "n"}) {
    if (lower == word) return false;
  }
  return true;
}

std::string write_text(const std::string& text) {
  if (is_plain(text)) return text;
  std::string quoted = "\"";
  for (const char c : text) {
    const unsigned char byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      quoted += '\\';
      quoted += c;
    } else if (byte < 0x20 || byte == 0x7f) {
      quoted += fmt::format("\\x{:02x}", byte);
    } else {
      quoted += c;
    }
  }
  return quoted + "\"";
}

// The shortest digits that read back to the same bits, in a form that every YAML reader takes for a float.
std::string write_number(double value) {
  if (std::isnan(value)) return ".nan";
  if (std::isinf(value)) return value > 0 ? ".inf" : "-.inf";
  std::string text = fmt::format("{}", value);
  if (text.find('.') != std::string::npos) return text;
  const size_t exponent = text.find('e');
  return exponent == std::string::npos ? text + ".0" : text.insert(exponent, ".0");
}

template <typename Items, typename Write>
std::string write_list(const Items& items, Write write_item) {
  std::vector<std::string> parts;
  for (const auto& item : items) parts.push_back(write_item(item));
  return fmt::format("[{}]", fmt::join(parts, ", "));
}

}  // namespace

bool Reading::fail(const Node& node, std::string_view text) const {
  problems.add(node.place, key.path, fmt::format("{} {}", shown(node), text));
  return false;
}

bool Reading::fail_kind(const Node& node) const {
  const std::string expected = legal_values(key) + note_of(key.rule);
  if (node.kind == NodeKind::scalar) return fail(node, fmt::format("does not fit; expected {}", expected));
  problems.add(node.place, key.path,
               fmt::format("expects {}; found {}", expected, node.empty ? "nothing" : shown(node)));
  return false;
}

bool is_word(const Node& node, const Reading& reading) {
  const std::string_view word = reading.key.rule.word;
  if (word == "null") return node.kind == NodeKind::null;
  return !word.empty() && node.kind == NodeKind::scalar && !node.quoted && node.text == word;
}

bool read(const Node& node, const Reading& reading, bool& value) {
  if (node.kind != NodeKind::scalar) return reading.fail_kind(node);
  const bool is_true = node.text == "true", is_false = node.text == "false";
  if (node.quoted) return fail_quoted(node, reading, is_true || is_false);
  if (!is_true && !is_false) {
    for (const std::string_view word : {"yes", "Yes", "YES", "on", "On", "ON", "True", "TRUE", "1", "y"}) {
      if (node.text == word) return reading.fail(node, "is not a boolean; write true");
    }
    for (const std::string_view word : {"no", "No", "NO", "off", "Off", "OFF", "False", "FALSE", "0", "n"}) {
      if (node.text == word) return reading.fail(node, "is not a boolean; write false");
    }
    return reading.fail_kind(node);
  }
  value = is_true;
  return true;
}

bool read(const Node& node, const Reading& reading, int64_t& value) {
  if (!reading.key.rule.word.empty() && is_word(node, reading)) {
    value = 0;
    return true;
  }
  return read_integer(node, reading, value);
}

bool read(const Node& node, const Reading& reading, double& value) {
  if (node.kind != NodeKind::scalar) return reading.fail_kind(node);
  const std::optional<double> parsed = parse_number(node.text);
  if (node.quoted) return fail_quoted(node, reading, parsed.has_value());
  if (!parsed) return reading.fail_kind(node);
  if (!in_range(*parsed, reading.key.rule)) return fail_range(node, reading, *parsed);
  value = *parsed == 0 ? 0 : *parsed;  // no -0
  return true;
}

bool read(const Node& node, const Reading& reading, std::string& value) {
  if (node.kind != NodeKind::scalar) return reading.fail_kind(node);
  const TextRule rule = reading.key.rule.text;
  if (node.text.empty() || (rule == TextRule::folder_name && !is_folder_name(node.text)) ||
      (rule == TextRule::split && !is_split(node.text))) {
    return reading.fail_kind(node);
  }
  value = node.text;
  return true;
}

std::optional<size_t> read_choice(const Node& node, const Reading& reading, std::span<const std::string_view> choices) {
  if (node.kind != NodeKind::scalar) {
    reading.fail_kind(node);
    return std::nullopt;
  }
  const auto found = std::find(choices.begin(), choices.end(), node.text);
  if (found != choices.end()) return static_cast<size_t>(found - choices.begin());
  const std::optional<std::string_view> near = nearest(node.text, choices);
  const std::string hint = near ? fmt::format("did you mean {}? ", *near) : "";
  reading.fail(node, fmt::format("is not one of the choices; {}choose {}", hint, either(choices)));
  return std::nullopt;
}

bool read(const Node& node, const Reading& reading, std::vector<int64_t>& value) {
  if (node.kind != NodeKind::list) return reading.fail_kind(node);
  bool good = true;
  for (const Node& item : node.items) good &= read_integer(item, reading, value.emplace_back());
  return good;
}

bool read(const Node& node, const Reading& reading, std::array<double, 2>& value) {
  if (node.kind != NodeKind::list || node.items.size() != 2) return reading.fail_kind(node);
  const bool first = read(node.items[0], reading, value[0]);
  return read(node.items[1], reading, value[1]) && first;
}

bool read(const Node& node, const Reading& reading, std::array<Axis, kAxisCount>& value) {
  if (node.kind != NodeKind::list) return reading.fail_kind(node);
  std::vector<Axis> axes;
  for (const Node& item : node.items) {
    const std::optional<size_t> place = read_choice(item, reading, Spelling<Axis>::names);
    if (!place) return false;
    const Axis axis = static_cast<Axis>(*place);
    if (std::find(axes.begin(), axes.end(), axis) != axes.end()) {
      return reading.fail(item, fmt::format("stands twice; expected {}", legal_values(reading.key)));
    }
    axes.push_back(axis);
  }
  if (axes.size() != kAxisCount) {
    return reading.fail(node, fmt::format("of {} axes; expected {}", axes.size(), legal_values(reading.key)));
  }
  std::copy(axes.begin(), axes.end(), value.begin());
  return true;
}

bool read(const Node& node, const Reading& reading, std::vector<DataSource>& value) {
  value.clear();
  if (node.kind == NodeKind::scalar) return read_path(node, reading, value.emplace_back().path);
  if (node.kind != NodeKind::list) return reading.fail_kind(node);
  if (node.items.empty()) return reading.fail(node, "without entries; expected at least one path");
  bool good = true;
  for (const Node& item : node.items) good &= read_source(item, reading, value.emplace_back());
  return good && check_weights(node, reading, value);
}

bool read(const Node& node, const Reading& reading, Validation& value) {
  value = std::monostate();
  if (is_word(node, reading)) return true;
  const std::optional<double> fraction =
      node.kind == NodeKind::scalar && !node.quoted ? parse_number(node.text) : std::nullopt;
  if (!fraction) return read(node, reading, value.emplace<std::vector<DataSource>>());
  if (!(*fraction > 0 && *fraction < 1)) {
    return reading.fail(node, "is no fraction; expected a number above 0 and below 1, or null for no validation");
  }
  value = *fraction;
  return true;
}

std::string write(bool value, const Rule&) { return value ? "true" : "false"; }

std::string write(int64_t value, const Rule& rule) {
  return value == 0 && !rule.word.empty() ? std::string(rule.word) : fmt::format("{}", value);
}

std::string write(double value, const Rule&) { return write_number(value); }

std::string write(const std::string& value, const Rule&) { return write_text(value); }

std::string write(const std::vector<int64_t>& value, const Rule&) {
  return write_list(value, [](int64_t item) { return fmt::format("{}", item); });
}

std::string write(const std::array<double, 2>& value, const Rule&) { return write_list(value, write_number); }

std::string write(const std::array<Axis, kAxisCount>& value, const Rule&) {
  return write_list(value, [](Axis axis) { return std::string(name_of(axis)); });
}

std::string write(const std::vector<DataSource>& value, const Rule&) {
  return write_list(value, [](const DataSource& source) {
    if (!source.weight) return write_text(source.path);
    return fmt::format("{{path: {}, weight: {}}}", write_text(source.path), write_number(*source.weight));
  });
}

std::string write(const Validation& value, const Rule& rule) {
  if (const double* fraction = std::get_if<double>(&value)) return write_number(*fraction);
  if (const auto* sources = std::get_if<std::vector<DataSource>>(&value)) return write(*sources, rule);
  return std::string(rule.word);
}

}  // namespace quintet::config
