#include "lib/data/data_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

#include "lib/base/error.h"

namespace quintet::data {
namespace {

[[noreturn]] void fail_unreadable(const std::string& key, const std::string& path, int error) {
  fail(ExitCode::data, "{}: {} cannot be read ({}); mend the file or its permissions, or leave it out", key, path,
       std::generic_category().message(error));
}

// An open file, closed at scope end.
class Descriptor {
 public:
  // O_NONBLOCK: opening a pipe that nobody writes to must not hang.
  Descriptor(const std::string& key, const std::string& path)
      : number_(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
    if (number_ < 0) fail_unreadable(key, path, errno);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() { close(number_); }
  int number() const { return number_; }

 private:
  int number_;
};

}  // namespace

DataFile::DataFile(std::string key, std::string path) : key_(std::move(key)), path_(std::move(path)) {
  const Descriptor file(key_, path_);
  struct stat status {};
  if (fstat(file.number(), &status) != 0) fail_unreadable(key_, path_, errno);
  if (!S_ISREG(status.st_mode)) fail(ExitCode::data, "{}: {} is not a regular file; leave it out", key_, path_);
  if (status.st_size == 0) fail(ExitCode::data, "{}: {} is empty; fill it or leave it out", key_, path_);
  size_ = status.st_size;
}

void DataFile::read(int64_t begin, std::span<uint8_t> bytes) const {
  const Descriptor file(key_, path_);
  while (!bytes.empty()) {
    const ssize_t got = pread(file.number(), bytes.data(), bytes.size(), begin);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail_unreadable(key_, path_, errno);
    if (got == 0)
      fail(ExitCode::data, "{}: {} ends at byte {} and had {} when the run started; files must not change under a run",
           key_, path_, begin, size_);
    begin += got;
    bytes = bytes.subspan(static_cast<size_t>(got));
  }
}

}  // namespace quintet::data
