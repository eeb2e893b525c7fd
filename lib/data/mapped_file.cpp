#include "lib/data/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

#include "lib/base/error.h"

namespace quintet::data {
namespace {

// Closes at scope end; a mapping outlives its descriptor.
struct Descriptor {
  int number;
  explicit Descriptor(int value) : number(value) {}
  Descriptor(const Descriptor&) = delete;
  ~Descriptor() {
    if (number >= 0) close(number);
  }
};

[[noreturn]] void fail_unreadable(const std::string& key, const std::string& path, int error) {
  fail(ExitCode::data, "{}: {} cannot be read ({}); mend the file or its permissions, or leave it out", key, path,
       std::generic_category().message(error));
}

}  // namespace

MappedFile::MappedFile(const std::string& key, std::string path) : path_(std::move(path)) {
  // O_NONBLOCK: opening a pipe that nobody writes to must not hang.
  const Descriptor file(open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (file.number < 0) fail_unreadable(key, path_, errno);
  struct stat status {};
  if (fstat(file.number, &status) != 0) fail_unreadable(key, path_, errno);
  if (!S_ISREG(status.st_mode)) fail(ExitCode::data, "{}: {} is not a regular file; leave it out", key, path_);
  if (status.st_size == 0) fail(ExitCode::data, "{}: {} is empty; fill it or leave it out", key, path_);
  const size_t size = static_cast<size_t>(status.st_size);
  void* address = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.number, 0);
  if (address == MAP_FAILED) fail_unreadable(key, path_, errno);
  bytes_ = {static_cast<const uint8_t*>(address), size};
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)), bytes_(std::exchange(other.bytes_, {})) {}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) munmap(const_cast<uint8_t*>(bytes_.data()), bytes_.size());
}

}  // namespace quintet::data
