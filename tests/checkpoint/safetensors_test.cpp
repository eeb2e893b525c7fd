#include "lib/checkpoint/safetensors.h"

#include <catch2/catch.hpp>

#include <cstring>

#include <fmt/format.h>

#include "lib/base/error.h"
#include "tests/support/temporary_folder.h"

namespace quintet::checkpoint {

using testing::read_whole;
using testing::TemporaryFolder;
namespace {

template <typename T>
std::span<const std::byte> bytes(const std::vector<T>& values) {
  return std::as_bytes(std::span(values));
}

// A file's bytes: length, header, then `data` bytes of data.
std::string file_of(const std::string& header, size_t data) {
  const uint64_t length = header.size();
  std::string file(reinterpret_cast<const char*>(&length), sizeof length);
  return file + header + std::string(data, 'x');
}

// The same with a header of these entries.
std::string file_with(const std::string& entries, size_t data) { return file_of(fmt::format("{{{}}}", entries), data); }

std::string message_of(const std::string& file) {
  try {
    parse_safetensors_header(std::as_bytes(std::span(file)), "weights.safetensors");
  } catch (const Error& error) {
    REQUIRE(error.code() == ExitCode::checkpoint);
    return error.what();
  }
  return "accepted";
}

template <typename Function>
std::string checkpoint_error(Function function) {
  try {
    function();
  } catch (const Error& error) {
    REQUIRE(error.code() == ExitCode::checkpoint);
    return error.what();
  }
  return "no error";
}

TEST_CASE("a safetensors file is laid out byte for byte as the format says", "[quick][safetensors]") {
  const TemporaryFolder folder;
  SafetensorsWriter writer(folder / "a.safetensors", {{"b", DType::fp32, {1, 2}}, {"a", DType::u8, {3}}});
  writer.append("b", bytes(std::vector<float>{1.0F, -2.0F}));
  writer.append("a", bytes(std::vector<uint8_t>{'x', 'y', 'z'}));
  writer.finish();

  const std::string header =
      R"({"b":{"dtype":"F32","shape":[1,2],"data_offsets":[0,8]},"a":{"dtype":"U8","shape":[3],"data_offsets":[8,11]}})";
  const std::string padded = header + std::string((8 - header.size() % 8) % 8, ' ');
  const std::string content = read_whole(folder / "a.safetensors");
  REQUIRE(content.size() == 8 + padded.size() + 11);
  uint64_t length = 0;
  std::memcpy(&length, content.data(), sizeof length);
  CHECK(length == padded.size());
  CHECK(length % 8 == 0);
  CHECK(content.substr(8, padded.size()) == padded);
  CHECK(content.substr(8 + padded.size()) == std::string("\0\0\x80\x3f\0\0\0\xc0xyz", 11));
}

TEST_CASE("every dtype, scalars, empty tensors and pieces read back as written", "[quick][safetensors]") {
  const TemporaryFolder folder;
  const auto path = folder / "all.safetensors";
  const std::vector<TensorEntry> entries = {{"none", DType::fp64, {0, 7}}, {"f64", DType::fp64, {2, 1, 2}},
                                            {"i64", DType::i64, {}},       {"f32", DType::fp32, {3}},
                                            {"i32", DType::i32, {1}},      {"bf16", DType::bf16, {2}},
                                            {"u8", DType::u8, {1}},        {"end", DType::fp32, {0}}};
  SafetensorsWriter writer(path, entries, {{"format", "pt"}});
  const std::vector<double> doubles = {1, 2, 3, 4.5};
  const std::vector<float> floats = {7, 8, 9};
  writer.append("none", {});
  writer.append("f64", bytes(doubles).first(5));
  writer.append("f64", bytes(doubles).subspan(5));
  writer.append("i64", bytes(std::vector<int64_t>{-5}));
  writer.append("f32", bytes(floats));
  writer.append("i32", bytes(std::vector<int32_t>{77}));
  writer.append("bf16", bytes(std::vector<bfloat16>{bfloat16(1), bfloat16(2)}));
  writer.append("u8", bytes(std::vector<uint8_t>{200}));
  writer.finish();

  const SafetensorsReader reader(path);
  CHECK(reader.header().metadata.at("format") == "pt");
  REQUIRE(reader.header().tensors.size() == entries.size());
  for (const TensorEntry& entry : entries) {
    CHECK(reader.find(entry.name).dtype == entry.dtype);
    CHECK(reader.find(entry.name).shape == entry.shape);
    CHECK(static_cast<int64_t>(reader.data(entry.name).size()) == bytes_of(entry));
  }
  CHECK(std::memcmp(reader.data("f64").data(), doubles.data(), 32) == 0);
  CHECK(std::memcmp(reader.data("f32").data(), floats.data(), 12) == 0);
  CHECK(reader.data("u8")[0] == std::byte{200});
  CHECK_THAT(checkpoint_error([&] { reader.find("f16"); }), Catch::Contains("f16: no such tensor"));
}

TEST_CASE("a writer refuses tensors out of order, too long, too short or twice", "[quick][safetensors]") {
  const TemporaryFolder folder;
  const auto path = folder / "a.safetensors";
  const std::vector<uint8_t> two = {1, 2};
  {
    SafetensorsWriter writer(path, {{"a", DType::u8, {2}}, {"b", DType::u8, {2}}});
    CHECK_THROWS_AS(writer.append("b", bytes(two)), CheckFailure);
    CHECK_THROWS_AS(writer.append("a", bytes(std::vector<uint8_t>{1, 2, 3})), CheckFailure);
    writer.append("a", bytes(two));
    CHECK_THROWS_AS(writer.append("a", bytes(two)), CheckFailure);
    CHECK_THROWS_AS(writer.finish(), CheckFailure);
    writer.append("b", bytes(two));
    CHECK_THROWS_AS(writer.append("c", bytes(two)), CheckFailure);
    CHECK(!std::filesystem::exists(path));
  }
  CHECK_THROWS_AS(SafetensorsWriter(path, {{"a", DType::u8, {2}}, {"a", DType::u8, {2}}}), CheckFailure);
  CHECK_THROWS_AS(SafetensorsWriter(path, {{"a", DType::fp32, {1LL << 40, 1LL << 40}}}), CheckFailure);
  CHECK(folder.empty());
}

TEST_CASE("a file that cannot be written is an error with its name and the reason, and leaves nothing behind",
          "[quick][safetensors]") {
  const TemporaryFolder folder;
  CHECK_THAT(checkpoint_error([&] { SafetensorsWriter(folder / "missing/a.safetensors", {}); }),
             Catch::Contains("missing/a.safetensors") && Catch::Contains("No such file or directory"));

  std::filesystem::create_symlink("/dev/full", folder / "a.safetensors.tmp");
  CHECK_THAT(checkpoint_error([&] {
               SafetensorsWriter(folder / "a.safetensors", {{"a", DType::u8, {2}}});
             }),
             Catch::Contains("a.safetensors") && Catch::Contains("No space left on device"));
  CHECK(folder.empty());
}

TEST_CASE("a damaged header is refused with file and field", "[quick][safetensors]") {
  const auto tensor = [](const std::string& name, const std::string& dtype, const std::string& shape,
                         const std::string& offsets) {
    return fmt::format(R"("{}":{{"dtype":"{}","shape":{},"data_offsets":{}}})", name, dtype, shape, offsets);
  };
  const std::string a = tensor("a", "F32", "[2]", "[0,8]");
  REQUIRE(message_of(file_with(a, 8)) == "accepted");
  REQUIRE(message_of(file_of("{}", 0)) == "accepted");

  struct Case {
    std::string file, expected;
  };
  const std::vector<Case> cases = {
      {"1234567", "header length: the file holds 7 bytes"},
      {file_with(a, 0).substr(0, 30), "header length: "},
      {std::string(8, '\xff'), "reaches past the end"},
      {file_of("", 8), "header: must begin with {"},
      {file_of("  {}", 0), "header: must begin with {"},
      {file_of("{\"a\":", 0), "header: "},
      {file_of("{\"a\":\"\xff\"}", 0), "header: "},
      {file_of("{\"a\":3}", 0), "a: must be an object"},
      {file_of("{\"a\":{\"dtype\":\"F32\",\"shape\":[2]}}", 8), "a: must have dtype"},
      {file_of("{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"offsets\":[0,8]}}", 8), "a.data_offsets: is missing"},
      {file_with(tensor("a", "F8", "[8]", "[0,8]"), 8), "a.dtype: \"F8\" is unknown"},
      {file_with(tensor("a", "F32", "[-2]", "[0,8]"), 8), "a.shape: -2 is not a count"},
      {file_with(tensor("a", "F32", "[2.0]", "[0,8]"), 8), "a.shape: 2.0 is not a count"},
      {file_with(tensor("a", "F32", "2", "[0,8]"), 8), "a.shape: must be a list"},
      {file_with(tensor("a", "F32", "[4611686018427387904]", "[0,8]"), 8), "a.shape: has more bytes"},
      {file_with(tensor("a", "F32", "[18446744073709551615]", "[0,8]"), 8), "is not a count below 2^63"},
      {file_with(tensor("a", "F32", "[2]", "[0,8,9]"), 8), "a.data_offsets: must be [begin, end]"},
      {file_with(tensor("a", "F32", "[2]", "[8,0]"), 8), "a.data_offsets: [8, 0] does not lie within"},
      {file_with(a, 7), "a.data_offsets: [0, 8] does not lie within the 7 bytes"},
      {file_with(tensor("a", "F32", "[2]", "[0,7]"), 8), "holds 7 bytes, dtype and shape need 8"},
      {file_with(a, 9), "data: 1 bytes follow the last tensor"},
      {file_with(a + "," + tensor("b", "U8", "[4]", "[4,8]"), 8), "b.data_offsets: begins before"},
      {file_with(a + "," + tensor("b", "U8", "[4]", "[12,16]"), 16), "b.data_offsets: begins past"},
      {file_with(tensor("a", "U8", "[4]", "[4,8]"), 8), "a.data_offsets: begins past"},
      {file_with(a + "," + a, 8), "a: stands twice"},
      {file_of("{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8),
       "stands twice"},
      {file_of("{\"__metadata__\":{\"k\":1}}", 0), "__metadata__.k: must be a string"},
      {file_of("{\"a\":[[[[]]]]}", 0), "header: is nested too deep"},
  };
  for (const Case& damaged : cases) {
    CAPTURE(damaged.file);
    CHECK_THAT(message_of(damaged.file),
               Catch::StartsWith("weights.safetensors: ") && Catch::Contains(damaged.expected));
  }
}

TEST_CASE("a file that is missing, empty or a folder is refused by name", "[quick][safetensors]") {
  const TemporaryFolder folder;
  write_file(folder / "empty", "");
  CHECK_THAT(checkpoint_error([&] { SafetensorsReader(folder / "none"); }),
             Catch::Contains("none: cannot open the file: No such file"));
  CHECK_THAT(checkpoint_error([&] { SafetensorsReader(folder / "empty"); }),
             Catch::Contains("empty: the file is empty"));
  CHECK_THAT(checkpoint_error([&] { SafetensorsReader(folder / "."); }), Catch::Contains("is no regular file"));
}

}  // namespace
}  // namespace quintet::checkpoint
