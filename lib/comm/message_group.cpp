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

OperationInfo MessageGroup::info(std::string_view kind, std::string_view what, int64_t bytes) const {
  return {&communicator_, &transport_, kind, std::string(what), bytes, name_, lane_};
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

Handle MessageGroup::post(OperationInfo info, Exchange exchange) {
  return communicator_.post(std::make_shared<ExchangeOperation>(std::move(info), std::move(exchange)));
}

Handle MessageGroup::do_all_reduce(Tensor tensor, Reduction reduction, std::string_view what) {
  if (size() == 1) return {};
  if (ProcessGroup* twin = twin_for(tensor)) return twin->all_reduce(tensor, reduction, what);
  return communicator_.post(
      std::make_shared<AllReduceOperation>(info("all-reduce", what, tensor.bytes()), *this, tensor, reduction));
}

Handle MessageGroup::do_reduce_scatter(Tensor input, std::span<const int64_t> counts, Tensor output,
                                       std::string_view what) {
  if (size() == 1) {
    transport_.memory().copy(bytes_of(input), bytes_of(output).data());
    return {};
  }
  if (ProcessGroup* twin = twin_for(input)) return twin->reduce_scatter(input, counts, output, what);
  return communicator_.post(std::make_shared<ReduceScatterOperation>(info("reduce-scatter", what, input.bytes()), *this,
                                                                     input, counts, output));
}

Handle MessageGroup::do_all_gather(Tensor input, std::span<const int64_t> counts, Tensor output,
                                   std::string_view what) {
  if (ProcessGroup* twin = size() > 1 ? twin_for(output) : nullptr)
    return twin->all_gather(input, counts, output, what);
  const auto places = pieces_of(output, counts);
  transport_.memory().copy(bytes_of(input), places[static_cast<size_t>(rank())].data());
  if (size() == 1) return {};
  const Tag tag = transport_.next_tag(lane_);
  Exchange exchange;
  for_each_peer(*this, [&](int64_t member, int64_t peer) {
    exchange.send(transport_, peer, tag, bytes_of(input));
    exchange.receive(transport_, peer, tag, places[static_cast<size_t>(member)]);
  });
  return post(info("all-gather", what, output.bytes()), std::move(exchange));
}

Handle MessageGroup::do_broadcast(Tensor tensor, int64_t root, std::string_view what) {
  if (size() == 1) return {};
  if (ProcessGroup* twin = twin_for(tensor)) return twin->broadcast(tensor, root, what);
  const Tag tag = transport_.next_tag(lane_);
  Exchange exchange;
  if (rank() == root) {
    for_each_peer(*this, [&](int64_t, int64_t peer) { exchange.send(transport_, peer, tag, bytes_of(tensor)); });
  } else {
    exchange.receive(transport_, members()[static_cast<size_t>(root)], tag, bytes_of(tensor));
  }
  return post(info("broadcast", what, tensor.bytes()), std::move(exchange));
}

Handle MessageGroup::do_all_to_all(Tensor input, std::span<const int64_t> send_counts, Tensor output,
                                   std::span<const int64_t> receive_counts, std::string_view what) {
  if (ProcessGroup* twin = size() > 1 ? twin_for(input) : nullptr)
    return twin->all_to_all(input, send_counts, output, receive_counts, what);
  const auto outgoing = pieces_of(input, send_counts), incoming = pieces_of(output, receive_counts);
  transport_.memory().copy(outgoing[static_cast<size_t>(rank())], incoming[static_cast<size_t>(rank())].data());
  if (size() == 1) return {};
  const Tag tag = transport_.next_tag(lane_);
  Exchange exchange;
  for_each_peer(*this, [&](int64_t member, int64_t peer) {
    exchange.send(transport_, peer, tag, outgoing[static_cast<size_t>(member)]);
    exchange.receive(transport_, peer, tag, incoming[static_cast<size_t>(member)]);
  });
  return post(info("all-to-all", what, input.bytes()), std::move(exchange));
}

Handle MessageGroup::do_send(Tensor tensor, int64_t to, std::string_view what) {
  if (ProcessGroup* twin = twin_for(tensor)) return twin->send(tensor, to, what);
  const int64_t peer = members()[static_cast<size_t>(to)];
  Exchange exchange;
  exchange.send(transport_, peer, transport_.next_send_tag(lane_, peer), bytes_of(tensor));
  return post(info("send", what, tensor.bytes()), std::move(exchange));
}

Handle MessageGroup::do_receive(Tensor tensor, int64_t from, std::string_view what) {
  if (ProcessGroup* twin = twin_for(tensor)) return twin->receive(tensor, from, what);
  const int64_t peer = members()[static_cast<size_t>(from)];
  Exchange exchange;
  exchange.receive(transport_, peer, transport_.next_receive_tag(lane_, peer), bytes_of(tensor));
  return post(info("receive", what, tensor.bytes()), std::move(exchange));
}

}  // namespace quintet::comm
