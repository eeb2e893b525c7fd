#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <initializer_list>
#include <mutex>
#include <optional>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include <fmt/format.h>
#include <sched.h>
#include <unistd.h>

#include "lib/comm/communicator.h"
#include "lib/comm/failure.h"
#include "lib/comm/thread_transport.h"

namespace quintet::comm {
namespace {

int64_t usable_cpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  return sched_getaffinity(0, sizeof(set), &set) == 0 ? std::max(1, CPU_COUNT(&set)) : 1;
}

void run_rank(const std::shared_ptr<ThreadWorld>& world, int64_t rank, const std::string& node,
              const std::function<void(Communicator&)>& body) {
  const int64_t ranks = world->size();
  Communicator communicator({rank, ranks, rank, ranks, usable_cpus(), node, ranks > 1 ? "threads" : "one process"},
                            std::make_unique<ThreadTransport>(world, rank));
  try {
    body(communicator);
    communicator.drain();
  } catch (...) {
    const auto cause = cause_of(std::current_exception(), communicator.label_of(rank), ranks == 1);
    if (cause) world->abort(*cause);
  }
}

// A rank that computes does not look at the abort flag; one that never comes back must not hold the process.
constexpr std::chrono::seconds kGrace{10};

// Returns when all ranks have ended. Where the world has failed and a rank does not end in time, ends the process.
class EndOfRanks {
 public:
  void one_ended() {
    {
      const std::lock_guard lock(mutex_);
      ++ended_;
    }
    changed_.notify_one();
  }

  void wait_for(int64_t ranks, const ThreadWorld& world) {
    std::unique_lock lock(mutex_);
    std::optional<std::chrono::steady_clock::time_point> failed_at;
    while (ended_ < ranks) {
      changed_.wait_for(lock, std::chrono::milliseconds(200));
      const std::optional<Cause> cause = world.cause();
      if (!cause) continue;
      const auto now = std::chrono::steady_clock::now();
      if (!failed_at) failed_at = now;
      if (now - *failed_at < kGrace) continue;
      print(*cause);
      std::fflush(nullptr);
      std::_Exit(cause->code);
    }
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int64_t ended_ = 0;
};

}  // namespace

int run_thread_ranks(int64_t ranks, const std::function<void(Communicator&)>& body) {
  QUINTET_CHECK(ranks >= 1, "{} ranks", ranks);
  char node[256] = {};
  gethostname(node, sizeof(node) - 1);
  const auto world = std::make_shared<ThreadWorld>(ranks);
  if (ranks == 1) {
    run_rank(world, 0, node, body);
  } else {
    std::vector<std::thread> threads;
    EndOfRanks end;
    for (int64_t rank = 0; rank < ranks; ++rank) {
      try {
        threads.emplace_back([&, rank] {
          run_rank(world, rank, node, body);
          end.one_ended();
        });
      } catch (const std::system_error& error) {
        world->abort({static_cast<int>(ExitCode::config),
                      fmt::format("--ranks {}: the system gives no thread for rank {} ({}); choose fewer, or raise the "
                                  "limit on processes",
                                  ranks, rank, error.code().message())});
        break;
      }
    }
    end.wait_for(static_cast<int64_t>(threads.size()), *world);
    for (std::thread& thread : threads) thread.join();
  }
  const std::optional<Cause> cause = world->cause();
  if (!cause) return 0;
  print(*cause);
  return cause->code;
}

bool launched_by_mpi() {
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_RANK", "PMI_SIZE", "PMIX_RANK"})
    if (std::getenv(name) != nullptr) return true;
  return false;
}

}  // namespace quintet::comm
