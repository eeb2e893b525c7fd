// The one place that chooses a reader from data.format and data.tokenizer.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "lib/data/token_source.h"

namespace quintet::data {

struct Reading {
  std::string format = "auto";                            // auto | text
  std::string tokenizer = "bytes";                        // bytes
  std::optional<int32_t> end_of_document = std::nullopt;  // the token that ends a document
};

// One source of the files behind `patterns` (see expand_paths), in order; `key` is the config key that errors name.
// Format auto reads text, and refuses files whose extension says that they hold something else. Throws Error(config)
// for that and for a format or tokenizer that is not built in, Error(data) for what is wrong with the files.
std::shared_ptr<const TokenSource> open_source(const std::string& key, std::span<const std::string> patterns,
                                               const Reading& reading);

// The number of ids of a tokenizer. Throws Error(config) for one that is not built in.
int64_t vocabulary_size(const std::string& tokenizer);

}  // namespace quintet::data
