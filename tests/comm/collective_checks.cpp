#include "collective_checks.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <numeric>
#include <vector>

#include "lib/base/random.h"

namespace quintet::comm {
namespace {

using Counts = std::vector<int64_t>;

struct Data {
  DType dtype;
  std::vector<std::byte> bytes;
  int64_t elements() const { return static_cast<int64_t>(bytes.size()) / size_of(dtype); }
  Tensor tensor() { return {bytes.data(), dtype, {elements()}}; }
  // An empty tensor has a place, too.
  Tensor slice(int64_t begin, int64_t count) { return {bytes.data() + begin * size_of(dtype), dtype, {count}}; }
  bool operator==(const Data&) const = default;
};

Data blank(DType dtype, int64_t elements) {
  return {dtype, std::vector<std::byte>(static_cast<size_t>(elements * size_of(dtype)), std::byte{0x5a})};
}

// Values whose sums depend on the order: magnitudes from 2^-20 to 2^20, both signs; integers use all their bits.
Data values(const CollectiveCase& c, int64_t elements, int64_t world_rank, uint64_t salt) {
  Data data = blank(c.dtype, elements);
  visit_dtype(c.dtype, [&]<typename T>() {
    auto* out = reinterpret_cast<T*>(data.bytes.data());
    for (int64_t i = 0; i < elements; ++i) {
      const PhiloxBlock r = philox(c.seed, static_cast<uint64_t>(i), static_cast<uint64_t>(world_rank) * 64 + salt);
      const uint64_t bits = uint64_t{r[0]} << 32 | r[1];
      if constexpr (std::is_integral_v<T>) {
        out[i] = static_cast<T>(bits);
      } else {
        const double magnitude = std::ldexp(1.0 + r[1] * 0x1p-32, static_cast<int>(r[2] % 41) - 20);
        const double value = r[3] % 2 == 0 ? magnitude : -magnitude;
        if constexpr (std::is_same_v<T, bfloat16>) {
          out[i] = bfloat16(static_cast<float>(value));
        } else {
          out[i] = static_cast<T>(value);
        }
      }
    }
  });
  return data;
}

std::vector<Data> values_of_members(const ProcessGroup& group, const CollectiveCase& c, uint64_t salt) {
  std::vector<Data> all;
  for (const int64_t member : group.members()) all.push_back(values(c, c.elements, member, salt));
  return all;
}

// The left fold over members, element by element, as plainly as can be.
Data reduced(const std::vector<Data>& all, Reduction reduction) {
  Data result = all[0];
  visit_dtype(result.dtype, [&]<typename T>() {
    auto* out = reinterpret_cast<T*>(result.bytes.data());
    for (int64_t i = 0; i < result.elements(); ++i) {
      const auto at = [&](size_t member) { return reinterpret_cast<const T*>(all[member].bytes.data())[i]; };
      if constexpr (std::is_same_v<T, bfloat16>) {
        auto sum = static_cast<float>(at(0));
        for (size_t m = 1; m < all.size(); ++m) {
          const auto next = static_cast<float>(at(m));
          sum = reduction == Reduction::sum ? sum + next : std::max(sum, next);
        }
        out[i] = bfloat16(sum);
      } else if constexpr (std::is_integral_v<T>) {
        auto sum = static_cast<uint64_t>(at(0));
        T largest = at(0);
        for (size_t m = 1; m < all.size(); ++m) {
          sum += static_cast<uint64_t>(at(m));
          largest = std::max(largest, at(m));
        }
        out[i] = reduction == Reduction::sum ? static_cast<T>(sum) : largest;
      } else {
        T sum = at(0);
        for (size_t m = 1; m < all.size(); ++m) sum = reduction == Reduction::sum ? sum + at(m) : std::max(sum, at(m));
        out[i] = sum;
      }
    }
  });
  return result;
}

// Uneven counts, zeros among them, that sum to `elements`; the same on every rank.
Counts uneven_counts(int64_t elements, int64_t members, uint64_t seed, uint64_t salt) {
  std::vector<int64_t> cuts = {0, elements};
  for (int64_t i = 1; i < members; ++i) {
    const uint32_t draw = philox(seed, static_cast<uint64_t>(i), 1000 + salt)[0];
    cuts.push_back(draw % 4 == 0 ? 0 : static_cast<int64_t>(draw / 4 % static_cast<uint64_t>(elements + 1)));
  }
  std::sort(cuts.begin(), cuts.end());
  Counts counts;
  for (size_t i = 1; i < cuts.size(); ++i) counts.push_back(cuts[i] - cuts[i - 1]);
  return counts;
}

int64_t begin_of(const Counts& counts, int64_t member) {
  return std::accumulate(counts.begin(), counts.begin() + member, int64_t{0});
}

Data part(const Data& whole, int64_t begin, int64_t count) {
  const auto from = whole.bytes.begin() + begin * size_of(whole.dtype);
  return {whole.dtype, {from, from + count * size_of(whole.dtype)}};
}

void put(Data& whole, int64_t begin, const Data& piece) {
  std::copy(piece.bytes.begin(), piece.bytes.end(), whole.bytes.begin() + begin * size_of(whole.dtype));
}

void require_equal(const Data& got, const Data& want, const char* what, const ProcessGroup& group,
                   const CollectiveCase& c) {
  QUINTET_CHECK(got == want, "{} of {} {} among {} differs, seed {}", what, c.elements, name_of(c.dtype), group.size(),
                c.seed);
}

// Holds what an operation booked against the closed form.
class Booked {
 public:
  Booked(Communicator& communicator, Axis axis)
      : communicator_(communicator), before_(communicator.traffic()), axis_(axis) {}
  void require(int64_t bytes, const ProcessGroup& group, const char* what) {
    PerAxis<int64_t> want_bytes = before_.bytes, want_operations = before_.operations;
    if (group.size() > 1) {
      want_bytes[axis_] += bytes;
      want_operations[axis_] += 1;
    }
    const Traffic& now = communicator_.traffic();
    QUINTET_CHECK(now.bytes == want_bytes && now.operations == want_operations, "{} booked {} bytes, expected {}", what,
                  now.bytes[axis_] - before_.bytes[axis_], bytes);
    before_ = now;
  }

 private:
  Communicator& communicator_;
  Traffic before_;
  Axis axis_;
};

}  // namespace

void check_all_reduce(Communicator& communicator, ProcessGroup& group, Axis axis, const CollectiveCase& c) {
  const std::vector<Data> all = values_of_members(group, c, 1);
  const int64_t n = group.size(), rank = group.rank();
  for (const Reduction reduction : {Reduction::sum, Reduction::max}) {
    Data data = all[static_cast<size_t>(rank)];
    Booked booked(communicator, axis);
    group.all_reduce(data.tensor(), reduction, "test").wait();
    const int64_t own = c.elements / n + (rank < c.elements % n ? 1 : 0);
    booked.require((c.elements - own + own * (n - 1)) * size_of(c.dtype), group, "all-reduce");
    require_equal(data, reduced(all, reduction), reduction == Reduction::sum ? "all-reduce" : "all-reduce (max)", group,
                  c);
  }
}

void check_reduce_scatter(Communicator& communicator, ProcessGroup& group, Axis axis, const CollectiveCase& c) {
  const std::vector<Data> all = values_of_members(group, c, 2);
  const Data sum = reduced(all, Reduction::sum);
  const auto rank = static_cast<size_t>(group.rank());
  const std::vector<Counts> choices = {group.even_counts(c.elements),
                                       uneven_counts(c.elements, group.size(), c.seed, 2)};
  for (const Counts& counts : choices) {
    const int64_t begin = begin_of(counts, group.rank()), own = counts[rank];
    Data input = all[rank], output = blank(c.dtype, own);
    Booked booked(communicator, axis);
    group.reduce_scatter(input.tensor(), counts, output.tensor(), "test").wait();
    booked.require((c.elements - own) * size_of(c.dtype), group, "reduce-scatter");
    require_equal(output, part(sum, begin, own), "reduce-scatter", group, c);
    require_equal(input, all[rank], "input of a reduce-scatter", group, c);

    Data in_place = all[rank], expected = all[rank];
    put(expected, begin, part(sum, begin, own));
    group.reduce_scatter(in_place.tensor(), counts, in_place.slice(begin, own), "test").wait();
    require_equal(in_place, expected, "reduce-scatter in place", group, c);
  }
}

void check_all_gather(Communicator& communicator, ProcessGroup& group, Axis axis, const CollectiveCase& c) {
  const std::vector<Data> all = values_of_members(group, c, 3);
  const std::vector<Counts> choices = {group.even_counts(c.elements),
                                       uneven_counts(c.elements, group.size(), c.seed, 3)};
  for (const Counts& counts : choices) {
    Data expected = blank(c.dtype, c.elements);
    for (int64_t member = 0; member < group.size(); ++member) {
      const int64_t begin = begin_of(counts, member);
      put(expected, begin, part(all[static_cast<size_t>(member)], begin, counts[static_cast<size_t>(member)]));
    }
    const int64_t begin = begin_of(counts, group.rank()), own = counts[static_cast<size_t>(group.rank())];
    Data input = part(all[static_cast<size_t>(group.rank())], begin, own), output = blank(c.dtype, c.elements);
    Booked booked(communicator, axis);
    group.all_gather(input.tensor(), counts, output.tensor(), "test").wait();
    booked.require(own * (group.size() - 1) * size_of(c.dtype), group, "all-gather");
    require_equal(output, expected, "all-gather", group, c);

    Data in_place = blank(c.dtype, c.elements);
    put(in_place, begin, input);
    group.all_gather(in_place.slice(begin, own), counts, in_place.tensor(), "test").wait();
    require_equal(in_place, expected, "all-gather in place", group, c);
  }
}

void check_broadcast(Communicator& communicator, ProcessGroup& group, Axis axis, const CollectiveCase& c) {
  for (const int64_t root : {int64_t{0}, static_cast<int64_t>(c.seed % static_cast<uint64_t>(group.size()))}) {
    const Data expected = values(c, c.elements, group.members()[static_cast<size_t>(root)], 4);
    Data data = group.rank() == root ? expected : blank(c.dtype, c.elements);
    Booked booked(communicator, axis);
    group.broadcast(data.tensor(), root, "test").wait();
    booked.require(group.rank() == root ? c.elements * size_of(c.dtype) * (group.size() - 1) : 0, group, "broadcast");
    require_equal(data, expected, "broadcast", group, c);
  }
}

void check_all_to_all(Communicator& communicator, ProcessGroup& group, Axis axis, const CollectiveCase& c) {
  const int64_t rank = group.rank();
  std::vector<Counts> sends;  // of each member
  for (int64_t member = 0; member < group.size(); ++member)
    sends.push_back(uneven_counts(c.elements, group.size(), c.seed, 5 + static_cast<uint64_t>(member)));
  Counts receives;
  Data expected = {c.dtype, {}};
  for (int64_t member = 0; member < group.size(); ++member) {
    const Counts& counts = sends[static_cast<size_t>(member)];
    receives.push_back(counts[static_cast<size_t>(rank)]);
    const Data from = values(c, c.elements, group.members()[static_cast<size_t>(member)], 5);
    const Data piece = part(from, begin_of(counts, rank), receives.back());
    expected.bytes.insert(expected.bytes.end(), piece.bytes.begin(), piece.bytes.end());
  }
  Data input = values(c, c.elements, group.members()[static_cast<size_t>(rank)], 5);
  Data output = blank(c.dtype, expected.elements());
  const Counts& own_sends = sends[static_cast<size_t>(rank)];
  Booked booked(communicator, axis);
  group.all_to_all(input.tensor(), own_sends, output.tensor(), receives, "test").wait();
  booked.require((c.elements - own_sends[static_cast<size_t>(rank)]) * size_of(c.dtype), group, "all-to-all");
  require_equal(output, expected, "all-to-all", group, c);
}

void check_ring(Communicator& communicator, ProcessGroup& group, Axis axis, const CollectiveCase& c) {
  if (group.size() == 1) return;
  const int64_t next = (group.rank() + 1) % group.size(), previous = (group.rank() + group.size() - 1) % group.size();
  const int64_t previous_world = group.members()[static_cast<size_t>(previous)];
  const int64_t own_world = group.members()[static_cast<size_t>(group.rank())];
  Data first = values(c, c.elements, own_world, 6), second = values(c, c.elements, own_world, 7);
  Data first_in = blank(c.dtype, c.elements), second_in = blank(c.dtype, c.elements);
  Booked booked(communicator, axis);
  Handle sends[2], receives[2];
  sends[0] = group.send(first.tensor(), next, "first");
  booked.require(c.elements * size_of(c.dtype), group, "send");
  sends[1] = group.send(second.tensor(), next, "second");
  booked.require(c.elements * size_of(c.dtype), group, "send");
  receives[0] = group.receive(first_in.tensor(), previous, "first");
  booked.require(0, group, "receive");
  receives[1] = group.receive(second_in.tensor(), previous, "second");
  for (Handle* handle : {&receives[1], &sends[1], &receives[0], &sends[0]}) handle->wait();
  require_equal(first_in, values(c, c.elements, previous_world, 6), "first message", group, c);
  require_equal(second_in, values(c, c.elements, previous_world, 7), "second message", group, c);
}

void check_channels(ProcessGroup& group, const CollectiveCase& c) {
  if (group.size() == 1) return;
  const int64_t next = (group.rank() + 1) % group.size(), previous = (group.rank() + group.size() - 1) % group.size();
  const auto message_of = [&](int64_t member, uint64_t salt) {
    return values(c, c.elements, group.members()[static_cast<size_t>(member)], salt);
  };
  // Two messages of each channel, sent channel by channel and received the other way round.
  constexpr std::array<uint16_t, 3> kChannels = {0, 1, 300};
  std::vector<Data> sent, received;
  for (uint64_t salt = 10; salt < 16; ++salt) {
    sent.push_back(message_of(group.rank(), salt));
    received.push_back(blank(c.dtype, c.elements));
  }
  std::vector<Handle> handles;
  for (size_t i = 0; i < sent.size(); ++i)
    handles.push_back(group.send(sent[i].tensor(), next, "a message of a channel", kChannels[i / 2]));
  for (size_t channel = kChannels.size(); channel-- > 0;)
    for (const size_t i : {2 * channel, 2 * channel + 1})
      handles.push_back(group.receive(received[i].tensor(), previous, "a message of a channel", kChannels[channel]));
  for (Handle& handle : handles) handle.wait();
  for (size_t i = 0; i < received.size(); ++i)
    require_equal(received[i], message_of(previous, 10 + i), "a message of a channel", group, c);
}

void check_outstanding(const GroupOf& group_of, const CollectiveCase& c) {
  ProcessGroup& counted = group_of(Axis::dp);
  ProcessGroup& uncounted = group_of(std::nullopt);
  constexpr int kOperations = 6;
  std::vector<Data> data, expected;
  for (uint64_t i = 0; i < kOperations; ++i) {
    const CollectiveCase varied = {c.dtype, c.elements + static_cast<int64_t>(i) % 3, c.seed + i};
    const std::vector<Data> all = values_of_members(counted, varied, 8);
    data.push_back(all[static_cast<size_t>(counted.rank())]);
    expected.push_back(i % 2 == 0 ? reduced(all, Reduction::sum) : all[i % all.size()]);
  }
  std::vector<Handle> handles;
  for (uint64_t i = 0; i < kOperations; ++i) {
    ProcessGroup& group = i % 3 == 1 ? uncounted : counted;
    const auto root = static_cast<int64_t>(i) % group.size();
    handles.push_back(i % 2 == 0 ? group.all_reduce(data[i].tensor(), Reduction::sum, "outstanding")
                                 : group.broadcast(data[i].tensor(), root, "outstanding"));
  }
  for (size_t i = handles.size(); i-- > 0;) handles[i].wait();
  for (size_t i = 0; i < handles.size(); ++i) {
    QUINTET_CHECK(handles[i].done());
    require_equal(data[i], expected[i], "one of several operations", counted, c);
  }
}

void check_collectives(Communicator& communicator, const GroupOf& group_of, const CollectiveCase& c) {
  ProcessGroup& group = group_of(Axis::ep);
  check_all_reduce(communicator, group, Axis::ep, c);
  check_reduce_scatter(communicator, group, Axis::ep, c);
  check_all_gather(communicator, group, Axis::ep, c);
  check_broadcast(communicator, group, Axis::ep, c);
  check_all_to_all(communicator, group, Axis::ep, c);
  check_ring(communicator, group, Axis::ep, c);
  check_channels(group, c);
  check_outstanding(group_of, c);
  group.barrier();
}

void check_collectives(Communicator& communicator, AxisSet axes, const CollectiveCase& c) {
  const auto group_of = [&](std::optional<Axis> booked) -> ProcessGroup& { return communicator.group(axes, booked); };
  check_collectives(communicator, group_of, c);
}

namespace {

// A group's sum, and a message each way between its first and its last member.
struct Mixed {
  Mixed(ProcessGroup& shared, const CollectiveCase& c, uint64_t salt) : group(shared) {
    const std::vector<Data> all = values_of_members(group, c, salt);
    sum = own = all[static_cast<size_t>(group.rank())];
    expected_sum = reduced(all, Reduction::sum);
    const bool first = group.rank() == 0, last = group.rank() == group.size() - 1;
    if (first != last) {
      peer = first ? group.size() - 1 : 0;
      received = blank(c.dtype, c.elements);
      expected_received = all[static_cast<size_t>(peer)];
    }
  }
  void post_sum() { handles.push_back(group.all_reduce(sum.tensor(), Reduction::sum, "a sum among others")); }
  void post_messages() {
    if (peer < 0) return;
    handles.push_back(group.receive(received.tensor(), peer, "a message among others"));
    handles.push_back(group.send(own.tensor(), peer, "a message among others"));
  }
  void require(const CollectiveCase& c) {
    for (Handle& handle : handles) handle.wait();
    require_equal(sum, expected_sum, "one of several groups' sums", group, c);
    if (peer >= 0) require_equal(received, expected_received, "one of several groups' messages", group, c);
  }

  ProcessGroup& group;
  int64_t peer = -1;
  Data own, sum, received, expected_sum, expected_received;
  std::vector<Handle> handles = {};
};

}  // namespace

void check_sub_groups(Communicator& communicator, Axis axis, int64_t block_size, const CollectiveCase& c) {
  const Mesh& mesh = communicator.mesh();
  const int64_t place = mesh.coordinate_of(communicator.placement().rank)[axis];
  const bool at_end = place == 0 || place == mesh.size(axis) - 1;
  const auto block = [&](std::optional<Axis> booked) -> ProcessGroup& {
    return communicator.block(axis, block_size, booked);
  };
  const auto ends = [&](std::optional<Axis> booked) -> ProcessGroup& { return communicator.ends(axis, booked); };
  check_collectives(communicator, block, c);
  if (at_end) check_collectives(communicator, ends, c);

  std::vector<Mixed> mixed;
  mixed.reserve(3);
  mixed.emplace_back(communicator.group({axis}, std::nullopt), c, 11);
  mixed.emplace_back(block(std::nullopt), c, 12);
  if (at_end) mixed.emplace_back(ends(std::nullopt), c, 13);
  std::vector<size_t> order(mixed.size());
  std::iota(order.begin(), order.end(), size_t{0});
  if (place % 2 == 1) std::reverse(order.begin(), order.end());
  for (const size_t i : order) mixed[i].post_sum();
  for (const size_t i : order) mixed[i].post_messages();
  for (Mixed& each : mixed) each.require(c);
  communicator.world().barrier();
}

}  // namespace quintet::comm
