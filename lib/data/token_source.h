// What every format and tokenizer looks like from above: a long, immutable sequence of tokens.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace quintet::data {

struct SourceFile {
  std::string path;
  int64_t bytes = 0;
  int64_t tokens = 0;
};

// Const members may be called from many threads at once.
class TokenSource {
 public:
  virtual ~TokenSource() = default;

  virtual int64_t token_count() const = 0;
  // Tokens [begin, begin + tokens.size()), which must exist.
  virtual void read(int64_t begin, std::span<int32_t> tokens) const = 0;
  // The places in [begin, end) at which a document starts, ascending.
  virtual std::vector<int64_t> document_starts(int64_t begin, int64_t end) const = 0;
  // The files behind it, in order.
  virtual std::vector<SourceFile> files() const = 0;
};

// Tokens [begin, begin + count) of a source, numbered from 0: the training or the validation part.
class TokenRange {
 public:
  // All of it.
  explicit TokenRange(std::shared_ptr<const TokenSource> source);
  TokenRange part(int64_t begin, int64_t count) const;

  int64_t token_count() const { return count_; }
  const TokenSource& source() const { return *source_; }
  void read(int64_t begin, std::span<int32_t> tokens) const;
  std::vector<int64_t> document_starts(int64_t begin, int64_t end) const;

 private:
  std::shared_ptr<const TokenSource> source_;
  int64_t begin_ = 0;
  int64_t count_ = 0;
};

}  // namespace quintet::data
