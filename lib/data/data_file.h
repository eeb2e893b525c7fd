// A file that is read at any place. It is opened for each read: a run of many ranks over many files holds no
// descriptors, and a file that shrinks or vanishes under a run is an error that names it.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace quintet::data {

class DataFile {
 public:
  // Throws Error(data), naming `key` and the file, if it cannot be opened, is not a regular file or is empty.
  DataFile(std::string key, std::string path);

  const std::string& path() const { return path_; }
  int64_t size() const { return size_; }  // in bytes, when the run started
  // The bytes from `begin` on, which must lie within size(). Throws Error(data) if they are no longer there. May be
  // called from many threads at once.
  void read(int64_t begin, std::span<uint8_t> bytes) const;

 private:
  std::string key_, path_;
  int64_t size_ = 0;
};

}  // namespace quintet::data
