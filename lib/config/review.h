// A resolved config under examination: what can be relied upon, and where a rule's breach is shown. Internal to
// lib/config.
#pragma once

#include <initializer_list>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include <fmt/core.h>

#include "lib/config/config.h"
#include "lib/config/problems.h"
#include "lib/config/sources.h"

namespace quintet::config {

class Review {
 public:
  Review(const Given& given, Problems& problems) : given_(given), problems_(problems) {}

  Config config;

  void mark_unsound(std::string_view path) { unsound_.emplace(path); }
  // Whether all these keys hold legal values, so that a rule over them can be judged.
  bool sound(std::initializer_list<std::string_view> paths) const {
    for (const std::string_view path : paths) {
      if (unsound_.count(path) != 0) return false;
    }
    return true;
  }
  bool is_given(std::string_view path) const { return given_.place_of(path) != nullptr; }

  // A breach of a rule over `paths`, told about the first one; shown where that, or else the next one given, was
  // written.
  template <typename... Args>
  void problem(std::initializer_list<std::string_view> paths, fmt::format_string<Args...> format, Args&&... args) {
    Place place;
    for (const std::string_view path : paths) {
      if (const Place* found = given_.place_of(path)) {
        place = *found;
        break;
      }
    }
    problems_.add(place, *paths.begin(), fmt::format(format, std::forward<Args>(args)...));
  }

 private:
  const Given& given_;
  Problems& problems_;
  std::set<std::string, std::less<>> unsound_;
};

// Rules over several keys (SPEC section 2, "Checked up front"). `world_size` 0 = unknown.
void check_rules(Review& review, int64_t world_size);

// Reports values that are legal but not built yet.
void refuse_unbuilt(Review& review);

}  // namespace quintet::config
