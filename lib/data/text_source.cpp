#include "lib/data/text_source.h"

#include <algorithm>

#include "lib/base/error.h"
#include "lib/base/integers.h"

namespace quintet::data {

TextSource::TextSource(const std::string& key, const std::vector<std::string>& paths) {
  QUINTET_CHECK(!paths.empty());
  int64_t end = 0;
  for (const std::string& path : paths) {
    files_.emplace_back(key, path);
    end += narrow<int64_t>(files_.back().bytes().size());
    ends_.push_back(end);
  }
}

void TextSource::read(int64_t begin, std::span<int32_t> tokens) const {
  const int64_t end = begin + narrow<int64_t>(tokens.size());
  QUINTET_CHECK(begin >= 0 && end <= token_count(), "[{}, {}) of {} tokens", begin, end, token_count());
  auto file = static_cast<size_t>(std::upper_bound(ends_.begin(), ends_.end(), begin) - ends_.begin());
  int32_t* out = tokens.data();
  for (int64_t at = begin; at < end; ++file) {
    const std::span<const uint8_t> bytes = files_[file].bytes();
    const int64_t file_begin = ends_[file] - narrow<int64_t>(bytes.size());
    const int64_t stop = std::min(end, ends_[file]);
    out = std::copy(bytes.data() + (at - file_begin), bytes.data() + (stop - file_begin), out);
    at = stop;
  }
}

std::vector<int64_t> TextSource::document_starts(int64_t begin, int64_t end) const {
  std::vector<int64_t> starts;
  if (begin <= 0 && end > 0) starts.push_back(0);
  // A file starts where the one before ends; behind the last nothing starts.
  for (auto it = std::lower_bound(ends_.begin(), ends_.end() - 1, begin); it != ends_.end() - 1 && *it < end; ++it)
    starts.push_back(*it);
  return starts;
}

std::vector<SourceFile> TextSource::files() const {
  std::vector<SourceFile> result;
  for (const MappedFile& file : files_) {
    const int64_t size = narrow<int64_t>(file.bytes().size());
    result.push_back({.path = file.path(), .bytes = size, .tokens = size});
  }
  return result;
}

}  // namespace quintet::data
