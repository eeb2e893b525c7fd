// What ended a world, and how its user hears of it.
#pragma once

#include <exception>
#include <optional>
#include <string>

namespace quintet::comm {

inline constexpr int kInternalFailure = 70;  // exit code of a bug of ours (EX_SOFTWARE of sysexits.h)

struct Cause {
  int code = 0;
  std::string message;
};

// The cause that an exception caught on the rank named `label` stands for; none if it only echoes another rank's
// failure. `label` is added where the message does not already name the rank and other ranks may have fared otherwise.
std::optional<Cause> cause_of(const std::exception_ptr& exception, const std::string& label, bool alone);

// "error: <message>" on standard error, in one write.
void print(const Cause& cause);

}  // namespace quintet::comm
