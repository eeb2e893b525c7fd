#include "lib/checkpoint/atomic_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

#include "lib/base/error.h"

namespace quintet::checkpoint {
namespace {

[[noreturn]] void fail_io(const std::filesystem::path& path, const char* action, int error) {
  const char* remedy = "";
  if (error == ENOSPC || error == EDQUOT) remedy = "; free space or choose another run.dir";
  if (error == EACCES || error == EROFS) remedy = "; choose a run.dir that may be written";
  fail(ExitCode::checkpoint, "{}: cannot {}: {}{}", path.string(), action, std::generic_category().message(error),
       remedy);
}

void check_io(const std::error_code& error, const std::filesystem::path& path, const char* action) {
  if (error) fail_io(path, action, error.value());
}

std::filesystem::path beside(const std::filesystem::path& path) {
  std::filesystem::path temporary = path;
  temporary += ".tmp";
  return temporary;
}

// Makes the names inside a folder durable.
void sync_folder(const std::filesystem::path& path) {
  const int descriptor = ::open(path.empty() ? "." : path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) fail_io(path, "open the folder", errno);
  // Some network file systems cannot sync folders and say EINVAL; then renaming is all there is.
  const int error = ::fsync(descriptor) == 0 || errno == EINVAL ? 0 : errno;
  ::close(descriptor);
  if (error != 0) fail_io(path, "sync the folder", error);
}

std::filesystem::path without_trailing_slash(const std::filesystem::path& path) {
  return path.has_filename() ? path : path.parent_path();
}

}  // namespace

AtomicFile::AtomicFile(std::filesystem::path path) : path_(std::move(path)), temporary_(beside(path_)) {
  descriptor_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (descriptor_ < 0) fail_io(temporary_, "create the file", errno);
}

AtomicFile::~AtomicFile() {
  if (descriptor_ < 0) return;
  ::close(descriptor_);
  ::unlink(temporary_.c_str());
}

void AtomicFile::append(std::span<const std::byte> bytes) {
  QUINTET_CHECK(descriptor_ >= 0, "{} is already committed", path_.string());
  while (!bytes.empty()) {
    const ssize_t written = ::write(descriptor_, bytes.data(), bytes.size());
    if (written < 0) {
      if (errno == EINTR) continue;
      fail_io(temporary_, "write", errno);
    }
    bytes = bytes.subspan(static_cast<size_t>(written));
  }
}

void AtomicFile::commit() {
  QUINTET_CHECK(descriptor_ >= 0, "{} is already committed", path_.string());
  // Network file systems report a full disk as late as here.
  if (::fsync(descriptor_) != 0 && errno != EINVAL) fail_io(temporary_, "sync", errno);
  const int descriptor = std::exchange(descriptor_, -1);
  const int error = ::close(descriptor) == 0 ? 0 : errno;
  if (error == 0 && ::rename(temporary_.c_str(), path_.c_str()) == 0) return sync_folder(path_.parent_path());
  const int reason = error != 0 ? error : errno;
  ::unlink(temporary_.c_str());
  fail_io(path_, "put the finished file in place", reason);
}

void write_file(const std::filesystem::path& path, std::string_view content) {
  AtomicFile file(path);
  file.append(std::as_bytes(std::span(content)));
  file.commit();
}

AtomicFolder::AtomicFolder(const std::filesystem::path& path)
    : path_(without_trailing_slash(path)), temporary_(beside(path_)) {
  std::error_code error;
  std::filesystem::remove_all(temporary_, error);
  check_io(error, temporary_, "clear the folder");
  std::filesystem::create_directories(temporary_, error);
  check_io(error, temporary_, "create the folder");
}

AtomicFolder::~AtomicFolder() {
  if (committed_) return;
  std::error_code ignored;
  std::filesystem::remove_all(temporary_, ignored);
}

void AtomicFolder::commit() {
  QUINTET_CHECK(!committed_, "{} is already committed", path_.string());
  sync_folder(temporary_);
  std::error_code error;
  std::filesystem::remove_all(path_, error);
  check_io(error, path_, "remove the older folder");
  std::filesystem::rename(temporary_, path_, error);
  check_io(error, path_, "put the finished folder in place");
  committed_ = true;
  sync_folder(path_.parent_path());
}

}  // namespace quintet::checkpoint
