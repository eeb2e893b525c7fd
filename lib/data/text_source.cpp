#include "lib/data/text_source.h"

#include <algorithm>

#include "lib/base/error.h"
#include "lib/base/integers.h"

namespace quintet::data {

TextSource::TextSource(const std::string& key, const std::vector<std::string>& paths,
                       std::optional<int32_t> end_of_document)
    : end_of_document_(end_of_document) {
  QUINTET_CHECK(!paths.empty());
  int64_t end = 0;
  for (const std::string& path : paths) {
    files_.emplace_back(key, path);
    end += files_.back().size();
    ends_.push_back(end);
  }
}

void TextSource::read(int64_t begin, std::span<int32_t> tokens) const {
  const int64_t end = begin + narrow<int64_t>(tokens.size());
  QUINTET_CHECK(begin >= 0 && end <= token_count(), "[{}, {}) of {} tokens", begin, end, token_count());
  auto file = static_cast<size_t>(std::upper_bound(ends_.begin(), ends_.end(), begin) - ends_.begin());
  std::vector<uint8_t> bytes(tokens.size());
  for (int64_t at = begin; at < end; ++file) {
    const int64_t file_begin = ends_[file] - files_[file].size();
    const int64_t stop = std::min(end, ends_[file]);
    files_[file].read(at - file_begin,
                      std::span(bytes).subspan(static_cast<size_t>(at - begin), static_cast<size_t>(stop - at)));
    at = stop;
  }
  std::copy(bytes.begin(), bytes.end(), tokens.begin());
}

std::vector<int64_t> TextSource::document_starts(int64_t begin, int64_t end) const {
  std::vector<int64_t> starts;
  if (begin <= 0 && end > 0) starts.push_back(0);
  // A file starts where the one before ends; behind the last nothing starts.
  for (auto it = std::lower_bound(ends_.begin(), ends_.end() - 1, begin); it != ends_.end() - 1 && *it < end; ++it)
    starts.push_back(*it);
  if (!end_of_document_) return starts;
  const int64_t first = std::max<int64_t>(begin, 1), last = std::min(end, token_count());
  if (first >= last) return starts;
  std::vector<int32_t> before(static_cast<size_t>(last - first));  // the token before each place
  read(first - 1, before);
  for (int64_t place = first; place < last; ++place)
    if (before[static_cast<size_t>(place - first)] == *end_of_document_) starts.push_back(place);
  std::sort(starts.begin(), starts.end());
  starts.erase(std::unique(starts.begin(), starts.end()), starts.end());
  return starts;
}

std::vector<SourceFile> TextSource::files() const {
  std::vector<SourceFile> result;
  for (const DataFile& file : files_)
    result.push_back({.path = file.path(), .bytes = file.size(), .tokens = file.size()});
  return result;
}

}  // namespace quintet::data
