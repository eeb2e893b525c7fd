#include "lib/data/open_source.h"

#include "lib/base/error.h"
#include "lib/data/paths.h"
#include "lib/data/text_source.h"

namespace quintet::data {

std::shared_ptr<const TokenSource> open_source(const std::string& key, std::span<const std::string> patterns,
                                               const Reading& reading) {
  vocabulary_size(reading.tokenizer);
  if (reading.format != "auto" && reading.format != "text")
    fail(ExitCode::config, "data.format: {} is not built in; choose auto or text", reading.format);
  if (patterns.empty()) fail(ExitCode::config, "{}: names no file; give a file, a folder, a glob or a list", key);
  return std::make_shared<TextSource>(key, expand_paths(key, patterns));
}

int64_t vocabulary_size(const std::string& tokenizer) {
  if (tokenizer != "bytes") fail(ExitCode::config, "data.tokenizer: {} is not built in; choose bytes", tokenizer);
  return kByteVocabulary;
}

}  // namespace quintet::data
