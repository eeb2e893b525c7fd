#include "lib/comm/message_operations.h"

#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include "lib/base/integers.h"

namespace quintet::comm {
namespace {

constexpr int64_t kTinyBytes = 64 * 1024;  // all-reduces up to this size do not split their tensor
constexpr int64_t kDirectMembers = 16;     // larger groups would send too many small messages

// "rank 1 (dp 1), rank 2 (dp 2) and 6 more".
std::string names_of(const Communicator& communicator, const std::vector<int64_t>& ranks) {
  constexpr size_t kNamed = 8;
  std::string names;
  for (size_t i = 0; i < std::min(ranks.size(), kNamed); ++i)
    names += (i == 0 ? "" : ", ") + communicator.label_of(ranks[i]);
  if (ranks.size() > kNamed) names += fmt::format(" and {} more", ranks.size() - kNamed);
  return names;
}

std::string describe_operation(const OperationInfo& info, const std::vector<int64_t>& missing,
                               const std::vector<int64_t>& not_taken) {
  std::string text = fmt::format("{} of {} ({} bytes) over {}", info.kind, info.what, info.bytes, info.group_name);
  if (!missing.empty()) {
    text += "; waits for " + names_of(*info.communicator, missing);
  } else if (!not_taken.empty()) {
    text += fmt::format("; waits until {} took what was sent", names_of(*info.communicator, not_taken));
  }
  return text;
}

}  // namespace

std::vector<std::span<std::byte>> pieces_of(const Tensor& tensor, std::span<const int64_t> counts) {
  std::vector<std::span<std::byte>> pieces;
  auto* data = static_cast<std::byte*>(tensor.data());
  for (const int64_t count : counts) {
    const int64_t bytes = count * size_of(tensor.dtype());
    pieces.emplace_back(data, static_cast<size_t>(bytes));
    if (bytes > 0) data += bytes;
  }
  return pieces;
}

void Exchange::send(Transport& transport, int64_t peer, Tag tag, std::span<const std::byte> data) {
  if (!data.empty()) outgoing_.entries.push_back({peer, transport.send(peer, tag, data, *strand_)});
}

void Exchange::receive(Transport& transport, int64_t peer, Tag tag, std::span<std::byte> destination) {
  if (!destination.empty())
    incoming_.entries.push_back({peer, transport.receive_into(peer, tag, destination, *strand_)});
}

bool Exchange::received() {
  size_t& first = incoming_.first_pending;
  while (first < incoming_.entries.size() && incoming_.entries[first].message->ready()) ++first;
  return first == incoming_.entries.size();
}

bool Exchange::sent() {
  size_t& first = outgoing_.first_pending;
  while (first < outgoing_.entries.size() && outgoing_.entries[first].message->done()) ++first;
  return first == outgoing_.entries.size();
}

void Exchange::withdraw() {
  outgoing_ = {};
  incoming_ = {};
}

std::vector<int64_t> Exchange::missing() const {
  std::vector<int64_t> peers;
  for (const auto& entry : incoming_.entries)
    if (!entry.message->ready()) peers.push_back(entry.peer);
  return peers;
}

std::vector<int64_t> Exchange::not_taken() const {
  std::vector<int64_t> peers;
  for (const auto& entry : outgoing_.entries)
    if (!entry.message->done()) peers.push_back(entry.peer);
  return peers;
}

Fold::Fold(const OperationInfo& info, const ProcessGroup& group, Tag tag, DType dtype, Reduction reduction,
           std::span<const std::byte> own, std::byte* output)
    : strand_(info.strand), dtype_(dtype), reduction_(reduction), own_(own), output_(output) {
  if (own.empty()) return;
  members_.assign(group.members().begin(), group.members().end());
  incoming_.resize(members_.size());
  pieces_.resize(members_.size());
  for_each_peer(group, [&](int64_t member, int64_t peer) {
    incoming_[static_cast<size_t>(member)] =
        info.transport->receive(peer, tag, static_cast<int64_t>(own.size()), *strand_);
  });
}

bool Fold::done() {
  while (offset_ < static_cast<int64_t>(own_.size())) {
    for (; first_pending_ < incoming_.size(); ++first_pending_)
      if (incoming_[first_pending_] && !incoming_[first_pending_]->ready()) return false;
    first_pending_ = 0;
    const int64_t bytes = open_pieces();
    for (size_t member = 0; member < incoming_.size(); ++member)
      if (!incoming_[member]) pieces_[member] = own_.data() + offset_;
    strand_->fold(dtype_, reduction_, pieces_, output_ + offset_, div_exact(bytes, size_of(dtype_)));
    for (const auto& incoming : incoming_)
      if (incoming) incoming->close();
    offset_ += bytes;
  }
  return true;
}

int64_t Fold::open_pieces() {
  int64_t bytes = static_cast<int64_t>(own_.size()) - offset_;
  try {
    for (size_t member = 0; member < incoming_.size(); ++member) {
      if (!incoming_[member]) continue;
      const std::span<const std::byte> piece = incoming_[member]->open();
      pieces_[member] = piece.data();
      bytes = static_cast<int64_t>(piece.size());
    }
  } catch (...) {
    // A peer took its piece back. Pieces that stay open would keep their senders waiting for us, as we for them.
    incoming_.clear();
    throw;
  }
  return bytes;
}

void Fold::withdraw() { *this = {}; }

std::vector<int64_t> Fold::missing() const {
  std::vector<int64_t> peers;
  if (offset_ == static_cast<int64_t>(own_.size())) return peers;
  for (size_t member = 0; member < incoming_.size(); ++member)
    if (incoming_[member] && !incoming_[member]->ready()) peers.push_back(members_[member]);
  return peers;
}

std::string ExchangeOperation::describe() const {
  return describe_operation(info_, exchange_.missing(), exchange_.not_taken());
}

ReduceScatterOperation::ReduceScatterOperation(OperationInfo info, const ProcessGroup& group, Tensor input,
                                               std::span<const int64_t> counts, Tensor output)
    : Operation(info.strand), info_(std::move(info)), scatter_(info_.strand) {
  const Tag tag = info_.transport->next_tag(info_.lane);
  const auto pieces = pieces_of(input, counts);
  for_each_peer(group, [&](int64_t member, int64_t peer) {
    scatter_.send(*info_.transport, peer, tag, pieces[static_cast<size_t>(member)]);
  });
  fold_ = Fold(info_, group, tag, input.dtype(), Reduction::sum, pieces[static_cast<size_t>(group.rank())],
               static_cast<std::byte*>(output.data()));
}

void ReduceScatterOperation::withdraw() {
  scatter_.withdraw();
  fold_.withdraw();
}

std::string ReduceScatterOperation::describe() const {
  return describe_operation(info_, fold_.missing(), scatter_.not_taken());
}

AllReduceOperation::AllReduceOperation(OperationInfo info, const ProcessGroup& group, Tensor tensor,
                                       Reduction reduction)
    : Operation(info.strand),
      info_(std::move(info)),
      group_(group),
      tensor_(tensor),
      reduction_(reduction),
      scatter_(info_.strand),
      gather_(info_.strand) {
  const Tag tag = info_.transport->next_tag(info_.lane);
  gather_tag_ = info_.transport->next_tag(info_.lane);
  if (tensor.bytes() <= kTinyBytes && group.size() <= kDirectMembers && !info_.strand->on_device()) {
    start_direct(tag);
  } else {
    start_scattered(tag);
  }
}

void AllReduceOperation::start_direct(Tag tag) {
  stage_ = Stage::direct;
  const std::span<std::byte> all = {static_cast<std::byte*>(tensor_.data()), static_cast<size_t>(tensor_.bytes())};
  direct_result_.resize(all.size());
  for_each_peer(group_, [&](int64_t, int64_t peer) { scatter_.send(*info_.transport, peer, tag, all); });
  fold_ = Fold(info_, group_, tag, tensor_.dtype(), reduction_, all, direct_result_.data());
}

void AllReduceOperation::start_scattered(Tag tag) {
  std::vector<int64_t> counts = group_.even_counts(tensor_.elements());
  if (tensor_.bytes() <= kTinyBytes) {
    std::fill(counts.begin(), counts.end(), 0);
    counts[0] = tensor_.elements();
  }
  pieces_ = pieces_of(tensor_, counts);
  for_each_peer(group_, [&](int64_t member, int64_t peer) {
    scatter_.send(*info_.transport, peer, tag, pieces_[static_cast<size_t>(member)]);
  });
  const std::span<std::byte> own = pieces_[static_cast<size_t>(group_.rank())];
  fold_ = Fold(info_, group_, tag, tensor_.dtype(), reduction_, own, own.data());
}

bool AllReduceOperation::poll() {
  if (stage_ == Stage::direct) {
    if (!fold_.done() || !scatter_.sent()) return false;
    if (!direct_result_.empty()) std::memcpy(tensor_.data(), direct_result_.data(), direct_result_.size());
    direct_result_.clear();
    return true;
  }
  if (stage_ == Stage::folding) {
    if (!fold_.done()) return false;
    const std::span<const std::byte> own = pieces_[static_cast<size_t>(group_.rank())];
    for_each_peer(group_, [&](int64_t, int64_t peer) { gather_.send(*info_.transport, peer, gather_tag_, own); });
    stage_ = Stage::scattering;
  }
  if (stage_ == Stage::scattering) {
    // Folded pieces land where this rank's own parts lie, which their owners must have read by then.
    if (!scatter_.sent()) return false;
    for_each_peer(group_, [&](int64_t member, int64_t peer) {
      gather_.receive(*info_.transport, peer, gather_tag_, pieces_[static_cast<size_t>(member)]);
    });
    stage_ = Stage::gathering;
  }
  return gather_.received() && gather_.sent();
}

void AllReduceOperation::withdraw() {
  scatter_.withdraw();
  gather_.withdraw();
  fold_.withdraw();
  direct_result_.clear();
  stage_ = Stage::gathering;
}

std::string AllReduceOperation::describe() const {
  std::vector<int64_t> missing = fold_.missing();
  if (missing.empty()) missing = gather_.missing();
  std::vector<int64_t> not_taken = scatter_.not_taken();
  if (not_taken.empty()) not_taken = gather_.not_taken();
  return describe_operation(info_, missing, not_taken);
}

}  // namespace quintet::comm
