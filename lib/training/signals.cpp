#include "lib/training/signals.h"

#include <array>
#include <atomic>
#include <csignal>

namespace quintet::training {
namespace {

// A signal belongs to the process and its handler takes no argument, so this one word is global.
std::atomic<int> requested{0};
static_assert(std::atomic<int>::is_always_lock_free);

void note(int signal) {
  requested.store(signal);
  if (signal == SIGINT) std::signal(SIGINT, SIG_DFL);
}

}  // namespace

void watch_signals() {
  std::signal(SIGXFSZ, SIG_IGN);  // a file past its limit then fails the write, which says so
  for (const int signal : std::array{SIGTERM, SIGINT, SIGUSR1}) std::signal(signal, note);
}

int requested_signal() { return requested.load(); }

}  // namespace quintet::training
