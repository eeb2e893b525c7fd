// From what a user writes under data.train or data.validation to an ordered list of regular files.
#pragma once

#include <span>
#include <string>
#include <vector>

namespace quintet::data {

// The files that `pattern` stands for:
//   a file    itself, whatever its name; links are followed;
//   a folder  the text files directly inside, sorted by bytes: names that end in .txt, .text or .md or have no
//             extension; hidden files, subfolders and every other extension (indexes, archives) are skipped;
//   a glob    (* ? [...]) every regular file that matches, sorted by bytes; * does not match hidden files.
// A path that exists is taken literally even if it holds glob characters. Relative paths start at the working
// directory; ~ means nothing. `key` is the config key that errors name. Throws Error(data) for a missing path, an empty
// match, a folder without text files and anything that is not a regular file.
std::vector<std::string> expand_path(const std::string& key, const std::string& pattern);

// All patterns in the listed order, each expanded. A file that is named twice comes twice.
std::vector<std::string> expand_paths(const std::string& key, std::span<const std::string> patterns);

}  // namespace quintet::data
