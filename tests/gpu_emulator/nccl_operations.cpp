#include "tests/gpu_emulator/nccl_operations.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include <fmt/core.h>

#include "lib/base/dtype.h"
#include "lib/base/random.h"
#include "tests/gpu_emulator/memory.h"

namespace quintet::gpu_emulator {
namespace {

constexpr size_t kRun = 4;  // elements that are added in the same order

const char* name_of(NcclKind kind) {
  switch (kind) {
    case NcclKind::all_reduce: return "ncclAllReduce";
    case NcclKind::reduce: return "ncclReduce";
    case NcclKind::reduce_scatter: return "ncclReduceScatter";
    case NcclKind::all_gather: return "ncclAllGather";
    case NcclKind::broadcast: return "ncclBroadcast";
    case NcclKind::send: return "ncclSend";
    case NcclKind::receive: return "ncclRecv";
  }
  return "?";
}

std::string name_of(ncclDataType_t type) {
  switch (type) {
    case ncclUint8: return "uint8";
    case ncclInt32: return "int32";
    case ncclInt64: return "int64";
    case ncclFloat32: return "fp32";
    case ncclFloat64: return "fp64";
    case ncclBfloat16: return "bf16";
    default: return fmt::format("type {}", static_cast<int>(type));
  }
}

// Elements that a call reads and writes.
size_t reads(const NcclCall& call, int ranks) {
  return call.count * (call.kind == NcclKind::reduce_scatter ? static_cast<size_t>(ranks) : 1);
}
size_t writes(const NcclCall& call, int ranks) {
  return call.count * (call.kind == NcclKind::all_gather ? static_cast<size_t>(ranks) : 1);
}

// Where in-place operands of `rank` lie: elements from the start of the longer one.
size_t place_of(const NcclCall& call, int rank) {
  const bool pieces = call.kind == NcclKind::reduce_scatter || call.kind == NcclKind::all_gather;
  return pieces ? call.count * static_cast<size_t>(rank) : 0;
}

template <typename T>
T add(T a, T b, ncclRedOp_t reduction) {
  if (reduction == ncclMax) return std::max(a, b);
  if constexpr (std::is_floating_point_v<T>) {
    return a + b;
  } else {
    return static_cast<T>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
  }
}
template <>
bfloat16 add(bfloat16 a, bfloat16 b, ncclRedOp_t reduction) {
  return bfloat16(add(static_cast<float>(a), static_cast<float>(b), reduction));
}

template <typename Visit>
void visit_type(ncclDataType_t type, Visit&& visit) {
  switch (type) {
    case ncclUint8: visit.template operator()<uint8_t>(); break;
    case ncclInt32: visit.template operator()<int32_t>(); break;
    case ncclInt64: visit.template operator()<int64_t>(); break;
    case ncclFloat32: visit.template operator()<float>(); break;
    case ncclFloat64: visit.template operator()<double>(); break;
    case ncclBfloat16: visit.template operator()<bfloat16>(); break;
    default: break;
  }
}

// A cycle through all ranks; runs of elements start at one place or another of it, as chunks of a ring do.
std::vector<size_t> cycle_of(const NcclClique& clique) {
  std::vector<size_t> cycle(static_cast<size_t>(clique.ranks));
  std::iota(cycle.begin(), cycle.end(), size_t{0});
  for (size_t i = cycle.size(); i > 1; --i) std::swap(cycle[i - 1], cycle[philox(clique.order, i, 0)[0] % i]);
  return cycle;
}

template <typename T>
std::vector<T> sum_of(const NcclMeeting& meeting, size_t elements, const NcclClique& clique) {
  const std::vector<size_t> cycle = cycle_of(clique);
  const ncclRedOp_t reduction = meeting.calls[0]->reduction;
  const auto term = [&](size_t place, size_t i) {
    const void* from = meeting.calls[cycle[place % cycle.size()]]->from;
    return static_cast<const T*>(from)[i];
  };
  std::vector<T> sums(elements);
  for (size_t i = 0; i < elements; ++i) {
    const size_t first = i / kRun + static_cast<size_t>(clique.order % cycle.size());
    sums[i] = term(first, i);
    for (size_t step = 1; step < cycle.size(); ++step) sums[i] = add(sums[i], term(first + step, i), reduction);
  }
  return sums;
}

template <typename T>
void put(const std::vector<T>& values, size_t first, size_t count, void* to) {
  if (count > 0) std::memcpy(to, values.data() + first, count * sizeof(T));
}

template <typename T>
void reduce(const NcclMeeting& meeting, const NcclClique& clique) {
  const NcclCall& any = *meeting.calls[0];
  const std::vector<T> sums = sum_of<T>(meeting, reads(any, clique.ranks), clique);
  for (size_t rank = 0; rank < meeting.calls.size(); ++rank) {
    const NcclCall& call = *meeting.calls[rank];
    if (call.to != nullptr) put(sums, place_of(call, static_cast<int>(rank)), call.count, call.to);
  }
}

void move(const void* from, void* to, size_t bytes) {
  if (bytes > 0) std::memmove(to, from, bytes);
}

}  // namespace

size_t size_of(ncclDataType_t type) {
  size_t bytes = 0;
  visit_type(type, [&]<typename T>() { bytes = sizeof(T); });
  return bytes;
}

bool is_message(NcclKind kind) { return kind == NcclKind::send || kind == NcclKind::receive; }

std::string NcclCall::describe() const {
  std::string text = fmt::format("{} of {} {}", name_of(kind), count, name_of(type));
  if (kind == NcclKind::send) text += fmt::format(" to rank {}", other);
  if (kind == NcclKind::receive) text += fmt::format(" from rank {}", other);
  if (kind == NcclKind::broadcast || kind == NcclKind::reduce) text += fmt::format(" with root {}", other);
  return text;
}

bool NcclMeeting::complete() const {
  return std::count_if(calls.begin(), calls.end(), [](const auto& call) { return call.has_value(); }) == wanted;
}

bool NcclMeeting::ready() const {
  return !broken && complete() && std::count(here.begin(), here.end(), true) == wanted;
}

std::shared_ptr<NcclMeeting> NcclClique::meeting_of(int rank, const NcclCall& call) {
  // Collectives have one sequence, and so has each direction of a pair.
  const bool message = is_message(call.kind), received = call.kind == NcclKind::receive;
  const int from = !message ? -1 : received ? call.other : rank, to = !message ? -1 : received ? rank : call.other;
  const int64_t number = called_[{message ? static_cast<int>(received) : rank, from, to}]++;
  const auto place = meetings_.try_emplace({from, to, number}).first;
  if (place->second == nullptr) {
    const auto everybody = static_cast<size_t>(ranks);
    place->second = std::make_shared<NcclMeeting>();
    place->second->calls.resize(message ? 2 * everybody : everybody);
    place->second->here.resize(place->second->calls.size());
    place->second->wanted = message ? 2 : ranks;
  }
  std::shared_ptr<NcclMeeting> meeting = place->second;
  if (++meeting->called == meeting->wanted) meetings_.erase(place);
  return meeting;
}

size_t NcclClique::place_in_meeting(int rank, const NcclCall& call) const {
  return static_cast<size_t>(rank + (call.kind == NcclKind::receive ? ranks : 0));
}

std::string NcclClique::join(NcclMeeting& meeting, int rank, const NcclCall& call) const {
  for (size_t other = 0; other < meeting.calls.size(); ++other) {
    if (!meeting.calls[other]) continue;
    const NcclCall& before = *meeting.calls[other];
    const bool same = is_message(call.kind) ||
                      (before.kind == call.kind && before.other == call.other && before.reduction == call.reduction);
    if (same && before.count == call.count && before.type == call.type) continue;
    return fmt::format("{} by rank {} meets {} by rank {}", call.describe(), rank, before.describe(),
                       other % static_cast<size_t>(ranks));
  }
  meeting.calls[place_in_meeting(rank, call)] = call;
  return {};
}

std::string memory_misuse(const NcclCall& call, int rank, int ranks, int device) {
  const size_t element = size_of(call.type);
  const size_t in = reads(call, ranks) * element, out = writes(call, ranks) * element;
  const auto misuse = [&](const char* verb, const void* memory, size_t bytes) {
    const std::string what = fmt::format("{} {}", name_of(call.kind), verb);
    std::string report = describe_misuse(what, memory, bytes);
    if (report.empty() && allocation_near(memory)->device != device) {
      report = fmt::format("{} {}, memory of device {}, from device {}", what, memory, allocation_near(memory)->device,
                           device);
    }
    return report;
  };
  std::string report;
  if (call.from != nullptr && in > 0) report = misuse("reads", call.from, in);
  if (report.empty() && call.to != nullptr && out > 0) report = misuse("writes", call.to, out);
  if (!report.empty() || call.from == nullptr || call.to == nullptr || call.from == call.to) return report;
  const auto from = reinterpret_cast<uintptr_t>(call.from), to = reinterpret_cast<uintptr_t>(call.to);
  const uintptr_t place = place_of(call, rank) * element;
  const bool in_place = call.kind == NcclKind::all_gather ? from == to + place : to == from + place;
  if (!in_place && from < to + out && to < from + in) return call.describe() + ": operands overlap";
  return report;
}

std::string perform(NcclMeeting& meeting, const NcclClique& clique) {
  const auto ranks = static_cast<size_t>(clique.ranks);
  for (size_t place = 0; place < meeting.calls.size(); ++place) {
    if (!meeting.calls[place]) continue;
    const size_t rank = place % ranks;
    std::string report =
        memory_misuse(*meeting.calls[place], static_cast<int>(rank), clique.ranks, clique.devices[rank]);
    if (!report.empty()) return report;
  }
  const auto any =
      std::find_if(meeting.calls.begin(), meeting.calls.end(), [](const auto& c) { return c.has_value(); });
  const NcclCall& first = **any;
  const size_t bytes = first.count * size_of(first.type);
  switch (first.kind) {
    case NcclKind::all_reduce:
    case NcclKind::reduce:
    case NcclKind::reduce_scatter: visit_type(first.type, [&]<typename T>() { reduce<T>(meeting, clique); }); break;
    case NcclKind::all_gather:
      for (size_t from = 0; from < ranks; ++from) {
        for (const auto& call : meeting.calls) {
          move(meeting.calls[from]->from, static_cast<std::byte*>(call->to) + from * bytes, bytes);
        }
      }
      break;
    case NcclKind::broadcast:
      for (const auto& call : meeting.calls) {
        move(meeting.calls[static_cast<size_t>(first.other)]->from, call->to, bytes);
      }
      break;
    case NcclKind::send:
    case NcclKind::receive: {
      const auto receiver = std::find_if(meeting.calls.begin() + clique.ranks, meeting.calls.end(),
                                         [](const auto& c) { return c.has_value(); });
      move(first.from, (*receiver)->to, bytes);
      break;
    }
  }
  return {};
}

}  // namespace quintet::gpu_emulator
