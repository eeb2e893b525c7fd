#include "lib/data/text_source.h"

#include <sys/stat.h>
#include <unistd.h>

#include <catch2/catch.hpp>

#include "lib/data/inspect.h"
#include "tests/data/fixtures.h"

namespace quintet::data {
namespace {

TEST_CASE("a text source is the bytes of its files, one behind the other", "[quick][text]") {
  const TemporaryFolder folder;
  const TextSource source("data.train", {folder.write("a", std::string("\x00\x7f\xff", 3)), folder.write("b", "z"),
                                         folder.write("c", "end")});
  const std::vector<int32_t> all = {0, 127, 255, 'z', 'e', 'n', 'd'};
  REQUIRE(source.token_count() == 7);
  for (int64_t begin = 0; begin <= 7; ++begin)
    for (int64_t end = begin; end <= 7; ++end) {
      std::vector<int32_t> read(static_cast<size_t>(end - begin), -7);
      source.read(begin, read);
      CHECK(read == std::vector<int32_t>(all.begin() + begin, all.begin() + end));
    }
  std::vector<int32_t> beyond(2);
  CHECK_THROWS_AS(source.read(6, beyond), CheckFailure);
  CHECK_THROWS_AS(source.read(-1, beyond), CheckFailure);
}

TEST_CASE("each text file is one document", "[quick][text]") {
  const TemporaryFolder folder;
  const std::vector<std::string> paths = {folder.write("a", "aaa"), folder.write("b", "b"), folder.write("c", "cc")};
  const auto source = std::make_shared<TextSource>("data.train", paths);
  const auto starts = [&](int64_t begin, int64_t end) { return source->document_starts(begin, end); };
  CHECK(starts(0, 6) == std::vector<int64_t>{0, 3, 4});
  CHECK(starts(0, 3) == std::vector<int64_t>{0});
  CHECK(starts(1, 3).empty());
  CHECK(starts(3, 4) == std::vector<int64_t>{3});
  CHECK(starts(4, 7) == std::vector<int64_t>{4});
  CHECK(starts(5, 6).empty());
  CHECK(TokenRange(source).part(2, 4).document_starts(0, 4) == std::vector<int64_t>{1, 2});
}

TEST_CASE("a byte can end documents within a text file", "[quick][text][documents]") {
  const TemporaryFolder folder;
  const std::vector<std::string> paths = {folder.write("a", "%a%%b%"), folder.write("b", "c%d")};
  const TextSource source("data.train", paths, '%');
  CHECK(source.document_starts(0, 9) == std::vector<int64_t>{0, 1, 3, 4, 6, 8});
  CHECK(source.document_starts(1, 2) == std::vector<int64_t>{1});
  CHECK(source.document_starts(2, 3).empty());
  CHECK(source.document_starts(7, 9) == std::vector<int64_t>{8});
  CHECK(TextSource("data.train", {folder.write("c", "a%")}, '%').document_starts(0, 2) == std::vector<int64_t>{0});
}

TEST_CASE("a part of a range stays within it", "[quick][text]") {
  const TokenRange all(std::make_shared<CountingSource>(100));
  const TokenRange part = all.part(10, 50).part(5, 20);
  std::vector<int32_t> tokens(20);
  part.read(0, tokens);
  CHECK(tokens.front() == 15);
  CHECK(tokens.back() == 34);
  CHECK_THROWS_AS(part.read(1, tokens), CheckFailure);
  CHECK_THROWS_AS(all.part(60, 41), CheckFailure);
}

TEST_CASE("empty and unreadable files are refused by name", "[quick][text][errors]") {
  const TemporaryFolder folder;
  const std::string good = folder.write("good", "text"), empty = folder.write("none", "");
  const auto refusal = [](const std::vector<std::string>& paths) {
    return refusal_of([&] { TextSource("data.validation", paths); });
  };
  const Refusal on_empty = refusal({good, empty});
  CHECK(on_empty.code == ExitCode::data);
  CHECK(on_empty.names("data.validation: " + empty + " is empty"));

  std::filesystem::create_symlink("nowhere", folder.path("dangling.txt"));
  const std::vector<std::string> paths = {folder.path()};
  const Refusal on_dangling = refusal_of([&] { open_source("data.train", paths, {}); });
  CHECK(on_dangling.code == ExitCode::data);
  CHECK(on_dangling.names("data.train: " + folder.path("dangling.txt") + " cannot be read"));

  if (geteuid() == 0) return;  // root reads everything
  REQUIRE(chmod(good.c_str(), 0) == 0);
  const Refusal on_unreadable = refusal({good});
  CHECK(on_unreadable.code == ExitCode::data);
  CHECK(on_unreadable.names(good + " cannot be read"));
}

TEST_CASE("a format or tokenizer that is not built in is refused by name", "[quick][text][errors]") {
  const std::vector<std::string> paths = {"/dev/null"};
  const auto refusal = [&](const Reading& reading) {
    return refusal_of([&] { open_source("data.train", paths, reading); });
  };
  CHECK(refusal({.format = "megatron"}).code == ExitCode::config);
  CHECK(refusal({.format = "megatron"}).names("data.format: megatron"));
  CHECK(refusal({.tokenizer = "t.model"}).code == ExitCode::config);
  CHECK(refusal({.tokenizer = "t.model"}).names("data.tokenizer: t.model"));
  CHECK(vocabulary_size("bytes") == 256);
}

TEST_CASE("format auto takes no file whose name says that it is not text", "[quick][text][errors]") {
  const TemporaryFolder folder;
  const auto refusal = [](const std::string& path, const std::string& format) {
    const std::vector<std::string> paths = {path};
    return refusal_of([&] { open_source("data.train", paths, {.format = format}); });
  };
  for (const std::string extension : {".jsonl", ".json", ".bin", ".idx", ".npy", ".npz", ".gz", ".zst", ".xz", ".zip",
                                      ".parquet", ".arrow", ".JSONL", ".txt.gz"}) {
    const std::string path = folder.write("corpus" + extension, "bytes");
    const Refusal refused = refusal(path, "auto");
    CHECK(refused.code == ExitCode::config);
    CHECK(refused.names("data.train: " + path + " looks like "));
    CHECK(refused.names(
        ", which data.format auto does not read yet; write data.format: text to train on its bytes as they are"));
    CHECK(refusal(path, "text").code == ExitCode::success);
  }
  const std::vector<std::string> lines = {folder.path("corpus.jsonl")};
  CHECK(refusal(lines[0], "auto").names("looks like JSON lines,"));
  CHECK(open_source("data.train", lines, {.format = "text"})->token_count() == 5);
  CHECK(refusal(folder.path("corpus.*"), "auto").code == ExitCode::config);  // a glob is judged file by file
  for (const std::string name : {"plain", "a.txt", "a.log", "a.json.txt", "bin"})
    CHECK(refusal(folder.write(name, "text"), "auto").code == ExitCode::success);
}

TEST_CASE("inspect counts files, bytes, tokens and windows", "[quick][text]") {
  const TemporaryFolder folder;
  folder.write("a", counting_text(40));
  folder.write("b.txt", counting_text(25));
  const std::vector<std::string> paths = {folder.path()};
  const Inspection seen = inspect(paths, 32);
  REQUIRE(seen.files.size() == 2);
  CHECK(seen.files[1].path == folder.path("b.txt"));
  CHECK(seen.files[1].bytes == 25);
  CHECK(seen.bytes == 65);
  CHECK(seen.tokens == 65);
  CHECK(seen.windows == 2);
  CHECK(inspect(paths, 33).windows == 1);
  CHECK(inspect(paths, 65).windows == 0);
}

}  // namespace
TEST_CASE("a file that shrinks or goes under a run is an error that names it", "[quick][text]") {
  const TemporaryFolder folder;
  const std::string path = folder.write("text.txt", counting_text(100));
  const TextSource source("data.train", {path});
  std::vector<int32_t> tokens(50);
  source.read(50, tokens);
  folder.write("text.txt", counting_text(60));
  REQUIRE_THROWS_WITH(source.read(50, tokens), Catch::Contains(path) && Catch::Contains("ends at byte 60"));
  std::filesystem::remove(path);
  REQUIRE_THROWS_WITH(source.read(0, tokens), Catch::Contains(path));
}

}  // namespace quintet::data
