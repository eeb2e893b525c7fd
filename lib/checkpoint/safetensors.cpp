#include "lib/checkpoint/safetensors.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <limits>
#include <optional>
#include <set>
#include <string_view>
#include <system_error>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "lib/base/error.h"
#include "lib/base/integers.h"

namespace quintet::checkpoint {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors data is little-endian");

constexpr int64_t kLengthBytes = 8;
constexpr int64_t kMaxHeaderBytes = 100'000'000;  // the format's own limit
constexpr const char* kMetadata = "__metadata__";

constexpr std::array<std::pair<DType, std::string_view>, 6> kDTypeNames = {{{DType::fp64, "F64"},
                                                                            {DType::fp32, "F32"},
                                                                            {DType::bf16, "BF16"},
                                                                            {DType::i64, "I64"},
                                                                            {DType::i32, "I32"},
                                                                            {DType::u8, "U8"}}};

std::string_view stored_name(DType dtype) {
  for (const auto& [known, name] : kDTypeNames)
    if (known == dtype) return name;
  QUINTET_CHECK(false, "safetensors has no name for dtype {}", static_cast<int>(dtype));
}

std::optional<DType> dtype_named(std::string_view stored) {
  for (const auto& [dtype, name] : kDTypeNames)
    if (name == stored) return dtype;
  return std::nullopt;
}

// The number of bytes of a tensor, or nothing if it overflows.
std::optional<int64_t> checked_bytes(const std::vector<int64_t>& shape, DType dtype) {
  int64_t bytes = size_of(dtype);
  for (const int64_t size : shape)
    if (size < 0 || __builtin_mul_overflow(bytes, size, &bytes)) return std::nullopt;
  return bytes;
}

std::string header_text(const std::vector<TensorEntry>& tensors, const std::map<std::string, std::string>& metadata) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header[kMetadata] = metadata;
  std::set<std::string_view> names = {kMetadata};
  int64_t offset = 0;
  for (const TensorEntry& tensor : tensors) {
    QUINTET_CHECK(names.insert(tensor.name).second, "tensor {} is declared twice", tensor.name);
    const int64_t end = offset + bytes_of(tensor);
    // ordered_json looks a key up in linear time, and the names are known to differ: append.
    header.get_ref<nlohmann::ordered_json::object_t&>().push_back(
        {tensor.name,
         {{"dtype", stored_name(tensor.dtype)}, {"shape", tensor.shape}, {"data_offsets", {offset, end}}}});
    offset = end;
  }
  std::string text = header.dump();
  text.resize(static_cast<size_t>(round_up(narrow<int64_t>(text.size()), 8)), ' ');
  return text;
}

// Fails with the file and the place in its header.
class HeaderParser {
 public:
  HeaderParser(std::span<const std::byte> file, const std::string& file_name) : file_(file), file_name_(file_name) {}

  SafetensorsHeader parse() {
    const std::string_view text = locate_text();
    const nlohmann::json json = parse_json(text);
    if (!json.is_object()) reject("header", "must be a JSON object");
    SafetensorsHeader header;
    for (const auto& [name, value] : json.items()) {
      if (name == kMetadata)
        header.metadata = parse_metadata(value);
      else
        header.tensors.emplace(name, parse_tensor(name, value));
    }
    check_tiling(header);
    return header;
  }

 private:
  template <typename... Args>
  [[noreturn]] void reject(std::string_view field, fmt::format_string<Args...> format, Args&&... args) const {
    fail(ExitCode::checkpoint, "{}: {}: {}; the file is damaged or no safetensors file", file_name_, field,
         fmt::format(format, std::forward<Args>(args)...));
  }

  std::string_view locate_text() {
    const auto size = narrow<int64_t>(file_.size());
    if (size < kLengthBytes) reject("header length", "the file holds {} bytes, 8 are needed", size);
    uint64_t length = 0;
    std::memcpy(&length, file_.data(), sizeof length);
    if (length > static_cast<uint64_t>(size - kLengthBytes))
      reject("header length", "{} reaches past the end of the file ({} bytes)", length, size);
    if (length > static_cast<uint64_t>(kMaxHeaderBytes))
      reject("header length", "{} is more than {} bytes", length, kMaxHeaderBytes);
    data_begin_ = kLengthBytes + static_cast<int64_t>(length);
    const std::string_view text(reinterpret_cast<const char*>(file_.data()) + kLengthBytes,
                                static_cast<size_t>(length));
    if (text.empty() || text.front() != '{') reject("header", "must begin with {{");
    return text;
  }

  // The library keeps the last of two equal keys, which would hide a tensor: keys are watched while it parses.
  nlohmann::json parse_json(std::string_view text) const {
    constexpr int kMaxDepth = 3;
    std::array<std::set<std::string>, kMaxDepth + 1> keys;
    const auto watch = [&](int depth, nlohmann::json::parse_event_t event, nlohmann::json& value) {
      using Event = nlohmann::json::parse_event_t;
      if (event == Event::object_start || event == Event::array_start) {
        if (depth >= kMaxDepth) reject("header", "is nested too deep");
        keys[static_cast<size_t>(depth) + 1].clear();
      } else if (event == Event::key) {
        const auto& key = value.get_ref<const std::string&>();
        if (!keys[static_cast<size_t>(depth)].insert(key).second) reject(key, "stands twice in the header");
      }
      return true;
    };
    try {
      return nlohmann::json::parse(text, watch);
    } catch (const nlohmann::json::exception& error) {
      reject("header", "{}", error.what());
    }
  }

  std::map<std::string, std::string> parse_metadata(const nlohmann::json& value) const {
    if (!value.is_object()) reject(kMetadata, "must be an object of strings");
    std::map<std::string, std::string> metadata;
    for (const auto& [key, text] : value.items()) {
      if (!text.is_string()) reject(fmt::format("{}.{}", kMetadata, key), "must be a string");
      metadata.emplace(key, text.get<std::string>());
    }
    return metadata;
  }

  const nlohmann::json& member(const std::string& name, const nlohmann::json& tensor, const char* key) const {
    const auto found = tensor.find(key);
    if (found == tensor.end()) reject(fmt::format("{}.{}", name, key), "is missing");
    return *found;
  }

  std::vector<int64_t> parse_sizes(const std::string& field, const nlohmann::json& value) const {
    if (!value.is_array()) reject(field, "must be a list of counts");
    std::vector<int64_t> sizes;
    for (const nlohmann::json& size : value) {
      if (!size.is_number_unsigned() || size.get<uint64_t>() > std::numeric_limits<int64_t>::max())
        reject(field, "{} is not a count below 2^63", size.dump());
      sizes.push_back(size.get<int64_t>());
    }
    return sizes;
  }

  StoredTensor parse_tensor(const std::string& name, const nlohmann::json& value) const {
    if (!value.is_object()) reject(name, "must be an object of dtype, shape and data_offsets");
    if (value.size() != 3) reject(name, "must have dtype, shape and data_offsets and nothing else");
    StoredTensor tensor;
    const nlohmann::json& dtype = member(name, value, "dtype");
    const auto known = dtype.is_string() ? dtype_named(dtype.get_ref<const std::string&>()) : std::nullopt;
    if (!known) reject(name + ".dtype", "{} is unknown; read are F64, F32, BF16, I64, I32 and U8", dtype.dump());
    tensor.dtype = *known;
    tensor.shape = parse_sizes(name + ".shape", member(name, value, "shape"));
    const auto bytes = checked_bytes(tensor.shape, tensor.dtype);
    if (!bytes) reject(name + ".shape", "has more bytes than 64 bits can count");

    const std::string field = name + ".data_offsets";
    const std::vector<int64_t> offsets = parse_sizes(field, member(name, value, "data_offsets"));
    if (offsets.size() != 2) reject(field, "must be [begin, end]");
    const int64_t data_bytes = narrow<int64_t>(file_.size()) - data_begin_;
    if (offsets[0] > offsets[1] || offsets[1] > data_bytes)
      reject(field, "[{}, {}] does not lie within the {} bytes of data", offsets[0], offsets[1], data_bytes);
    if (offsets[1] - offsets[0] != *bytes)
      reject(field, "[{}, {}] holds {} bytes, dtype and shape need {}", offsets[0], offsets[1], offsets[1] - offsets[0],
             *bytes);
    tensor.begin = data_begin_ + offsets[0];
    tensor.end = data_begin_ + offsets[1];
    return tensor;
  }

  // Tensors must follow each other without overlap or hole, from the header's end to the file's.
  void check_tiling(const SafetensorsHeader& header) const {
    std::vector<std::pair<std::pair<int64_t, int64_t>, std::string_view>> ranges;
    for (const auto& [name, tensor] : header.tensors) ranges.push_back({{tensor.begin, tensor.end}, name});
    std::sort(ranges.begin(), ranges.end());
    int64_t reached = data_begin_;
    for (const auto& [range, name] : ranges) {
      if (range.first != reached)
        reject(fmt::format("{}.data_offsets", name), "begins {} the end of the tensor before it",
               range.first < reached ? "before" : "past");
      reached = range.second;
    }
    const auto size = narrow<int64_t>(file_.size());
    if (reached != size) reject("data", "{} bytes follow the last tensor", size - reached);
  }

  std::span<const std::byte> file_;
  const std::string& file_name_;
  int64_t data_begin_ = 0;
};

// The file's bytes, mapped read-only.
std::span<const std::byte> map_file(const std::string& name) {
  const auto fail_system = [&](const char* action, int error) {
    fail(ExitCode::checkpoint, "{}: cannot {}: {}", name, action, std::generic_category().message(error));
  };
  const int descriptor = ::open(name.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) fail_system("open the file", errno);
  struct stat status {};
  const int stat_error = ::fstat(descriptor, &status) == 0 ? 0 : errno;
  const bool readable = stat_error == 0 && S_ISREG(status.st_mode) && status.st_size > 0;
  void* mapping = nullptr;
  int map_error = 0;
  if (readable) {
    mapping = ::mmap(nullptr, static_cast<size_t>(status.st_size), PROT_READ, MAP_PRIVATE, descriptor, 0);
    map_error = mapping == MAP_FAILED ? errno : 0;
  }
  ::close(descriptor);
  if (stat_error != 0) fail_system("read the file's size", stat_error);
  if (!S_ISREG(status.st_mode)) fail(ExitCode::checkpoint, "{}: is no regular file", name);
  if (status.st_size == 0) fail(ExitCode::checkpoint, "{}: the file is empty", name);
  if (map_error != 0) fail_system("map the file", map_error);
  return {static_cast<const std::byte*>(mapping), static_cast<size_t>(status.st_size)};
}

void unmap(std::span<const std::byte> mapping) { ::munmap(const_cast<std::byte*>(mapping.data()), mapping.size()); }

}  // namespace

int64_t elements_of(const TensorEntry& entry) { return bytes_of(entry) / size_of(entry.dtype); }

int64_t bytes_of(const TensorEntry& entry) {
  const auto bytes = checked_bytes(entry.shape, entry.dtype);
  QUINTET_CHECK(bytes, "the shape of tensor {} is negative or overflows", entry.name);
  return *bytes;
}

SafetensorsWriter::SafetensorsWriter(const std::filesystem::path& path, std::vector<TensorEntry> tensors,
                                     const std::map<std::string, std::string>& metadata)
    : file_(path), tensors_(std::move(tensors)) {
  const std::string text = header_text(tensors_, metadata);
  QUINTET_CHECK(narrow<int64_t>(text.size()) <= kMaxHeaderBytes, "a header of {} bytes", text.size());
  const auto length = static_cast<uint64_t>(text.size());
  file_.append(std::as_bytes(std::span(&length, 1)));
  file_.append(std::as_bytes(std::span(text)));
  if (!tensors_.empty()) left_ = bytes_of(tensors_.front());
}

// On to the first tensor that still lacks bytes; one without elements never does.
void SafetensorsWriter::skip_full_tensors() {
  while (current_ < tensors_.size() && left_ == 0)
    if (++current_ < tensors_.size()) left_ = bytes_of(tensors_[current_]);
}

void SafetensorsWriter::append(const std::string& name, std::span<const std::byte> bytes) {
  if (bytes.empty()) return;
  skip_full_tensors();
  QUINTET_CHECK(current_ < tensors_.size(), "{} comes after the last declared tensor", name);
  QUINTET_CHECK(tensors_[current_].name == name, "{} comes where {} was declared", name, tensors_[current_].name);
  const auto size = narrow<int64_t>(bytes.size());
  QUINTET_CHECK(size <= left_, "{} gets {} bytes and lacks {}", name, size, left_);
  file_.append(bytes);
  left_ -= size;
}

void SafetensorsWriter::finish() {
  skip_full_tensors();
  QUINTET_CHECK(current_ == tensors_.size(), "{} lacks {} bytes", tensors_[current_].name, left_);
  file_.commit();
}

SafetensorsHeader parse_safetensors_header(std::span<const std::byte> file, const std::string& file_name) {
  return HeaderParser(file, file_name).parse();
}

SafetensorsReader::SafetensorsReader(const std::filesystem::path& path)
    : file_name_(path.string()), mapping_(map_file(file_name_)) {
  try {
    header_ = parse_safetensors_header(mapping_, file_name_);
  } catch (...) {
    unmap(mapping_);
    throw;
  }
}

SafetensorsReader::~SafetensorsReader() { unmap(mapping_); }

const StoredTensor& SafetensorsReader::find(const std::string& name) const {
  const auto found = header_.tensors.find(name);
  if (found == header_.tensors.end())
    fail(ExitCode::checkpoint, "{}: {}: no such tensor among the file's {}", file_name_, name, header_.tensors.size());
  return found->second;
}

std::span<const std::byte> SafetensorsReader::data(const std::string& name) const {
  const StoredTensor& tensor = find(name);
  return mapping_.subspan(static_cast<size_t>(tensor.begin), static_cast<size_t>(tensor.end - tensor.begin));
}

}  // namespace quintet::checkpoint
