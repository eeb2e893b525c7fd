#include "lib/training/signals.h"

#include <pthread.h>

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <thread>

namespace quintet::training {
namespace {

// Signals belong to the process, so this one word is global.
std::atomic<int> requested{0};

sigset_t watched() {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : {SIGTERM, SIGINT, SIGUSR1}) sigaddset(&set, signal);
  return set;
}

[[noreturn]] void take_signals() {
  const sigset_t set = watched();
  for (;;) {
    int signal = 0;
    if (sigwait(&set, &signal) != 0) continue;
    if (signal == SIGINT && requested.load() == SIGINT) std::_Exit(128 + SIGINT);
    int none = 0;
    requested.compare_exchange_strong(none, signal);
  }
}

}  // namespace

void watch_signals() {
  // A file that outgrows its limit is an error of the write, with our message.
  std::signal(SIGXFSZ, SIG_IGN);
  const sigset_t set = watched();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  std::thread(take_signals).detach();
}

int requested_signal() { return requested.load(); }

}  // namespace quintet::training
