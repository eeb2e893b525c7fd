#include "lib/comm/message_group.h"

namespace quintet::comm {
namespace {

std::span<std::byte> bytes_of(const Tensor& tensor) {
  return {static_cast<std::byte*>(tensor.data()), static_cast<size_t>(tensor.bytes())};
}

}  // namespace

MessageGroup::MessageGroup(Communicator& communicator, Transport& transport, uint8_t lane, std::string name,
                           std::vector<int64_t> members, int64_t rank, std::optional<Axis> booked_under,
                           Traffic& traffic)
    : ProcessGroup(std::move(members), rank, booked_under, traffic),
      communicator_(communicator),
      transport_(transport),
      lane_(lane),
      name_(std::move(name)) {}

OperationInfo MessageGroup::info(std::string_view kind, std::string_view what, const Tensor& operand,
                                 std::optional<int64_t> peer) const {
  return {.communicator = &communicator_,
          .transport = &transport_,
          .kind = kind,
          .what = std::string(what),
          .bytes = operand.bytes(),
          .group_name = name_,
          .lane = lane_,
          .strand = transport_.memory().strand(operand.data(), lane_, peer)};
}

ProcessGroup* MessageGroup::twin_for(const Tensor& tensor) {
  DeviceGroups* groups = communicator_.device_groups_.get();
  if (groups == nullptr || !transport_.memory().on_device(tensor.data())) return nullptr;
  return &groups->twin_of(*this, {.communicator = communicator_,
                                  .transport = transport_,
                                  .lane = lane_,
                                  .generation = communicator_.generation_,
                                  .name = name_});
}

void MessageGroup::copy(const Tensor& from, const Tensor& to) {
  if (from.data() == to.data()) return;
  const auto strand = transport_.memory().strand(to.data(), lane_);
  strand->copy(bytes_of(from), bytes_of(to).data());
  strand->join();
}

Handle MessageGroup::post(OperationInfo info, Exchange exchange) {
  return communicator_.post(std::make_shared<ExchangeOperation>(std::move(info), std::move(exchange)));
}

Handle MessageGroup::do_all_reduce(Tensor tensor, Reduction reduction, std::string_view what) {
  if (size() == 1) return {};
  if (ProcessGroup* twin = twin_for(tensor)) return twin->all_reduce(tensor, reduction, what);
  return communicator_.post(
      std::make_shared<AllReduceOperation>(info("all-reduce", what, tensor), *this, tensor, reduction));
}

Handle MessageGroup::do_reduce_scatter(Tensor input, std::span<const int64_t> counts, Tensor output,
                                       std::string_view what) {
  if (size() == 1) {
    copy(input, output);
    return {};
  }
  if (ProcessGroup* twin = twin_for(input)) return twin->reduce_scatter(input, counts, output, what);
  return communicator_.post(
      std::make_shared<ReduceScatterOperation>(info("reduce-scatter", what, input), *this, input, counts, output));
}

Handle MessageGroup::do_all_gather(Tensor input, std::span<const int64_t> counts, Tensor output,
                                   std::string_view what) {
  if (size() == 1) {
    copy(input, output);
    return {};
  }
  if (ProcessGroup* twin = twin_for(output)) return twin->all_gather(input, counts, output, what);
  OperationInfo gather = info("all-gather", what, output);
  const auto places = pieces_of(output, counts);
  const Tag tag = transport_.next_tag(lane_);
  Exchange exchange(gather.strand);
  for_each_peer(*this, [&](int64_t member, int64_t peer) {
    exchange.send(transport_, peer, tag, bytes_of(input));
    exchange.receive(transport_, peer, tag, places[static_cast<size_t>(member)]);
  });
  gather.strand->copy(bytes_of(input), places[static_cast<size_t>(rank())].data());
  return post(std::move(gather), std::move(exchange));
}

Handle MessageGroup::do_broadcast(Tensor tensor, int64_t root, std::string_view what) {
  if (size() == 1) return {};
  if (ProcessGroup* twin = twin_for(tensor)) return twin->broadcast(tensor, root, what);
  OperationInfo broadcast = info("broadcast", what, tensor);
  const Tag tag = transport_.next_tag(lane_);
  Exchange exchange(broadcast.strand);
  if (rank() == root) {
    for_each_peer(*this, [&](int64_t, int64_t peer) { exchange.send(transport_, peer, tag, bytes_of(tensor)); });
  } else {
    exchange.receive(transport_, members()[static_cast<size_t>(root)], tag, bytes_of(tensor));
  }
  return post(std::move(broadcast), std::move(exchange));
}

Handle MessageGroup::do_all_to_all(Tensor input, std::span<const int64_t> send_counts, Tensor output,
                                   std::span<const int64_t> receive_counts, std::string_view what) {
  if (size() == 1) {
    copy(input, output);
    return {};
  }
  if (ProcessGroup* twin = twin_for(input)) return twin->all_to_all(input, send_counts, output, receive_counts, what);
  OperationInfo exchanged = info("all-to-all", what, input);
  const auto outgoing = pieces_of(input, send_counts), incoming = pieces_of(output, receive_counts);
  const Tag tag = transport_.next_tag(lane_);
  Exchange exchange(exchanged.strand);
  for_each_peer(*this, [&](int64_t member, int64_t peer) {
    exchange.send(transport_, peer, tag, outgoing[static_cast<size_t>(member)]);
    exchange.receive(transport_, peer, tag, incoming[static_cast<size_t>(member)]);
  });
  const auto own = static_cast<size_t>(rank());
  exchanged.strand->copy(outgoing[own], incoming[own].data());
  return post(std::move(exchanged), std::move(exchange));
}

Handle MessageGroup::do_send(Tensor tensor, int64_t to, std::string_view what, uint16_t channel) {
  if (ProcessGroup* twin = twin_for(tensor)) return twin->send(tensor, to, what, channel);
  const int64_t peer = members()[static_cast<size_t>(to)];
  OperationInfo send = info("send", what, tensor, peer);
  Exchange exchange(send.strand);
  exchange.send(transport_, peer, transport_.next_send_tag(lane_, peer, channel), bytes_of(tensor));
  return post(std::move(send), std::move(exchange));
}

Handle MessageGroup::do_receive(Tensor tensor, int64_t from, std::string_view what, uint16_t channel) {
  if (ProcessGroup* twin = twin_for(tensor)) return twin->receive(tensor, from, what, channel);
  const int64_t peer = members()[static_cast<size_t>(from)];
  OperationInfo receive = info("receive", what, tensor, peer);
  Exchange exchange(receive.strand);
  exchange.receive(transport_, peer, transport_.next_receive_tag(lane_, peer, channel), bytes_of(tensor));
  return post(std::move(receive), std::move(exchange));
}

}  // namespace quintet::comm
