// Ranks as threads whose tensors lie on emulated GPUs, and what every collective must give them.
#pragma once

#include <algorithm>
#include <functional>
#include <initializer_list>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "lib/base/random.h"
#include "lib/comm/communicator.h"
#include "lib/device/cuda/cuda_device.h"
#include "lib/device/memory.h"
#include "tests/gpu_emulator/emulator.h"

namespace quintet::comm {

inline constexpr uint64_t kSeeds = 10;
using Counts = std::vector<int64_t>;
using Values = std::vector<int64_t>;

// Whether ranks have a GPU each and talk over NCCL, or share GPUs and hand each other memory.
enum class Gpus : uint8_t { own, shared };

class Rank {
 public:
  Rank(Communicator& communicator, Gpus gpus, int count)
      : communicator_(communicator),
        device_(device::make_cuda_device(static_cast<int>(communicator.placement().rank) % count, 1)),
        scope_(communicator, *device_, gpus == Gpus::own ? make_nccl_groups(*device_->queue()) : nullptr) {
    if (gpus == Gpus::shared) reach_gpus(*device_, count);
  }

  Communicator& communicator() { return communicator_; }
  device::Device& device() { return *device_; }
  device::MemoryLedger& ledger() { return ledger_; }
  int64_t rank() const { return communicator_.placement().rank; }

  Tensor blank(DType dtype, int64_t elements) { return arena_.allocate(dtype, {elements}); }
  Tensor put(DType dtype, const Values& values) {
    const Tensor tensor = blank(dtype, static_cast<int64_t>(values.size()));
    std::vector<std::byte> bytes(static_cast<size_t>(tensor.bytes()));
    const Tensor host(bytes.data(), dtype, tensor.shape());
    visit_dtype(dtype, [&]<typename T>() {
      for (size_t i = 0; i < values.size(); ++i) {
        if constexpr (std::is_same_v<T, bfloat16>) {
          host.as<T>()[i] = T(static_cast<float>(values[i]));
        } else {
          host.as<T>()[i] = static_cast<T>(values[i]);
        }
      }
    });
    device_->copy(host, tensor);
    return tensor;
  }
  Values read(const Tensor& tensor) {
    std::vector<std::byte> bytes(static_cast<size_t>(tensor.bytes()));
    const Tensor host(bytes.data(), tensor.dtype(), tensor.shape());
    device_->copy(tensor, host);
    Values values(static_cast<size_t>(tensor.elements()));
    visit_dtype(tensor.dtype(), [&]<typename T>() {
      for (size_t i = 0; i < values.size(); ++i) {
        if constexpr (std::is_same_v<T, bfloat16>) {
          values[i] = static_cast<int64_t>(static_cast<float>(host.as<T>()[i]));
        } else {
          values[i] = static_cast<int64_t>(host.as<T>()[i]);
        }
      }
    });
    return values;
  }

 private:
  Communicator& communicator_;
  std::unique_ptr<device::Device> device_;
  device::MemoryLedger ledger_;
  device::Arena arena_{*device_, ledger_, device::Owner::workspace};
  DeviceScope scope_;
};

// The exit code of `ranks` ranks, and the emulator's report.
struct Outcome {
  int code;
  std::string report;
};
inline Outcome run(Gpus gpus, int count, int64_t ranks, const std::function<void(Rank&)>& body) {
  gpu_emulator::set_devices(count);
  const int code = run_thread_ranks(ranks, [&](Communicator& communicator) {
    Rank rank(communicator, gpus, count);
    body(rank);
  });
  gpu_emulator::set_devices(1);
  return {code, gpu_emulator::take_report()};
}
inline void require_success(const Outcome& outcome) {
  REQUIRE(outcome.report.empty());
  REQUIRE(outcome.code == 0);
}

// Whole numbers from 0 to 19, which every type adds without rounding.
inline Values values_of(int64_t rank, int64_t count) {
  Values values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i) values[i] = philox(5, i, static_cast<uint64_t>(rank))[0] % 20;
  return values;
}
inline Values reduced(std::span<const int64_t> members, int64_t count, Reduction reduction) {
  Values result(static_cast<size_t>(count));
  for (const int64_t member : members) {
    const Values values = values_of(member, count);
    for (size_t i = 0; i < result.size(); ++i)
      result[i] = reduction == Reduction::sum ? result[i] + values[i] : std::max(result[i], values[i]);
  }
  return result;
}
inline Values part(const Values& values, int64_t begin, int64_t count) {
  return {values.begin() + begin, values.begin() + begin + count};
}
inline int64_t begin_of(const Counts& counts, int64_t member) {
  return std::accumulate(counts.begin(), counts.begin() + member, int64_t{0});
}
inline int64_t sum_of(const Counts& counts) { return begin_of(counts, static_cast<int64_t>(counts.size())); }

inline void check_reductions(Rank& on, ProcessGroup& group, DType dtype, const Counts& counts,
                             std::initializer_list<Reduction> reductions) {
  const int64_t all = sum_of(counts), begin = begin_of(counts, group.rank());
  const int64_t own = counts[static_cast<size_t>(group.rank())];
  for (const Reduction reduction : reductions) {
    const Tensor tensor = on.put(dtype, values_of(on.rank(), all));
    group.all_reduce(tensor, reduction, "a tensor").wait();
    QUINTET_CHECK(on.read(tensor) == reduced(group.members(), all, reduction));
  }
  const Values expected = part(reduced(group.members(), all, Reduction::sum), begin, own);
  const Tensor input = on.put(dtype, values_of(on.rank(), all)), output = on.blank(dtype, own);
  group.reduce_scatter(input, counts, output, "pieces").wait();
  QUINTET_CHECK(on.read(output) == expected);
  QUINTET_CHECK(on.read(input) == values_of(on.rank(), all));
  group.reduce_scatter(input, counts, input.rows(begin, own), "pieces in place").wait();
  QUINTET_CHECK(on.read(input.rows(begin, own)) == expected);
}

inline void check_gathers(Rank& on, ProcessGroup& group, DType dtype, const Counts& counts) {
  const int64_t all = sum_of(counts), begin = begin_of(counts, group.rank());
  const int64_t own = counts[static_cast<size_t>(group.rank())];
  Values expected;
  for (int64_t m = 0; m < group.size(); ++m) {
    const Values piece = values_of(group.members()[static_cast<size_t>(m)], counts[static_cast<size_t>(m)]);
    expected.insert(expected.end(), piece.begin(), piece.end());
  }
  const Tensor input = on.put(dtype, values_of(on.rank(), own)), output = on.blank(dtype, all);
  group.all_gather(input, counts, output, "pieces").wait();
  QUINTET_CHECK(on.read(output) == expected);
  const Tensor both = on.blank(dtype, all);
  on.device().copy(input, both.rows(begin, own));
  group.all_gather(both.rows(begin, own), counts, both, "pieces in place").wait();
  QUINTET_CHECK(on.read(both) == expected);
}

// Member a sends (a + 2 b) mod 4 elements to member b: none to some.
inline void check_all_to_all(Rank& on, ProcessGroup& group, DType dtype) {
  const auto count = [](int64_t from, int64_t to) { return (from + 2 * to) % 4; };
  Counts sent, received;
  Values expected;
  for (int64_t m = 0; m < group.size(); ++m) {
    sent.push_back(count(group.rank(), m));
    received.push_back(count(m, group.rank()));
  }
  for (int64_t m = 0; m < group.size(); ++m) {
    Counts theirs;
    for (int64_t to = 0; to < group.size(); ++to) theirs.push_back(count(m, to));
    const Values values = values_of(group.members()[static_cast<size_t>(m)], sum_of(theirs));
    const Values piece = part(values, begin_of(theirs, group.rank()), count(m, group.rank()));
    expected.insert(expected.end(), piece.begin(), piece.end());
  }
  const Tensor input = on.put(dtype, values_of(on.rank(), sum_of(sent))), output = on.blank(dtype, sum_of(received));
  group.all_to_all(input, sent, output, received, "pieces for all").wait();
  QUINTET_CHECK(on.read(output) == expected);
}

// Both ways round a ring at once; some send first and some receive first.
inline void check_ring(Rank& on, ProcessGroup& group, DType dtype, int64_t count) {
  const int64_t next = (group.rank() + 1) % group.size(), last = (group.rank() + group.size() - 1) % group.size();
  const Tensor mine = on.put(dtype, values_of(on.rank(), count));
  const Tensor from_last = on.blank(dtype, count), from_next = on.blank(dtype, count);
  constexpr uint16_t kDown = 1;  // a channel: between two members up and down are the same way
  std::vector<std::function<Handle()>> posts = {[&] { return group.send(mine, next, "up"); },
                                                [&] { return group.receive(from_last, last, "up"); },
                                                [&] { return group.send(mine, last, "down", kDown); },
                                                [&] { return group.receive(from_next, next, "down", kDown); }};
  if (group.rank() % 2 == 1) std::reverse(posts.begin(), posts.end());
  std::vector<Handle> handles;
  for (const auto& post : posts) handles.push_back(post());
  for (Handle& handle : handles) handle.wait();
  QUINTET_CHECK(on.read(from_last) == values_of(group.members()[static_cast<size_t>(last)], count));
  QUINTET_CHECK(on.read(from_next) == values_of(group.members()[static_cast<size_t>(next)], count));
}

inline Mesh mesh_of(int64_t dp, int64_t tp) {
  return {{{dp, tp, 1, 1, 1}}, {Axis::tp, Axis::cp, Axis::ep, Axis::dp, Axis::pp}};
}

// On a mesh of dp and tp: the groups' operations are posted in another order on each rank.
inline void check_groups_in_any_order(Rank& on) {
  std::vector<ProcessGroup*> groups = {&on.communicator().group({Axis::dp}, Axis::dp),
                                       &on.communicator().group({Axis::tp}, Axis::tp),
                                       &on.communicator().group({Axis::dp, Axis::tp}, std::nullopt)};
  std::rotate(groups.begin(), groups.begin() + on.rank() % 3, groups.end());
  for (int round = 0; round < 3; ++round) {
    std::vector<Tensor> tensors;
    std::vector<Handle> handles;
    for (ProcessGroup* group : groups) {
      tensors.push_back(on.put(DType::fp32, values_of(on.rank(), 11)));
      handles.push_back(group->all_reduce(tensors.back(), Reduction::sum, "a tensor"));
    }
    for (size_t i = groups.size(); i-- > 0;) {
      handles[i].wait();
      QUINTET_CHECK(on.read(tensors[i]) == reduced(groups[i]->members(), 11, Reduction::sum));
    }
  }
}

}  // namespace quintet::comm
