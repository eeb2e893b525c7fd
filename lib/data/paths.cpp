#include "lib/data/paths.h"

#include <glob.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <memory>
#include <string_view>
#include <system_error>

#include "lib/base/error.h"

namespace quintet::data {
namespace {

namespace fs = std::filesystem;

bool is_text_name(const fs::path& name) {
  const std::string extension = name.extension().string();
  return extension.empty() || extension == ".txt" || extension == ".text" || extension == ".md";
}

// The type of what a path leads to; an unreadable way to it is an error, a missing end is not_found.
fs::file_type type_of(const std::string& key, const fs::path& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (status.type() == fs::file_type::none)
    fail(ExitCode::data, "{}: {} cannot be read ({}); mend the path or its permissions", key, path.string(),
         error.message());
  return status.type();
}

std::vector<std::string> files_in_folder(const std::string& key, const std::string& folder) {
  std::vector<std::string> files;
  std::error_code error;
  for (auto it = fs::directory_iterator(folder, error); !error && it != fs::directory_iterator(); it.increment(error)) {
    const fs::path& path = it->path();
    const std::string name = path.filename().string();
    if (name.starts_with('.') || !is_text_name(name)) continue;
    // A dangling link is kept, so that opening it reports what is missing.
    const fs::file_type type = type_of(key, path);
    if (type == fs::file_type::regular || type == fs::file_type::not_found) files.push_back(path.string());
  }
  if (error)
    fail(ExitCode::data, "{}: folder {} cannot be read ({}); mend its permissions", key, folder, error.message());
  if (files.empty())
    fail(ExitCode::data,
         "{}: folder {} holds no text file (.txt, .text, .md or no extension, directly inside and not hidden); "
         "name its files by a glob such as {}",
         key, folder, (fs::path(folder) / "*.log").string());
  std::sort(files.begin(), files.end());
  return files;
}

std::vector<std::string> files_of_glob(const std::string& key, const std::string& pattern) {
  glob_t matches{};
  const std::unique_ptr<glob_t, void (*)(glob_t*)> owner(&matches, &globfree);
  // A folder that is not there matches nothing; one that cannot be read might hold what is asked for.
  const auto stop_at = [](const char*, int error) { return error == ENOENT ? 0 : 1; };
  const int result = glob(pattern.c_str(), GLOB_NOSORT, stop_at, &matches);
  if (result != 0 && result != GLOB_NOMATCH)
    fail(ExitCode::data, "{}: a folder of {} cannot be read; mend its permissions or narrow the pattern", key, pattern);
  std::vector<std::string> files;
  for (size_t i = 0; i < matches.gl_pathc; ++i) {
    const std::string path = matches.gl_pathv[i];
    const fs::file_type type = type_of(key, path);
    if (type == fs::file_type::regular || type == fs::file_type::not_found) files.push_back(path);
  }
  if (files.empty())
    fail(ExitCode::data, "{}: no file matches {}; mend the pattern (relative ones start at {})", key, pattern,
         fs::current_path().string());
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace

std::vector<std::string> expand_path(const std::string& key, const std::string& pattern) {
  if (pattern.empty()) fail(ExitCode::data, "{}: the path is empty; give a file, a folder or a glob", key);
  switch (type_of(key, pattern)) {
    case fs::file_type::regular: return {pattern};
    case fs::file_type::directory: return files_in_folder(key, pattern);
    case fs::file_type::not_found: break;
    default: fail(ExitCode::data, "{}: {} is not a regular file; give a file, a folder or a glob", key, pattern);
  }
  if (pattern.find_first_of("*?[") != std::string::npos) return files_of_glob(key, pattern);
  fail(ExitCode::data, "{}: {} does not exist; give a file, a folder or a glob (relative ones start at {})", key,
       pattern, fs::current_path().string());
}

std::vector<std::string> expand_paths(const std::string& key, std::span<const std::string> patterns) {
  std::vector<std::string> files;
  for (const std::string& pattern : patterns) {
    const std::vector<std::string> expanded = expand_path(key, pattern);
    files.insert(files.end(), expanded.begin(), expanded.end());
  }
  return files;
}

}  // namespace quintet::data
