// A small config and what loading a variant of it says.
#pragma once

#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "lib/base/error.h"
#include "lib/config/load.h"

namespace quintet::config {

inline const std::string kSmall =
    "run:\n"
    "  name: small\n"
    "model:\n"
    "  seq_length: 32\n"
    "  layers: 4\n"
    "  hidden_size: 64\n"
    "  heads: 8\n"
    "train:\n"
    "  steps: 10\n"
    "  global_batch_size: 8\n"
    "optimizer:\n"
    "  learning_rate: 1.0e-3\n"
    "data:\n"
    "  train: corpus.txt\n";

using Overrides = std::vector<std::string>;

inline Config load_small(const Overrides& overrides = {}, int64_t ranks = 1) {
  return load_from_string(kSmall, "small.yaml", overrides, ranks);
}

// The message of the Error that loading throws; empty if it throws none.
inline std::string problems_of(const std::string& text, const Overrides& overrides = {}, int64_t ranks = 1) {
  try {
    load_from_string(text, "small.yaml", overrides, ranks);
  } catch (const Error& error) {
    CHECK(error.code() == ExitCode::config);
    return error.what();
  }
  return "";
}

inline std::string problems_with(const Overrides& overrides, int64_t ranks = 1) {
  return problems_of(kSmall, overrides, ranks);
}

// kSmall with lines appended; the first of them is line 15.
inline std::string problems_after(const std::string& lines, int64_t ranks = 1) {
  return problems_of(kSmall + lines, {}, ranks);
}

}  // namespace quintet::config
