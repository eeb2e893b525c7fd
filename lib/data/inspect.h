// What `quintet data inspect PATH...` shows.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "lib/data/open_source.h"

namespace quintet::data {

struct Inspection {
  std::vector<SourceFile> files;
  int64_t bytes = 0;
  int64_t tokens = 0;
  int64_t windows = 0;  // of the sequence length asked for, all files being one source; 0 if too short for one
};

// Throws as open_source does.
Inspection inspect(std::span<const std::string> paths, int64_t sequence_length, const Reading& reading = {});

}  // namespace quintet::data
