#include "lib/comm/failure.h"

#include <cstdio>
#include <new>

#include <fmt/format.h>

#include "lib/base/error.h"
#include "lib/comm/transport.h"

namespace quintet::comm {

std::optional<Cause> cause_of(const std::exception_ptr& exception, const std::string& label, bool alone) {
  Cause cause{kInternalFailure, "unknown exception"};
  bool same_everywhere = alone;
  try {
    std::rethrow_exception(exception);
  } catch (const Aborted&) {
    return std::nullopt;
  } catch (const Error& error) {
    cause = {static_cast<int>(error.code()), error.what()};
    same_everywhere |= error.code() == ExitCode::config;
  } catch (const std::bad_alloc&) {
    // Mended in the config, but met by one rank and not by another.
    cause = {static_cast<int>(ExitCode::config),
             "memory ran out; lower train.micro_batch_size, choose a smaller model, or start fewer ranks on a node"};
  } catch (const std::exception& error) {
    cause = {kInternalFailure, error.what()};
  } catch (...) {
  }
  const bool names_a_rank =
      cause.message.find(label) != std::string::npos || cause.message.find(" on rank ") != std::string::npos;
  if (!same_everywhere && !names_a_rank) cause.message += fmt::format(" (first on {})", label);
  return cause;
}

void print(const Cause& cause) {
  const std::string line = fmt::format("error: {}\n", cause.message);
  std::fwrite(line.data(), 1, line.size(), stderr);
  std::fflush(stderr);
}

}  // namespace quintet::comm
