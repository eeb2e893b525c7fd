#include <nccl.h>

#include <catch2/catch.hpp>

#include <functional>
#include <latch>
#include <thread>

#include "lib/base/dtype.h"
#include "lib/base/random.h"
#include "tests/gpu_emulator/emulator.h"
#include "tests/gpu_emulator/test_kernels.h"
#include "tests/support/device_memory.h"

using namespace quintet;
using namespace quintet::testing;

namespace {

constexpr uint64_t kSeeds = 10;

struct Rank {
  int rank, ranks;
  ncclComm_t comm;
  const Stream& stream;
};

ncclUniqueId unique_id() {
  ncclUniqueId id;
  ncclGetUniqueId(&id);
  return id;
}

// One thread a rank, with a device of its own where there are as many. What goes wrong, in the order of ranks.
std::vector<std::string> run_ranks(int ranks, const std::function<void(const Rank&)>& body, int devices = 4) {
  gpu_emulator::set_devices(devices);
  const ncclUniqueId id = unique_id();
  std::vector<std::string> problems(static_cast<size_t>(ranks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      cudaSetDevice(rank % devices);
      ncclComm_t comm = nullptr;
      std::string& problem = problems[static_cast<size_t>(rank)];
      if (ncclCommInitRank(&comm, ranks, id, rank) != ncclSuccess) problem = ncclGetLastError(comm);
      try {
        const Stream stream;
        if (comm != nullptr) body({rank, ranks, comm, stream});
      } catch (const std::exception& error) {
        problem += error.what();
      }
      if (problem.empty() && ncclCommDestroy(comm) != ncclSuccess) problem = ncclGetLastError(comm);
    });
  }
  for (std::thread& thread : threads) thread.join();
  gpu_emulator::set_devices(1);
  return problems;
}

void require_nccl(ncclResult_t result) {
  if (result != ncclSuccess) throw CheckFailure(ncclGetLastError(nullptr));
}

// The report of a fault that ranks run into.
std::string report_of(int ranks, const std::function<void(const Rank&)>& body) {
  run_ranks(ranks, body);
  cudaGetLastError();
  return gpu_emulator::take_report();
}

template <typename T>
T number(int value) {
  if constexpr (std::is_same_v<T, bfloat16>) {
    return T(static_cast<float>(value));
  } else {
    return static_cast<T>(value);
  }
}

// Small whole numbers, which every type adds without rounding.
template <typename T>
std::vector<T> values_of(int rank, int64_t count) {
  std::vector<T> values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = number<T>(static_cast<int>(philox(7, i, static_cast<uint64_t>(rank))[0] % 20));
  return values;
}
template <typename T>
double sum_at(int ranks, int64_t count, int64_t place) {
  double sum = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    const T value = values_of<T>(rank, count)[static_cast<size_t>(place)];
    if constexpr (std::is_same_v<T, bfloat16>) {
      sum += static_cast<double>(static_cast<float>(value));
    } else {
      sum += static_cast<double>(value);
    }
  }
  return sum;
}
template <typename T>
bool equal(const T& value, double expected) {
  if constexpr (std::is_same_v<T, bfloat16>) {
    return static_cast<double>(static_cast<float>(value)) == expected;
  } else {
    return static_cast<double>(value) == expected;
  }
}
double as_double(bfloat16 value) { return static_cast<double>(static_cast<float>(value)); }
double as_double(auto value) { return static_cast<double>(value); }

// Wrong elements of each collective, on one rank.
template <typename T>
int wrong_elements(const Rank& on, ncclDataType_t type, int64_t count) {
  const auto n = static_cast<size_t>(count);
  const int64_t all = count * on.ranks, own = count * on.rank;
  const DeviceArray<T> input(values_of<T>(on.rank, all)), summed(count), root_sum(count), piece(count), gathered(all);
  const DeviceArray<T> spread(count), from_left(count), in_place(values_of<T>(on.rank, all));
  const int root = on.ranks - 1, right = (on.rank + 1) % on.ranks, left = (on.rank + on.ranks - 1) % on.ranks;
  require_nccl(ncclAllReduce(input, summed, n, type, ncclSum, on.comm, on.stream));
  require_nccl(ncclReduce(input, root_sum, n, type, ncclMax, root, on.comm, on.stream));
  require_nccl(ncclReduceScatter(input, piece, n, type, ncclSum, on.comm, on.stream));
  require_nccl(ncclAllGather(input.data() + own, gathered, n, type, on.comm, on.stream));
  require_nccl(ncclBroadcast(input, spread, n, type, root, on.comm, on.stream));
  require_nccl(ncclReduceScatter(in_place, in_place.data() + own, n, type, ncclSum, on.comm, on.stream));
  require_nccl(ncclAllGather(in_place.data() + own, in_place, n, type, on.comm, on.stream));
  require_nccl(ncclGroupStart());
  require_nccl(ncclSend(input, n, type, right, on.comm, on.stream));
  require_nccl(ncclRecv(from_left, n, type, left, on.comm, on.stream));
  require_nccl(ncclGroupEnd());

  int wrong = 0;
  for (int64_t i = 0; i < count; ++i) {
    const auto at = static_cast<size_t>(i);
    wrong += equal(summed.read(on.stream)[at], sum_at<T>(on.ranks, all, i)) ? 0 : 1;
    wrong += equal(piece.read(on.stream)[at], sum_at<T>(on.ranks, all, own + i)) ? 0 : 1;
    wrong += equal(spread.read(on.stream)[at], as_double(values_of<T>(root, all)[at])) ? 0 : 1;
    wrong += equal(from_left.read(on.stream)[at], as_double(values_of<T>(left, all)[at])) ? 0 : 1;
    double maximum = 0;
    for (int rank = 0; rank < on.ranks; ++rank) maximum = std::max(maximum, as_double(values_of<T>(rank, all)[at]));
    if (on.rank == root) wrong += equal(root_sum.read(on.stream)[at], maximum) ? 0 : 1;
  }
  for (int64_t i = 0; i < all; ++i) {
    const auto at = static_cast<size_t>(i);
    const auto from = static_cast<int>(i / count);
    wrong += equal(gathered.read(on.stream)[at], as_double(values_of<T>(from, all)[at])) ? 0 : 1;
    wrong += equal(in_place.read(on.stream)[at], sum_at<T>(on.ranks, all, i)) ? 0 : 1;
  }
  return wrong;
}

}  // namespace

TEST_CASE("NCCL's collectives and messages move and add what they say, for every type", "[quick][emulator]") {
  for (const int ranks : {2, 3, 4}) {
    for (uint64_t seed = 0; seed < kSeeds; ++seed) {
      gpu_emulator::set_seed(seed);
      std::vector<int> wrong(static_cast<size_t>(ranks));
      const auto problems = run_ranks(ranks, [&](const Rank& on) {
        int& count = wrong[static_cast<size_t>(on.rank)];
        count += wrong_elements<float>(on, ncclFloat32, 5);
        count += wrong_elements<double>(on, ncclFloat64, 3);
        count += wrong_elements<bfloat16>(on, ncclBfloat16, 7);
        count += wrong_elements<int64_t>(on, ncclInt64, 1);
        count += wrong_elements<int32_t>(on, ncclInt32, 5);
        count += wrong_elements<uint8_t>(on, ncclUint8, 9);
      });
      CHECK(problems == std::vector<std::string>(static_cast<size_t>(ranks)));
      REQUIRE(wrong == std::vector<int>(static_cast<size_t>(ranks)));
    }
  }
}

TEST_CASE("NCCL's order of sums is another with another seed and the same with the same", "[quick][emulator]") {
  const auto sum = [](uint64_t seed) {
    gpu_emulator::set_seed(seed);
    std::vector<float> result;
    run_ranks(4, [&](const Rank& on) {
      std::vector<float> values(40);
      for (size_t i = 0; i < values.size(); ++i)
        values[i] = static_cast<float>(normal(3, i, static_cast<uint64_t>(on.rank)));
      const DeviceArray<float> array(values);
      require_nccl(ncclAllReduce(array, array, 40, ncclFloat32, ncclSum, on.comm, on.stream));
      auto read = array.read(on.stream);
      if (on.rank == 0) result = std::move(read);
    });
    return result;
  };
  int others = 0;
  for (uint64_t seed = 1; seed < kSeeds; ++seed) others += sum(seed) == sum(0) ? 0 : 1;
  CHECK(others > 0);
  CHECK(sum(0) == sum(0));
}

TEST_CASE("NCCL reads what its own stream has written, not what another one will", "[quick][emulator]") {
  int wrong = 0;
  for (const bool same_stream : {true, false}) {
    for (uint64_t seed = 0; seed < 2 * kSeeds; ++seed) {
      gpu_emulator::set_seed(seed);
      std::vector<float> sums(2);
      const auto problems = run_ranks(2, [&](const Rank& on) {
        const Stream other;
        const DeviceArray<float> ramp(std::vector<float>(8)), sum(8);
        fill_ramp(8, 1, ramp, on.stream);
        require_nccl(ncclAllReduce(ramp, sum, 8, ncclFloat32, ncclSum, on.comm, same_stream ? on.stream : other));
        on.stream.synchronise();
        sums[static_cast<size_t>(on.rank)] = sum.read(same_stream ? on.stream : other)[3];
      });
      CHECK(problems == std::vector<std::string>(2));
      if (same_stream) CHECK(sums == std::vector<float>(2, 6));
      wrong += sums == std::vector<float>(2, 6) ? 0 : 1;
    }
  }
  CHECK(wrong > 0);
}

TEST_CASE("NCCL calls that do not match between ranks are reported", "[quick][emulator]") {
  const auto both = [](const std::function<ncclResult_t(const Rank&, float*)>& one,
                       const std::function<ncclResult_t(const Rank&, float*)>& other) {
    return report_of(2, [&](const Rank& on) {
      const DeviceArray<float> array(std::vector<float>(16));
      (on.rank == 0 ? one : other)(on, array);
      on.stream.synchronise();
    });
  };
  const auto reduces = [](size_t count, ncclDataType_t type, ncclRedOp_t reduction) {
    return [=](const Rank& on, float* array) {
      return ncclAllReduce(array, array, count, type, reduction, on.comm, on.stream);
    };
  };
  const auto broadcasts = [](int root) {
    return [=](const Rank& on, float* array) {
      return ncclBroadcast(array, array, 4, ncclFloat32, root, on.comm, on.stream);
    };
  };
  const auto plain = reduces(4, ncclFloat32, ncclSum);
  const auto meets = Catch::Matchers::Contains(" meets nccl");
  CHECK_THAT(both(plain, reduces(5, ncclFloat32, ncclSum)), meets);
  CHECK_THAT(both(plain, reduces(4, ncclInt32, ncclSum)), meets);
  CHECK_THAT(both(plain, reduces(4, ncclFloat32, ncclMax)), meets);
  CHECK_THAT(both(plain, broadcasts(0)), meets);
  CHECK_THAT(both(broadcasts(1), broadcasts(0)), meets);
  CHECK_THAT(both([](const Rank& on, float* array) { return ncclSend(array, 4, ncclFloat32, 1, on.comm, on.stream); },
                  [](const Rank& on, float* array) { return ncclRecv(array, 3, ncclFloat32, 0, on.comm, on.stream); }),
             meets);
  CHECK(both(plain, plain).empty());
}

TEST_CASE("an NCCL group without an end is reported", "[quick][emulator]") {
  const auto starts = [](const std::function<void(const Rank&)>& then) {
    return report_of(2, [&](const Rank& on) {
      const DeviceArray<float> array(std::vector<float>(4));
      require_nccl(ncclGroupStart());
      require_nccl(ncclSend(array, 2, ncclFloat32, 1 - on.rank, on.comm, on.stream));
      require_nccl(ncclRecv(array.data() + 2, 2, ncclFloat32, 1 - on.rank, on.comm, on.stream));
      then(on);
    });
  };
  CHECK_THAT(starts([](const Rank& on) { cudaStreamSynchronize(on.stream); }),
             Catch::Matchers::Contains("waits in an NCCL group that has not ended"));
  CHECK_THAT(starts([](const Rank&) {}), Catch::Matchers::Contains("NCCL group that has not ended"));
  CHECK(starts([](const Rank& on) {
          require_nccl(ncclGroupEnd());
          on.stream.synchronise();
        }).empty());
  CHECK(ncclGroupEnd() == ncclInvalidUsage);
}

TEST_CASE("an aborted NCCL communicator frees its stream and refuses calls", "[quick][emulator]") {
  std::string refusal;
  const std::string report = report_of(2, [&](const Rank& on) {
    const DeviceArray<float> array(std::vector<float>(4));
    if (on.rank == 1) return;
    require_nccl(ncclRecv(array, 4, ncclFloat32, 1, on.comm, on.stream));  // which nobody sends
    require_nccl(ncclCommAbort(on.comm));
    on.stream.synchronise();
    ncclAllReduce(array, array, 4, ncclFloat32, ncclSum, on.comm, on.stream);
    refusal = ncclGetLastError(on.comm);
  });
  CHECK(report.empty());
  CHECK(refusal == "ncclAllReduce of 4 fp32: a communicator that was aborted");
}

TEST_CASE("NCCL is held to the device's memory, when called and when it runs", "[quick][emulator]") {
  const auto problems = run_ranks(2, [](const Rank& on) {
    std::vector<float> host(4);
    const DeviceArray<float> array(std::vector<float>(4));
    const auto require_refusal = [&](const float* from, float* to, size_t count) {
      const ncclResult_t result = ncclAllReduce(from, to, count, ncclFloat32, ncclSum, on.comm, on.stream);
      QUINTET_CHECK(result == ncclInvalidArgument);
    };
    require_refusal(host.data(), array, 4);
    require_refusal(array, array, 5);
    require_refusal(array, array.data() + 1, 3);
  });
  CHECK(problems == std::vector<std::string>(2));
  std::latch freed(1);
  const std::string report = report_of(2, [&](const Rank& on) {
    float* memory = nullptr;
    cudaMalloc(&memory, 16);
    require_nccl(ncclAllReduce(memory, memory, 4, ncclFloat32, ncclSum, on.comm, on.stream));
    if (on.rank == 1) {
      cudaFree(memory);
      freed.count_down();
    }
    freed.wait();  // nothing runs before somebody waits for a stream
    on.stream.synchronise();
    if (on.rank == 0) cudaFree(memory);
  });
  CHECK_THAT(report, Catch::Matchers::Contains("ncclAllReduce reads byte 0 of 16 bytes that were freed"));
}

TEST_CASE("an NCCL send without its receive is reported when the communicator goes", "[quick][emulator]") {
  const std::string report = report_of(2, [](const Rank& on) {
    const DeviceArray<float> array(std::vector<float>(4));
    if (on.rank == 0) require_nccl(ncclSend(array, 4, ncclFloat32, 1, on.comm, on.stream));
    if (on.rank == 0) ncclCommDestroy(on.comm);
  });
  CHECK(report == "ncclCommDestroy by rank 0: ncclSend of 4 fp32 to rank 1 never met its counterpart");
}

TEST_CASE("NCCL refuses two ranks on one device", "[quick][emulator]") {
  const auto problems = run_ranks(
      2, [](const Rank&) {}, 1);
  CHECK_THAT(problems[0], Catch::Matchers::Contains("duplicate GPU: ranks"));
  CHECK(problems[0] == problems[1]);
}
