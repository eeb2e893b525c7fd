// Two kinds of failure. An Error is the user's to mend: it names key, value, rule and remedy and carries the
// exit code of the process. A failed QUINTET_CHECK is ours: it prints expression, place, rank and coordinate.
#pragma once

#include <stdexcept>
#include <string>
#include <utility>

#include <fmt/core.h>

namespace quintet {

// Exit codes promised to users.
enum class ExitCode : int { success = 0, config = 2, data = 3, checkpoint = 4, numeric = 5, communication = 6 };

class Error : public std::runtime_error {
 public:
  Error(ExitCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  ExitCode code() const { return code_; }

 private:
  ExitCode code_;
};

// A broken invariant: a bug of ours, never a user's fault.
class CheckFailure : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

// Throws an Error with a formatted message.
template <typename... Args>
[[noreturn]] void fail(ExitCode code, fmt::format_string<Args...> format, Args&&... args) {
  throw Error(code, fmt::format(format, std::forward<Args>(args)...));
}

// The rank that the calling thread works for, as "rank 5 (dp 0, tp 1, pp 1)", "rank 5" before the mesh is known; shown
// by failed checks. Empty in a run of one rank and on helper threads.
void set_rank_label(std::string label);
const std::string& rank_label();

namespace detail {
[[noreturn]] void check_failed(const char* expression, const char* file, int line, const std::string& detail);
}  // namespace detail

// QUINTET_CHECK(condition) or QUINTET_CHECK(condition, "format {}", value): throws CheckFailure.
#define QUINTET_CHECK(condition, ...)                                                                                 \
  do {                                                                                                                \
    if (!(condition)) [[unlikely]]                                                                                    \
      ::quintet::detail::check_failed(#condition, __FILE__, __LINE__, ::quintet::detail::check_message(__VA_ARGS__)); \
  } while (false)

namespace detail {
inline std::string check_message() { return {}; }
template <typename... Args>
std::string check_message(fmt::format_string<Args...> format, Args&&... args) {
  return fmt::format(format, std::forward<Args>(args)...);
}
}  // namespace detail

}  // namespace quintet
