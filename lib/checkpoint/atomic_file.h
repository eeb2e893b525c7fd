// Files and folders that appear whole or not at all: written beside under a temporary name, fsynced, then renamed.
// Every failure is an Error (ExitCode::checkpoint) that names the file and the system's reason.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string_view>

namespace quintet::checkpoint {

// One file. Without commit() nothing is left behind.
class AtomicFile {
 public:
  explicit AtomicFile(std::filesystem::path path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void append(std::span<const std::byte> bytes);
  void commit();

 private:
  std::filesystem::path path_, temporary_;
  int descriptor_ = -1;
};

// The whole content of a small file.
void write_file(const std::filesystem::path& path, std::string_view content);

// A folder whose files are written into temporary() first. A leftover of a killed run is cleared; a folder of the same
// name is replaced on commit(). Parents are created. Without commit() nothing is left behind.
class AtomicFolder {
 public:
  explicit AtomicFolder(const std::filesystem::path& path);
  ~AtomicFolder();
  AtomicFolder(const AtomicFolder&) = delete;
  AtomicFolder& operator=(const AtomicFolder&) = delete;

  const std::filesystem::path& temporary() const { return temporary_; }
  void commit();

 private:
  std::filesystem::path path_, temporary_;
  bool committed_ = false;
};

}  // namespace quintet::checkpoint
