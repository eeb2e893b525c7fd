#include "lib/config/sources.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "lib/config/declaration.h"
#include "lib/config/suggestion.h"

namespace quintet::config {
namespace {

namespace fs = std::filesystem;

constexpr uintmax_t kLargestFile = uintmax_t{1} << 20;
constexpr int kMostFiles = 100;

struct Text {
  std::string content;
  std::string problem;  // why there is no content
};

Text read_text(const std::string& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (status.type() == fs::file_type::not_found) return {{}, "no such file"};
  if (error) return {{}, fmt::format("cannot be read: {}", error.message())};
  if (fs::is_directory(status)) return {{}, "is a folder; name a YAML file"};
  if (!fs::is_regular_file(status)) return {{}, "is not a regular file"};
  const uintmax_t bytes = fs::file_size(path, error);
  if (!error && bytes > kLargestFile) {
    return {{}, fmt::format("has {} bytes; a config has at most {}", bytes, kLargestFile)};
  }
  std::ifstream stream(path, std::ios::binary);
  if (!stream) return {{}, fmt::format("cannot be read: {}", std::strerror(errno))};
  std::string content{std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
  if (stream.bad()) return {{}, "cannot be read to its end"};
  return {std::move(content), {}};
}

class Gatherer {
 public:
  Gatherer(Problems& problems, Given& given) : problems_(problems), given_(given) {}

  // `place` is where the file was asked for; none for the first one.
  void add_file(const std::string& path, const Place* place) {
    if (++files_ > kMostFiles) {
      given_.complete = false;
      if (files_ == kMostFiles + 1) problems_.add(*place, "include", fmt::format("more than {} files", kMostFiles));
      return;
    }
    std::error_code error;
    const std::string identity = fs::weakly_canonical(path, error).string();
    if (std::find(open_.begin(), open_.end(), identity) != open_.end()) {
      given_.complete = false;
      problems_.add(*place, "include", fmt::format("{} includes itself, through {}", path, fmt::join(open_, ", ")));
      return;
    }
    const Text text = read_text(path);
    if (!text.problem.empty()) {
      given_.complete = false;
      if (place == nullptr) {
        problems_.add(problems_.add_source(path), text.problem);
      } else {
        problems_.add(*place, "include", fmt::format("{}: {}", path, text.problem));
      }
      return;
    }
    open_.push_back(identity);
    add_text(text.content, path, fs::path(path).parent_path());
    open_.pop_back();
  }

  void add_text(const std::string& text, const std::string& name, const fs::path& folder) {
    const int source = problems_.add_source(name);
    Node root;
    if (!parse_yaml(text, source, problems_, root)) {
      given_.complete = false;
      return;
    }
    if (root.kind == NodeKind::null) return;
    if (root.kind != NodeKind::map) {
      given_.complete = false;
      problems_.add(root.place, {}, fmt::format("expects sections such as model and train; found {}", shown(root)));
      return;
    }
    for (const NodeEntry& entry : root.entries) {
      if (entry.name == "include") add_includes(entry.value, folder);
    }
    std::erase_if(root.entries, [](const NodeEntry& entry) { return entry.name == "include"; });
    add_entries(root, "");
  }

  void add_override(const std::string& argument) {
    const size_t equals = argument.find('=');
    const std::string path = argument.substr(0, equals);
    if (equals == std::string::npos || path.empty()) {
      const int source = problems_.add_source(argument, "=");
      problems_.add({source}, {}, "expects KEY=VALUE, such as mesh.tp=4");
      return;
    }
    const int source = problems_.add_source(argument, path);
    Node value;
    if (!parse_yaml(argument.substr(equals + 1), source, problems_, value)) return;
    place_in(value, {source, 1, 1});
    add(path, {source, 1, 1}, value);
  }

 private:
  // Positions inside an argument help nobody.
  static void place_in(Node& node, const Place& place) {
    node.place = place;
    for (Node& item : node.items) place_in(item, place);
    for (NodeEntry& entry : node.entries) {
      entry.place = place;
      place_in(entry.value, place);
    }
  }

  void add_includes(const Node& list, const fs::path& folder) {
    const bool is_list = list.kind == NodeKind::list &&
                         std::all_of(list.items.begin(), list.items.end(),
                                     [](auto& item) { return item.kind == NodeKind::scalar && !item.text.empty(); });
    if (!is_list) {
      problems_.add(list.place, "include",
                    fmt::format("expects a list of files such as [base.yaml]; found {}", shown(list)));
      return;
    }
    for (const Node& item : list.items) {
      if (item.text.find('\0') != std::string::npos) {
        problems_.add(item.place, "include", "the name of a file cannot hold a zero byte");
        continue;
      }
      add_file((folder / item.text).lexically_normal().string(), &item.place);
    }
  }

  void add_entries(const Node& map, const std::string& prefix) {
    for (const NodeEntry& entry : map.entries) {
      if (entry.name.find('.') != std::string::npos) {
        problems_.add(entry.place, prefix + shown_name(entry.name), unknown_dotted(prefix + entry.name));
      } else {
        add(prefix + entry.name, entry.place, entry.value);
      }
    }
  }

  static std::string unknown_dotted(const std::string& path) {
    if (find_key(path) == nullptr) return "unknown key; keys in a file have no dots, write sections below one another";
    return fmt::format("unknown key; write {} below {}:", name_part(path), section_part(path));
  }

  static std::string shown_name(const std::string& name) {
    Node node;
    node.kind = NodeKind::scalar;
    node.text = name;
    return shown(node);
  }

  void add(const std::string& path, const Place& place, const Node& value) {
    if (find_key(path) != nullptr) {
      given_.values[path] = value;
    } else if (const Section* section = find_section(path)) {
      add_section(*section, place, value);
    } else {
      problems_.add(place, shown_name(path), fmt::format("unknown key; {}", suggestion_for(path)));
    }
  }

  void add_section(const Section& section, const Place& place, const Node& value) {
    if (value.kind == NodeKind::map || (value.kind == NodeKind::null && (value.empty || !section.optional()))) {
      given_.sections[section.path] = place;
      add_entries(value, section.path + ".");
    } else if (value.kind == NodeKind::null) {
      given_.sections.erase(section.path);
      std::erase_if(given_.values, [&](const auto& item) { return section_part(item.first) == section.path; });
    } else {
      problems_.add(value.place, section.path,
                    fmt::format("expects keys below it, such as {}; found {}", first_key_of(section), shown(value)));
    }
  }

  static std::string_view first_key_of(const Section& section) {
    for (const Key& key : keys()) {
      if (key.path.rfind(section.path + ".", 0) == 0) return std::string_view(key.path).substr(section.path.size() + 1);
    }
    return "";
  }

  Problems& problems_;
  Given& given_;
  int files_ = 0;
  std::vector<std::string> open_;  // files that are being read, the first one first
};

// A key given alone makes its optional section present.
void add_sections_of_values(Given& given) {
  for (const auto& [path, node] : given.values) given.sections.try_emplace(std::string(section_part(path)), node.place);
}

}  // namespace

const Place* Given::place_of(std::string_view path) const {
  if (const auto value = values.find(path); value != values.end()) return &value->second.place;
  if (const auto section = sections.find(path); section != sections.end()) return &section->second;
  return nullptr;
}

Given gather_file(const std::string& path, std::span<const std::string> overrides, Problems& problems) {
  Given given;
  Gatherer gatherer(problems, given);
  gatherer.add_file(path, nullptr);
  for (const std::string& argument : overrides) gatherer.add_override(argument);
  add_sections_of_values(given);
  return given;
}

Given gather_text(const std::string& text, const std::string& name, std::span<const std::string> overrides,
                  Problems& problems) {
  Given given;
  Gatherer gatherer(problems, given);
  gatherer.add_text(text, name, {});
  for (const std::string& argument : overrides) gatherer.add_override(argument);
  add_sections_of_values(given);
  return given;
}

}  // namespace quintet::config
