// Values between YAML and C++, one pair of functions a type. read() reports what is wrong and returns false; write()
// gives YAML that read() takes back to the same value. Internal to lib/config.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lib/config/declaration.h"
#include "lib/config/enums.h"

namespace quintet::config {

// What read() needs to judge a value and to speak of it.
struct Reading {
  const Key& key;
  Problems& problems;

  // Reports "VALUE TEXT"; always false.
  bool fail(const Node& node, std::string_view text) const;
  // Reports that the value is not of the kind; always false.
  bool fail_kind(const Node& node) const;
};

bool read(const Node& node, const Reading& reading, bool& value);
// 0 is the word of a rule that has one.
bool read(const Node& node, const Reading& reading, int64_t& value);
bool read(const Node& node, const Reading& reading, double& value);
bool read(const Node& node, const Reading& reading, std::string& value);
bool read(const Node& node, const Reading& reading, std::vector<int64_t>& value);
bool read(const Node& node, const Reading& reading, std::array<double, 2>& value);
bool read(const Node& node, const Reading& reading, std::array<Axis, kAxisCount>& value);
bool read(const Node& node, const Reading& reading, std::vector<DataSource>& value);
bool read(const Node& node, const Reading& reading, Validation& value);

// The place among the choices.
std::optional<size_t> read_choice(const Node& node, const Reading& reading, std::span<const std::string_view> choices);
// Whether the node is the rule's word for no value.
bool is_word(const Node& node, const Reading& reading);

template <typename E>
  requires requires { Spelling<E>::names; }
bool read(const Node& node, const Reading& reading, E& value) {
  const std::optional<size_t> place = read_choice(node, reading, Spelling<E>::names);
  if (place) value = static_cast<E>(*place);
  return place.has_value();
}

template <typename T>
bool read(const Node& node, const Reading& reading, std::optional<T>& value) {
  value.reset();
  if (is_word(node, reading)) return true;
  return read(node, reading, value.emplace());
}

std::string write(bool value, const Rule& rule);
std::string write(int64_t value, const Rule& rule);
std::string write(double value, const Rule& rule);
std::string write(const std::string& value, const Rule& rule);
std::string write(const std::vector<int64_t>& value, const Rule& rule);
std::string write(const std::array<double, 2>& value, const Rule& rule);
std::string write(const std::array<Axis, kAxisCount>& value, const Rule& rule);
std::string write(const std::vector<DataSource>& value, const Rule& rule);
std::string write(const Validation& value, const Rule& rule);

template <typename E>
  requires requires { Spelling<E>::names; }
std::string write(E value, const Rule&) { return std::string(name_of(value)); }

template <typename T>
std::string write(const std::optional<T>& value, const Rule& rule) {
  return value ? write(*value, rule) : std::string(rule.word);
}

// The kind of a member's type.
template <typename T>
inline constexpr Kind kKindOf = Kind::choice;
template <typename T>
inline constexpr Kind kKindOf<std::optional<T>> = kKindOf<T>;
template <>
inline constexpr Kind kKindOf<bool> = Kind::boolean;
template <>
inline constexpr Kind kKindOf<int64_t> = Kind::integer;
template <>
inline constexpr Kind kKindOf<double> = Kind::number;
template <>
inline constexpr Kind kKindOf<std::string> = Kind::text;
template <>
inline constexpr Kind kKindOf<std::vector<int64_t>> = Kind::integers;
template <>
inline constexpr Kind kKindOf<std::array<double, 2>> = Kind::numbers;
template <>
inline constexpr Kind kKindOf<std::array<Axis, kAxisCount>> = Kind::axes;
template <>
inline constexpr Kind kKindOf<std::vector<DataSource>> = Kind::sources;
template <>
inline constexpr Kind kKindOf<Validation> = Kind::validation;

template <typename T>
std::span<const std::string_view> choices_of() {
  if constexpr (requires { Spelling<T>::names; }) {
    return Spelling<T>::names;
  } else {
    return {};
  }
}

}  // namespace quintet::config
