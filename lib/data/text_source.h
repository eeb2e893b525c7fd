// Plain text under the `bytes` tokenizer: a token a byte, files one behind the other. `bytes` has no end-of-document id
// of its own, so nothing stands between two files. A file is one document, or several where a byte is told to end one.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lib/data/data_file.h"
#include "lib/data/token_source.h"

namespace quintet::data {

constexpr int64_t kByteVocabulary = 256;

class TextSource final : public TokenSource {
 public:
  // A document ends behind each byte `end_of_document`, where there is one, as well as with its file. Throws
  // Error(data), naming `key` and the file, for a file that is unreadable or empty.
  TextSource(const std::string& key, const std::vector<std::string>& paths,
             std::optional<int32_t> end_of_document = std::nullopt);

  int64_t token_count() const override { return ends_.back(); }
  void read(int64_t begin, std::span<int32_t> tokens) const override;
  std::vector<int64_t> document_starts(int64_t begin, int64_t end) const override;
  std::vector<SourceFile> files() const override;

 private:
  std::vector<DataFile> files_;
  std::vector<int64_t> ends_;  // of each file, in tokens from the start of the source
  std::optional<int32_t> end_of_document_;
};

}  // namespace quintet::data
