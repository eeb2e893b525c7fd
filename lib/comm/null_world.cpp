#include "lib/comm/null_world.h"

#include <algorithm>
#include <map>
#include <vector>

namespace quintet::comm {
namespace {

class Taken : public Outgoing {
 public:
  bool done() override { return true; }
};

class Arrived : public Incoming {
 public:
  explicit Arrived(std::vector<std::byte> data = {}) : data_(std::move(data)) {}
  bool ready() override { return true; }
  std::span<const std::byte> open() override { return data_; }
  void close() override {}

 private:
  std::vector<std::byte> data_;
};

class NullTransport : public Transport {
 public:
  std::unique_ptr<Outgoing> send(int64_t peer, Tag, std::span<const std::byte> data, Strand&) override {
    sent_[peer].assign(data.begin(), data.end());
    moved();
    return std::make_unique<Taken>();
  }
  std::unique_ptr<Incoming> receive_into(int64_t peer, Tag, std::span<std::byte> destination, Strand&) override {
    const std::vector<std::byte> data = from(peer, destination.size());
    std::copy(data.begin(), data.end(), destination.begin());
    moved();
    return std::make_unique<Arrived>();
  }
  std::unique_ptr<Incoming> receive(int64_t peer, Tag, int64_t bytes, Strand&) override {
    moved();
    return std::make_unique<Arrived>(from(peer, static_cast<size_t>(bytes)));
  }
  void progress() override {}
  uint64_t events() override { return 0; }
  void nap(uint64_t, int64_t) override {}

 private:
  std::vector<std::byte> from(int64_t peer, size_t bytes) const {
    const auto sent = sent_.find(peer);
    return sent != sent_.end() && sent->second.size() == bytes ? sent->second : std::vector<std::byte>(bytes);
  }
  std::map<int64_t, std::vector<std::byte>> sent_;  // last, by peer
};

class NullGroup : public ProcessGroup {
 public:
  NullGroup(const ProcessGroup& group, Traffic& uncounted)
      : ProcessGroup({group.members().begin(), group.members().end()}, group.rank(), std::nullopt, uncounted) {}

 protected:
  Handle do_all_reduce(Tensor, Reduction, std::string_view) override { return {}; }
  Handle do_reduce_scatter(Tensor, std::span<const int64_t>, Tensor, std::string_view) override { return {}; }
  Handle do_all_gather(Tensor, std::span<const int64_t>, Tensor, std::string_view) override { return {}; }
  Handle do_broadcast(Tensor, int64_t, std::string_view) override { return {}; }
  Handle do_all_to_all(Tensor, std::span<const int64_t>, Tensor, std::span<const int64_t>, std::string_view) override {
    return {};
  }
  Handle do_send(Tensor, int64_t, std::string_view, uint16_t) override { return {}; }
  Handle do_receive(Tensor, int64_t, std::string_view, uint16_t) override { return {}; }
};

class NullGroups : public DeviceGroups {
 public:
  ProcessGroup& twin_of(const ProcessGroup& group, const GroupPlace& place) override {
    std::unique_ptr<ProcessGroup>& twin = twins_[place.lane];
    if (!twin) twin = std::make_unique<NullGroup>(group, uncounted_);
    return *twin;
  }

 private:
  Traffic uncounted_;
  std::map<uint8_t, std::unique_ptr<ProcessGroup>> twins_;
};

}  // namespace

std::unique_ptr<Transport> make_null_transport() { return std::make_unique<NullTransport>(); }
std::unique_ptr<DeviceGroups> make_null_groups() { return std::make_unique<NullGroups>(); }

}  // namespace quintet::comm
