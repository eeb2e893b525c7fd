#include "lib/data/token_source.h"

#include <utility>

#include "lib/base/error.h"

namespace quintet::data {

TokenRange::TokenRange(std::shared_ptr<const TokenSource> source)
    : source_(std::move(source)), count_(source_->token_count()) {}

TokenRange TokenRange::part(int64_t begin, int64_t count) const {
  QUINTET_CHECK(begin >= 0 && count >= 0 && begin <= count_ - count, "[{}, +{}) of {} tokens", begin, count, count_);
  TokenRange range = *this;
  range.begin_ = begin_ + begin;
  range.count_ = count;
  return range;
}

void TokenRange::read(int64_t begin, std::span<int32_t> tokens) const {
  QUINTET_CHECK(begin >= 0 && begin <= count_ - static_cast<int64_t>(tokens.size()), "[{}, +{}) of {} tokens", begin,
                tokens.size(), count_);
  source_->read(begin_ + begin, tokens);
}

std::vector<int64_t> TokenRange::document_starts(int64_t begin, int64_t end) const {
  std::vector<int64_t> starts = source_->document_starts(begin_ + begin, begin_ + end);
  for (int64_t& start : starts) start -= begin_;
  return starts;
}

}  // namespace quintet::data
