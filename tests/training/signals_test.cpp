#include "lib/training/signals.h"

#include <pthread.h>
#include <unistd.h>

#include <csignal>
#include <thread>

#include <catch2/catch.hpp>

namespace quintet::training {

TEST_CASE("a signal is noted without interrupting a thread that computes", "[quick][signals]") {
  watch_signals();
  sigset_t blocked;
  std::thread([&] { pthread_sigmask(SIG_SETMASK, nullptr, &blocked); }).join();
  for (const int signal : {SIGTERM, SIGINT, SIGUSR1}) REQUIRE(sigismember(&blocked, signal) == 1);
  REQUIRE(requested_signal() == 0);
  kill(getpid(), SIGUSR1);
  while (requested_signal() == 0) std::this_thread::yield();
  REQUIRE(requested_signal() == SIGUSR1);
}

}  // namespace quintet::training
