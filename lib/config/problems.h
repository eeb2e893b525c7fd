// The problems of a config, gathered so that all are listed in one go.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace quintet::config {

// Where something was written. Lines and columns count from 1.
struct Place {
  int source = 0;
  int line = 1;
  int column = 1;
  auto operator<=>(const Place&) const = default;  // NOLINT(modernize-use-nullptr): clang-tidy 14 misreads it
};

class Problems {
 public:
  // A file, or an override when `override_key` is not empty (name is then KEY=VALUE). Problems are listed in the order
  // of their sources.
  int add_source(std::string name, std::string override_key = {});
  const std::string& source_name(int source) const { return sources_[static_cast<size_t>(source)].name; }
  bool is_override(int source) const { return !sources_[static_cast<size_t>(source)].override_key.empty(); }

  // `key` may be empty.
  void add(const Place& place, std::string_view key, std::string_view text);
  // A problem of a source as a whole.
  void add(int source, std::string_view text);

  bool empty() const { return problems_.empty(); }
  size_t size() const { return problems_.size(); }
  // Throws an Error of ExitCode::config with a line for each problem, sorted by place, if there is one.
  void throw_if_any() const;

 private:
  struct Source {
    std::string name;
    std::string override_key;
  };
  struct Problem {
    Place place;
    std::string line;
  };
  std::vector<Source> sources_;
  std::vector<Problem> problems_;
};

}  // namespace quintet::config
