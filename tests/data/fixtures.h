// Small corpora for the tests of the data floor.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lib/base/error.h"
#include "lib/data/dataset.h"
#include "tests/support/temporary_folder.h"

namespace quintet::data {

using testing::TemporaryFolder;

// The text 0 1 2 ... as bytes, wrapping at 251, so that a token tells where it came from.
inline std::string counting_text(int64_t size, int64_t first = 0) {
  std::string text;
  for (int64_t i = 0; i < size; ++i) text.push_back(static_cast<char>((first + i) % 251));
  return text;
}

// A source of any length without memory: token i is i modulo 1000003.
class CountingSource final : public TokenSource {
 public:
  explicit CountingSource(int64_t tokens) : tokens_(tokens) {}
  static int32_t token(int64_t place) { return static_cast<int32_t>(place % 1000003); }

  int64_t token_count() const override { return tokens_; }
  void read(int64_t begin, std::span<int32_t> tokens) const override {
    for (int32_t& out : tokens) out = token(begin++);
  }
  std::vector<int64_t> document_starts(int64_t, int64_t) const override { return {}; }
  std::vector<SourceFile> files() const override { return {}; }

 private:
  int64_t tokens_;
};

inline Dataset counting_dataset(int64_t tokens, int64_t sequence_length, bool shuffle) {
  DatasetOptions options;
  options.sequence_length = sequence_length;
  options.seed = 7;
  options.shuffle = shuffle;
  return Dataset(options, {{"counting", TokenRange(std::make_shared<CountingSource>(tokens)), std::nullopt}});
}

inline DatasetOptions options_of(std::vector<Entry> entries, int64_t sequence_length, bool shuffle = false) {
  DatasetOptions options;
  options.entries = std::move(entries);
  options.sequence_length = sequence_length;
  options.seed = 1234;
  options.shuffle = shuffle;
  return options;
}

inline std::vector<int32_t> sample_of(Dataset& dataset, int64_t ordinal) {
  std::vector<int32_t> tokens(static_cast<size_t>(dataset.sequence_length() + 1));
  dataset.sample(ordinal, tokens);
  return tokens;
}

// Tokens first, first + 1, ... of counting_text.
inline std::vector<int32_t> counting_tokens(int64_t size, int64_t first = 0) {
  std::vector<int32_t> tokens;
  for (int64_t i = 0; i < size; ++i) tokens.push_back(static_cast<int32_t>((first + i) % 251));
  return tokens;
}

struct Refusal {
  ExitCode code = ExitCode::success;
  std::string message;
  bool names(std::string_view part) const { return message.find(part) != std::string::npos; }
};

// The Error that an action ends in; success and no message if it ends in none.
template <typename Action>
Refusal refusal_of(Action&& action) {
  try {
    action();
  } catch (const Error& error) {
    return {error.code(), error.what()};
  }
  return {};
}

}  // namespace quintet::data
