// What a run says: rank 0 to the console and log.txt; with logging.level debug every rank to log/rank_00003.txt too.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "lib/base/error.h"

namespace quintet::training {

class Log {
 public:
  // `folder` is the run's; only rank 0 speaks on the console.
  Log(const std::string& folder, int64_t rank, bool debug);
  ~Log();
  Log(const Log&) = delete;
  Log& operator=(const Log&) = delete;

  // Rank 0 only.
  template <typename... Args>
  void info(fmt::format_string<Args...> format, Args&&... args) {
    if (speaks()) write_info(fmt::format(format, std::forward<Args>(args)...));
  }
  // Rank 0 only, into log.txt alone.
  template <typename... Args>
  void note(fmt::format_string<Args...> format, Args&&... args) {
    if (speaks()) write_note(fmt::format(format, std::forward<Args>(args)...));
  }
  // Every rank, into its own file, where debug is on.
  template <typename... Args>
  void debug(fmt::format_string<Args...> format, Args&&... args) {
    if (debugs()) write_debug(fmt::format(format, std::forward<Args>(args)...));
  }
  // A line that the next one overwrites, if the console is a terminal; in files nothing.
  void progress(std::string_view line);

 private:
  bool speaks() const;
  bool debugs() const;
  void write_info(const std::string& line);
  void write_note(const std::string& line);
  void write_debug(const std::string& line);

  struct Sinks;
  std::unique_ptr<Sinks> sinks_;
};

}  // namespace quintet::training
