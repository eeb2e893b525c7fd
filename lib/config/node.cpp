#include "lib/config/node.h"

#include <algorithm>
#include <exception>
#include <map>
#include <sstream>
#include <string_view>
#include <utility>

#include <fmt/core.h>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/parser.h>

namespace quintet::config {
namespace {

constexpr const char* kNoAliases = "aliases are not read; write the value itself, in quotes if it starts with *";

// Builds the tree from the parser's events.
class Builder final : public YAML::EventHandler {
 public:
  Builder(const std::string& text, int source, Problems& problems) : source_(source), problems_(problems) {
    std::istringstream stream(text);
    for (std::string line; std::getline(stream, line);) lines_.push_back(std::move(line));
  }

  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}

  void OnNull(const YAML::Mark& mark, YAML::anchor_t) override {
    Node node = start(NodeKind::null, mark);
    node.empty = !is_null_written_at(node.place);
    finish(std::move(node));
  }

  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override {
    Node node = start(NodeKind::scalar, mark);
    problems_.add(node.place, {}, kNoAliases);
    finish(std::move(node));
  }

  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t, const std::string& value) override {
    Node node = start(NodeKind::scalar, mark);
    node.text = value;
    node.quoted = tag == "!";
    if (node.quoted && !is_closed(node.place)) problems_.add(node.place, {}, "a quote is opened here and never closed");
    check_tag(tag, node);
    finish(std::move(node));
  }

  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t,
                       YAML::EmitterStyle::value) override {
    open(NodeKind::list, mark, tag);
  }
  void OnSequenceEnd() override { close(); }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t, YAML::EmitterStyle::value) override {
    open(NodeKind::map, mark, tag);
  }
  void OnMapEnd() override { close(); }

  Node take_root() { return std::move(root_); }

 private:
  struct Level {
    Node node;
    bool has_name = false;  // a map's next node is the value of `name`
    NodeEntry next;
    std::map<std::string, int> lines;  // of the map's keys
  };

  Node start(NodeKind kind, const YAML::Mark& mark) const {
    Node node;
    node.kind = kind;
    node.place = {source_, std::max(0, mark.line) + 1, std::max(0, mark.column) + 1};
    return node;
  }

  void open(NodeKind kind, const YAML::Mark& mark, const std::string& tag) {
    Level level;
    level.node = start(kind, mark);
    check_tag(tag, level.node);
    levels_.push_back(std::move(level));
  }

  void close() {
    Node node = std::move(levels_.back().node);
    levels_.pop_back();
    finish(std::move(node));
  }

  void finish(Node node) {
    if (levels_.empty()) {
      root_ = std::move(node);
      return;
    }
    Level& level = levels_.back();
    if (level.node.kind == NodeKind::list) {
      level.node.items.push_back(std::move(node));
    } else if (!level.has_name) {
      if (node.kind != NodeKind::scalar) {
        problems_.add(node.place, {}, "a key must be a plain word");
      }
      level.next = {node.text, node.place, {}};
      level.has_name = true;
    } else {
      // Nothing written: the key's own place is the better one to show.
      if (node.empty) node.place = level.next.place;
      level.next.value = std::move(node);
      level.has_name = false;
      add_entry(level, std::move(level.next));
    }
  }

  void add_entry(Level& level, NodeEntry entry) {
    const auto [first, is_new] = level.lines.emplace(entry.name, entry.place.line);
    if (is_new) {
      level.node.entries.push_back(std::move(entry));
      return;
    }
    std::string path;
    for (const Level& outer : levels_) {
      if (&outer != &level && outer.has_name) path += outer.next.name + ".";
    }
    problems_.add(entry.place, path + entry.name,
                  fmt::format("duplicate key; it stands in line {} already, remove one of the two", first->second));
  }

  void check_tag(const std::string& tag, const Node& node) {
    if (tag.empty() || tag == "?" || tag == "!") return;
    problems_.add(node.place, {}, "tags are not read; write the value alone");
  }

  // Whether the quote that opens at `place` closes; yaml-cpp also takes the end of the file. True where none opens.
  bool is_closed(const Place& place) const {
    size_t number = static_cast<size_t>(place.line) - 1, column = static_cast<size_t>(place.column) - 1;
    if (number >= lines_.size() || column >= lines_[number].size()) return true;
    const char quote = lines_[number][column];
    if (quote != '"' && quote != '\'') return true;
    for (++column; number < lines_.size(); ++number, column = 0) {
      const std::string& line = lines_[number];
      for (; column < line.size(); ++column) {
        const bool escapes = quote == '"' ? line[column] == '\\' : line.compare(column, 2, "''") == 0;
        if (escapes) {
          ++column;
        } else if (line[column] == quote) {
          return true;
        }
      }
    }
    return false;
  }

  bool is_null_written_at(const Place& place) const {
    if (static_cast<size_t>(place.line) > lines_.size()) return false;
    const std::string_view line = lines_[static_cast<size_t>(place.line) - 1];
    const size_t column = static_cast<size_t>(place.column) - 1;
    if (column >= line.size()) return false;
    const std::string_view rest = line.substr(column);
    for (const std::string_view word : {"null", "Null", "NULL", "~"}) {
      if (rest.substr(0, word.size()) != word) continue;
      const std::string_view after = rest.substr(word.size());
      return after.empty() || after[0] == ' ' || after[0] == ',' || after[0] == '}' || after[0] == ']' ||
             after[0] == '\r' || after[0] == '\t';
    }
    return false;
  }

  int source_;
  Problems& problems_;
  std::vector<std::string> lines_;
  std::vector<Level> levels_;
  Node root_;
};

// The first line up to `last_line` (from 1) that a tab indents, as a place; line 0 if there is none.
Place tab_indentation(const std::string& text, int source, int last_line) {
  std::istringstream stream(text);
  std::string line;
  for (int number = 1; number <= last_line && std::getline(stream, line); ++number) {
    const size_t first = line.find_first_not_of(' ');
    if (first != std::string::npos && line[first] == '\t') return {source, number, static_cast<int>(first) + 1};
  }
  return {source, 0, 0};
}

}  // namespace

bool parse_yaml(const std::string& text, int source, Problems& problems, Node& root) {
  Place place{source, 1, 1};
  std::string what;
  try {
    std::istringstream stream(text);
    YAML::Parser parser(stream);
    Builder builder(text, source, problems);
    if (!parser.HandleNextDocument(builder)) {
      root = {};
      root.place = place;
      root.empty = true;
      return true;
    }
    root = builder.take_root();
    Builder rest(text, source, problems);
    if (parser.HandleNextDocument(rest)) {
      problems.add(place, {}, "holds more than one YAML document; write one file each");
      return false;
    }
    return true;
  } catch (const YAML::Exception& error) {
    place = {source, std::max(0, error.mark.line) + 1, std::max(0, error.mark.column) + 1};
    what = fmt::format("not valid YAML: {}", error.msg);
    for (const std::string_view alias :
         {YAML::ErrorMsg::ALIAS_NOT_FOUND, YAML::ErrorMsg::CHAR_IN_ALIAS, YAML::ErrorMsg::UNKNOWN_ANCHOR}) {
      if (error.msg.find(alias) != std::string::npos) what = kNoAliases;
    }
  } catch (const std::exception& error) {
    what = fmt::format("not valid YAML: {}", error.what());
  }
  const Place tab = tab_indentation(text, source, place.line + 1);
  if (tab.line > 0) {
    problems.add(tab, {}, "a tab cannot indent YAML; use spaces");
  } else {
    problems.add(place, {}, what);
  }
  return false;
}

std::string shown(const Node& node) {
  switch (node.kind) {
    case NodeKind::null: return "null";
    case NodeKind::list: return "a list";
    case NodeKind::map: return "keys";
    case NodeKind::scalar: break;
  }
  constexpr size_t kLongest = 60;
  std::string text;
  for (const char c : node.text.substr(0, kLongest)) {
    const unsigned char byte = static_cast<unsigned char>(c);
    if (c == '\n') {
      text += "\\n";
    } else if (byte < 0x20 || byte == 0x7f) {
      text += fmt::format("\\x{:02x}", byte);
    } else {
      text += c;
    }
  }
  if (node.text.size() > kLongest) text += "...";
  return node.quoted || text.empty() ? fmt::format("\"{}\"", text) : text;
}

}  // namespace quintet::config
