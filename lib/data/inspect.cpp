#include "lib/data/inspect.h"

#include "lib/base/error.h"
#include "lib/data/sample_order.h"

namespace quintet::data {

Inspection inspect(std::span<const std::string> paths, int64_t sequence_length, const Reading& reading) {
  QUINTET_CHECK(sequence_length >= 1, "sequence length {}", sequence_length);
  const auto source = open_source("data inspect", paths, reading);
  Inspection result;
  result.files = source->files();
  for (const SourceFile& file : result.files) result.bytes += file.bytes;
  result.tokens = source->token_count();
  result.windows = window_count(result.tokens, sequence_length);
  return result;
}

}  // namespace quintet::data
