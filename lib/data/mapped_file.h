// The bytes of a file, mapped read-only: ranks of one node share the page cache and nothing is copied.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace quintet::data {

class MappedFile {
 public:
  // Throws Error(data), naming `key` and the file, if it cannot be opened, is not a regular file or is empty.
  MappedFile(const std::string& key, std::string path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&&) = delete;

  const std::string& path() const { return path_; }
  std::span<const uint8_t> bytes() const { return bytes_; }

 private:
  std::string path_;
  std::span<const uint8_t> bytes_;
};

}  // namespace quintet::data
