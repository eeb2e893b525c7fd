// The safetensors format: u64 little-endian header length; a JSON header {name: {dtype, shape, data_offsets}} padded
// with spaces to 8 bytes; then the tensors' bytes, row-major and little-endian, without holes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "lib/base/dtype.h"
#include "lib/checkpoint/atomic_file.h"

namespace quintet::checkpoint {

// A tensor by name; shape outermost first, empty for a scalar.
struct TensorEntry {
  std::string name;
  DType dtype = DType::fp32;
  std::vector<int64_t> shape;
  bool operator==(const TensorEntry&) const = default;
};

int64_t elements_of(const TensorEntry& entry);
int64_t bytes_of(const TensorEntry& entry);

// Writes a file tensor by tensor, so that memory never holds more than the caller gives at once. All tensors are
// declared first, wider types before narrower ones where data shall be aligned. The file appears on finish().
// IO errors throw Error (ExitCode::checkpoint); a wrong order or size is a CheckFailure.
class SafetensorsWriter {
 public:
  SafetensorsWriter(const std::filesystem::path& path, std::vector<TensorEntry> tensors,
                    const std::map<std::string, std::string>& metadata = {});

  // The next bytes of tensor `name`, which may come in pieces; tensors come in the declared order.
  void append(const std::string& name, std::span<const std::byte> bytes);
  void finish();

 private:
  void skip_full_tensors();

  AtomicFile file_;
  std::vector<TensorEntry> tensors_;
  size_t current_ = 0;
  int64_t left_ = 0;  // bytes that the current tensor still lacks
};

// Where a tensor lies: bytes [begin, end) of the file.
struct StoredTensor {
  DType dtype = DType::fp32;
  std::vector<int64_t> shape;
  int64_t begin = 0, end = 0;
};

struct SafetensorsHeader {
  std::map<std::string, StoredTensor> tensors;
  std::map<std::string, std::string> metadata;
};

// Reads the header of a whole file's bytes and holds it against their number: a header length past the file, JSON that
// is not an object of tensors, unknown dtypes, duplicate names, overflowing shapes, offsets that do not fit the shape,
// overlap, leave holes or end elsewhere than the file throw Error (ExitCode::checkpoint) naming file and field.
SafetensorsHeader parse_safetensors_header(std::span<const std::byte> file, const std::string& file_name);

// A mapped file. Data need not be aligned to its type: copy it out.
class SafetensorsReader {
 public:
  explicit SafetensorsReader(const std::filesystem::path& path);
  ~SafetensorsReader();
  SafetensorsReader(const SafetensorsReader&) = delete;
  SafetensorsReader& operator=(const SafetensorsReader&) = delete;

  const SafetensorsHeader& header() const { return header_; }
  // An Error if the file has no tensor of that name.
  const StoredTensor& find(const std::string& name) const;
  std::span<const std::byte> data(const std::string& name) const;

 private:
  std::string file_name_;
  std::span<const std::byte> mapping_;
  SafetensorsHeader header_;
};

}  // namespace quintet::checkpoint
