#include "lib/data/paths.h"

#include <sys/stat.h>
#include <unistd.h>

#include <catch2/catch.hpp>

#include "tests/data/fixtures.h"

namespace quintet::data {
namespace {

Refusal refusal_of_path(const std::string& path) {
  return refusal_of([&] { expand_path("data.train", path); });
}

TEST_CASE("a folder gives its visible text files sorted by bytes, as in Debian's fortunes", "[quick][paths]") {
  const TemporaryFolder folder;
  for (const char* name : {"zippy", "art", "Law", "men-women", "b.txt", "a.text", "read.md", "\xc3\xa4rger"})
    folder.write(name, "x");
  for (const char* name : {"art.dat", ".hidden", ".hidden.txt", "page.html", "inner/deep.txt"}) folder.write(name, "x");
  std::filesystem::create_symlink("art", folder.path("art.u8"));
  std::filesystem::create_symlink("art", folder.path("linked"));
  std::vector<std::string> expected;
  for (const char* name : {"Law", "a.text", "art", "b.txt", "linked", "men-women", "read.md", "zippy", "\xc3\xa4rger"})
    expected.push_back(folder.path(name));
  CHECK(expand_path("data.train", folder.path()) == expected);
}

TEST_CASE("a glob gives every matching regular file sorted by bytes", "[quick][paths]") {
  const TemporaryFolder folder;
  for (const char* name : {"b.log", "a.log", "B.log", ".c.log", "a.txt"}) folder.write(name, "x");
  std::filesystem::create_directory(folder.path("folder.log"));
  CHECK(expand_path("data.train", folder.path("*.log")) ==
        std::vector<std::string>{folder.path("B.log"), folder.path("a.log"), folder.path("b.log")});
  CHECK(expand_path("data.train", folder.path("[ab].log")) ==
        std::vector<std::string>{folder.path("a.log"), folder.path("b.log")});
}

TEST_CASE("a file is taken whatever its name, even with glob characters in it", "[quick][paths]") {
  const TemporaryFolder folder;
  const std::string odd = folder.write("part[1].dat", "x");
  folder.write("part1.dat", "x");
  CHECK(expand_path("data.train", odd) == std::vector<std::string>{odd});
}

TEST_CASE("a list keeps its order and its duplicates", "[quick][paths]") {
  const TemporaryFolder folder;
  const std::string a = folder.write("a", "x"), b = folder.write("b", "x");
  const std::vector<std::string> list = {b, folder.path(), b};
  CHECK(expand_paths("data.train", list) == std::vector<std::string>{b, a, b, b});
}

TEST_CASE("relative paths start at the working directory and ~ means nothing", "[quick][paths]") {
  const TemporaryFolder folder;
  const std::string file = folder.write("a", "x");
  const std::string relative = std::filesystem::relative(file).string();
  CHECK(expand_path("data.train", relative) == std::vector<std::string>{relative});
  CHECK(refusal_of_path("~").names("~ does not exist"));
}

TEST_CASE("what cannot be a list of files is refused by name", "[quick][paths][errors]") {
  const TemporaryFolder folder;
  const std::string file = folder.write("a.dat", "x");
  const auto check = [](const std::string& path, const std::string& expected) {
    const Refusal refusal = refusal_of_path(path);
    INFO(refusal.message);
    CHECK(refusal.code == ExitCode::data);
    CHECK(refusal.names("data.train: "));
    CHECK(refusal.names(expected));
  };
  check("", "the path is empty");
  check(folder.path("missing.txt"), folder.path("missing.txt") + " does not exist");
  check(file + "/below", file + "/below");
  check(folder.path("*.txt"), "no file matches " + folder.path("*.txt"));
  check(folder.path("missing/*.txt"), "no file matches " + folder.path("missing/*.txt"));
  check(folder.path(), "folder " + folder.path() + " holds no text file");
  check("/dev/null", "/dev/null is not a regular file");
  REQUIRE(mkfifo(folder.path("pipe").c_str(), 0600) == 0);
  check(folder.path("pipe"), folder.path("pipe") + " is not a regular file");
  std::filesystem::create_symlink("loop", folder.path("loop"));
  check(folder.path("loop"), folder.path("loop") + " cannot be read");
}

}  // namespace
}  // namespace quintet::data
