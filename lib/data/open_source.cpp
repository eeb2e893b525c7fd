#include "lib/data/open_source.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <string_view>
#include <utility>
#include <vector>

#include "lib/base/error.h"
#include "lib/data/paths.h"
#include "lib/data/text_source.h"

namespace quintet::data {
namespace {

// Extensions of files that are hardly meant to be trained on byte by byte, and what they hold.
constexpr std::array<std::pair<std::string_view, std::string_view>, 12> kNotText = {{{".jsonl", "JSON lines"},
                                                                                     {".json", "JSON"},
                                                                                     {".bin", "binary tokens"},
                                                                                     {".idx", "an index of tokens"},
                                                                                     {".npy", "a NumPy array"},
                                                                                     {".npz", "NumPy arrays"},
                                                                                     {".gz", "gzip data"},
                                                                                     {".zst", "Zstandard data"},
                                                                                     {".xz", "xz data"},
                                                                                     {".zip", "a ZIP archive"},
                                                                                     {".parquet", "a Parquet table"},
                                                                                     {".arrow", "an Arrow table"}}};

void refuse_other_formats(const std::string& key, const std::vector<std::string>& paths) {
  for (const std::string& path : paths) {
    std::string extension = std::filesystem::path(path).extension().string();
    std::transform(extension.begin(), extension.end(), extension.begin(),
                   [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; });
    for (const auto& [known, what] : kNotText) {
      if (extension == known)
        fail(ExitCode::config,
             "{}: {} looks like {}, which data.format auto does not read yet; write data.format: text to train on its "
             "bytes as they are",
             key, path, what);
    }
  }
}

}  // namespace

std::shared_ptr<const TokenSource> open_source(const std::string& key, std::span<const std::string> patterns,
                                               const Reading& reading) {
  vocabulary_size(reading.tokenizer);
  if (reading.format != "auto" && reading.format != "text")
    fail(ExitCode::config, "data.format: {} is not built in; choose auto or text", reading.format);
  if (patterns.empty()) fail(ExitCode::config, "{}: names no file; give a file, a folder, a glob or a list", key);
  const std::vector<std::string> paths = expand_paths(key, patterns);
  if (reading.format == "auto") refuse_other_formats(key, paths);
  return std::make_shared<TextSource>(key, paths, reading.end_of_document);
}

int64_t vocabulary_size(const std::string& tokenizer) {
  if (tokenizer != "bytes") fail(ExitCode::config, "data.tokenizer: {} is not built in; choose bytes", tokenizer);
  return kByteVocabulary;
}

}  // namespace quintet::data
