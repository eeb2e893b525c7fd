#include "lib/comm/process_group.h"

#include <cstddef>
#include <functional>
#include <numeric>

#include "lib/base/error.h"

namespace quintet::comm {
namespace {

int64_t sum_of(std::span<const int64_t> counts) { return std::accumulate(counts.begin(), counts.end(), int64_t{0}); }

void check_counts(const Tensor& whole, std::span<const int64_t> counts, int64_t members, std::string_view what) {
  QUINTET_CHECK(static_cast<int64_t>(counts.size()) == members, "{} counts for {} members in {}", counts.size(),
                members, what);
  for (const int64_t count : counts) QUINTET_CHECK(count >= 0, "a count of {} in {}", count, what);
  QUINTET_CHECK(sum_of(counts) == whole.elements(), "counts of {} in all for {} elements in {}", sum_of(counts),
                whole.elements(), what);
}

void check_same_type(const Tensor& a, const Tensor& b, std::string_view what) {
  QUINTET_CHECK(a.dtype() == b.dtype(), "{} and {} in {}", name_of(a.dtype()), name_of(b.dtype()), what);
}

void check_present(const Tensor& tensor, std::string_view what) {
  QUINTET_CHECK(tensor.data() != nullptr || tensor.elements() == 0, "no memory for {}", what);
}

// `piece` lies at `place` elements in `whole`, or apart from it.
void check_alias(const Tensor& piece, const Tensor& whole, int64_t place, std::string_view what) {
  if (piece.bytes() == 0) return;
  const std::less<const std::byte*> before;
  const auto *piece_begin = static_cast<const std::byte*>(piece.data()),
             *whole_begin = static_cast<const std::byte*>(whole.data());
  const bool apart =
      !before(piece_begin, whole_begin + whole.bytes()) || !before(whole_begin, piece_begin + piece.bytes());
  QUINTET_CHECK(apart || piece_begin == whole_begin + place * size_of(whole.dtype()),
                "operands of {} overlap elsewhere than in this rank's place", what);
}

}  // namespace

ProcessGroup::ProcessGroup(std::vector<int64_t> members, int64_t rank, std::optional<Axis> booked_under,
                           Traffic& traffic)
    : members_(std::move(members)), rank_(rank), booked_under_(booked_under), traffic_(traffic) {
  QUINTET_CHECK(rank_ >= 0 && rank_ < size(), "member {} of {}", rank_, size());
}

void ProcessGroup::book(int64_t bytes) {
  if (!booked_under_ || size() == 1) return;
  traffic_.bytes[*booked_under_] += bytes;
  traffic_.operations[*booked_under_] += 1;
}

Handle ProcessGroup::all_reduce(Tensor tensor, Reduction reduction, std::string_view what) {
  check_present(tensor, what);
  const int64_t element = size_of(tensor.dtype());
  const int64_t own = even_counts(tensor.elements())[static_cast<size_t>(rank_)] * element;
  book(tensor.bytes() - own + own * (size() - 1));
  return do_all_reduce(tensor, reduction, what);
}

Handle ProcessGroup::reduce_scatter(Tensor input, std::span<const int64_t> counts, Tensor output,
                                    std::string_view what) {
  check_present(input, what);
  check_present(output, what);
  check_same_type(input, output, what);
  check_counts(input, counts, size(), what);
  const auto own = static_cast<size_t>(rank_);
  QUINTET_CHECK(output.elements() == counts[own], "{} elements for a piece of {} in {}", output.elements(), counts[own],
                what);
  check_alias(output, input, sum_of(counts.first(own)), what);
  book(input.bytes() - output.bytes());
  return do_reduce_scatter(input, counts, output, what);
}

Handle ProcessGroup::all_gather(Tensor input, std::span<const int64_t> counts, Tensor output, std::string_view what) {
  check_present(input, what);
  check_present(output, what);
  check_same_type(input, output, what);
  check_counts(output, counts, size(), what);
  const auto own = static_cast<size_t>(rank_);
  QUINTET_CHECK(input.elements() == counts[own], "{} elements for a piece of {} in {}", input.elements(), counts[own],
                what);
  check_alias(input, output, sum_of(counts.first(own)), what);
  book(input.bytes() * (size() - 1));
  return do_all_gather(input, counts, output, what);
}

Handle ProcessGroup::broadcast(Tensor tensor, int64_t root, std::string_view what) {
  check_present(tensor, what);
  QUINTET_CHECK(root >= 0 && root < size(), "root {} of {} in {}", root, size(), what);
  book(rank_ == root ? tensor.bytes() * (size() - 1) : 0);
  return do_broadcast(tensor, root, what);
}

Handle ProcessGroup::all_to_all(Tensor input, std::span<const int64_t> send_counts, Tensor output,
                                std::span<const int64_t> receive_counts, std::string_view what) {
  check_present(input, what);
  check_present(output, what);
  check_same_type(input, output, what);
  check_counts(input, send_counts, size(), what);
  check_counts(output, receive_counts, size(), what);
  const auto own = static_cast<size_t>(rank_);
  QUINTET_CHECK(send_counts[own] == receive_counts[own], "{} elements sent, {} received by the same rank in {}",
                send_counts[own], receive_counts[own], what);
  book(input.bytes() - send_counts[own] * size_of(input.dtype()));
  return do_all_to_all(input, send_counts, output, receive_counts, what);
}

Handle ProcessGroup::send(Tensor tensor, int64_t to, std::string_view what, uint16_t channel) {
  check_present(tensor, what);
  QUINTET_CHECK(to >= 0 && to < size() && to != rank_, "send from {} to {} of {} in {}", rank_, to, size(), what);
  book(tensor.bytes());
  return do_send(tensor, to, what, channel);
}

Handle ProcessGroup::receive(Tensor tensor, int64_t from, std::string_view what, uint16_t channel) {
  check_present(tensor, what);
  QUINTET_CHECK(from >= 0 && from < size() && from != rank_, "receive by {} from {} of {} in {}", rank_, from, size(),
                what);
  book(0);
  return do_receive(tensor, from, what, channel);
}

void ProcessGroup::barrier() {
  uint8_t token = 0;
  do_all_reduce(Tensor(&token, DType::u8, {1}), Reduction::max, "barrier").wait();
}

std::vector<int64_t> ProcessGroup::even_counts(int64_t elements) const {
  std::vector<int64_t> counts(members_.size(), elements / size());
  for (int64_t member = 0; member < elements % size(); ++member) ++counts[static_cast<size_t>(member)];
  return counts;
}

}  // namespace quintet::comm
