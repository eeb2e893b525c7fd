// Files, includes, overrides, and what is wrong with their text.
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "tests/config/loading.h"

namespace quintet::config {
namespace {

namespace fs = std::filesystem;

// A folder that goes with the test.
class Folder {
 public:
  Folder() {
    std::string name = (fs::temp_directory_path() / "quintet_config_XXXXXX").string();
    REQUIRE(mkdtemp(name.data()) != nullptr);
    path_ = name;
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  ~Folder() { fs::remove_all(path_); }

  std::string write(const std::string& name, const std::string& text) const {
    fs::create_directories((path_ / name).parent_path());
    std::ofstream(path_ / name) << text;
    return this->name(name);
  }
  std::string name(const std::string& file) const { return (path_ / file).string(); }

 private:
  fs::path path_;
};

std::string problems_of_file(const std::string& path, const Overrides& overrides = {}) {
  try {
    load(path, overrides, 1);
  } catch (const Error& error) {
    CHECK(error.code() == ExitCode::config);
    return error.what();
  }
  return "";
}

TEST_CASE("a misspelled key is refused with the nearest one and its place", "[quick][config][B58]") {
  CHECK(problems_after("  learning_rat: 3\n") ==
        "small.yaml:15:3: data.learning_rat: unknown key; did you mean "
        "optimizer.learning_rate?");
  CHECK(problems_of("optimizer:\n  learning_rat: 1.0e-3\n" + kSmall.substr(0, kSmall.find("optimizer"))) ==
        "small.yaml:1:1: optimizer.learning_rate: missing; expected a number of at least 0 (peak learning rate)\n"
        "small.yaml:1:1: data.train: missing; expected a path, or a list of paths or of {path, weight} (training data: "
        "files, folders or globs, with or without weights)\n"
        "small.yaml:2:3: optimizer.learning_rat: unknown key; did you mean optimizer.learning_rate?");
  CHECK(problems_after("mesh:\n  pt: 2\n") == "small.yaml:16:3: mesh.pt: unknown key; did you mean mesh.tp?");
  CHECK(problems_after("optimiser:\n  betas: [0, 0]\n") ==
        "small.yaml:15:1: optimiser: unknown key; did you mean optimizer?");
}

TEST_CASE("a hyphen for an underscore and another trainer's name are recognised", "[quick][config][B58]") {
  CHECK(problems_after("tensor-parallel: 2\n") ==
        "small.yaml:15:1: tensor-parallel: unknown key; did you mean mesh.tp?");
  CHECK(problems_after("schedule:\n  warmup-steps: 2\n") ==
        "small.yaml:16:3: schedule.warmup-steps: unknown key; did you mean schedule.warmup_steps?");
  CHECK(problems_after("Logging:\n  every: 2\n") == "small.yaml:15:1: Logging: unknown key; did you mean logging?");
}

TEST_CASE("a key at the wrong level is told where it belongs", "[quick][config][B58]") {
  CHECK(problems_after("lr: 1.0e-3\n") == "small.yaml:15:1: lr: unknown key; did you mean optimizer.learning_rate?");
  CHECK(problems_after("tp: 2\n") == "small.yaml:15:1: tp: unknown key; did you mean mesh.tp?");
  CHECK(problems_after("parallel:\n  stage: 1\n") ==
        "small.yaml:16:3: parallel.stage: unknown key; did you mean parallel.zero.stage?");
  CHECK(problems_after("every: 3\n") ==
        "small.yaml:15:1: every: unknown key; did you mean model.moe.every, checkpoint.every or logging.every?");
  CHECK(problems_after("mesh.tp: 2\n") == "small.yaml:15:1: mesh.tp: unknown key; write tp below mesh:");
  CHECK(problems_after("mesh:\n  include: [a.yaml]\n") ==
        "small.yaml:16:3: mesh.include: unknown key; below mesh choose dp, tp, pp, ep, cp or order");
}

TEST_CASE("a key that resembles none lists what there is", "[quick][config][B58]") {
  CHECK(problems_after("mesh:\n  zzzzzzzz: 2\n") ==
        "small.yaml:16:3: mesh.zzzzzzzz: unknown key; below mesh choose dp, tp, pp, ep, cp or order");
  CHECK(problems_after("zzzzzzzz: 2\n") ==
        "small.yaml:15:1: zzzzzzzz: unknown key; choose one of the sections run, mesh, device, model, parallel, "
        "precision, "
        "train, optimizer, schedule, data, checkpoint, logging or fault");
}

TEST_CASE("the same key twice is refused, in sections and of sections", "[quick][config][B58]") {
  CHECK(problems_after("  train: other.txt\n") ==
        "small.yaml:15:3: data.train: duplicate key; it stands in line 14 already, remove one of the two");
  CHECK(problems_after("model:\n  layers: 2\n") ==
        "small.yaml:15:1: model: duplicate key; it stands in line 3 already, remove one of the two");
  CHECK(problems_after("parallel: {zero: {stage: 0, stage: 1}}\n") ==
        "small.yaml:15:29: parallel.zero.stage: duplicate key; it stands in line 15 already, remove one of the two");
}

TEST_CASE("an empty section means its defaults and misses what has none", "[quick][config][B58]") {
  CHECK(problems_after("mesh:\nparallel:\n  zero:\nlogging: {}\n").empty());
  CHECK(problems_after("mesh: null\n").empty());
  CHECK(
      problems_of("run:\n" + kSmall.substr(kSmall.find("model:"))) ==
      "small.yaml:1:1: run.name: missing; expected the name of a folder, without / (name of the run; its output folder "
      "is run.dir/run.name)");
  CHECK(problems_of(kSmall + "fault:\n", {"model.moe="}).find("model.moe.experts: missing") != std::string::npos);
}

TEST_CASE("a section that is a list or a value is refused", "[quick][config][B58]") {
  CHECK(problems_after("mesh:\n  - tp: 1\n") ==
        "small.yaml:16:3: mesh: expects keys below it, such as dp; found a list");
  CHECK(problems_after("mesh: 4\n") == "small.yaml:15:7: mesh: expects keys below it, such as dp; found 4");
  CHECK(problems_after("parallel:\n  zero: 2\n") ==
        "small.yaml:16:9: parallel.zero: expects keys below it, such as stage; found 2");
}

TEST_CASE("YAML that is none is refused with line and column", "[quick][config][B58]") {
  CHECK(problems_after("mesh:\n\ttp: 2\n") == "small.yaml:16:1: a tab cannot indent YAML; use spaces");
  CHECK(problems_after("mesh:\n  \ttp: 2\n") == "small.yaml:16:3: a tab cannot indent YAML; use spaces");
  CHECK_THAT(problems_after("mesh: [1, 2\n"), Catch::StartsWith("small.yaml:16:1: not valid YAML: "));
  CHECK_THAT(problems_after("mesh: {tp: 1}}\n"), Catch::StartsWith("small.yaml:15:14: not valid YAML: "));
  for (const std::string open : {"\"tp", "'tp", "\"tp\\\"", "'it''s\n  on"}) {
    CHECK_THAT(problems_after("mesh: " + open + "\n"),
               Catch::StartsWith("small.yaml:15:7: a quote is opened here and never closed"));
  }
  CHECK_THAT(problems_after("mesh: *axes\n"), Catch::Contains("in quotes if it starts with *"));
  CHECK(problems_after("---\nmesh:\n") == "small.yaml:1:1: holds more than one YAML document; write one file each");
  CHECK(problems_after("mesh:\n  tp: !!int 1\n") == "small.yaml:16:7: tags are not read; write the value alone");
  CHECK(problems_after("a: &b 1\nc: *b\n").find("small.yaml:16:4: aliases are not read") != std::string::npos);
  CHECK(problems_after("? [a]\n: 1\n").find("small.yaml:15:3: a key must be a plain word") != std::string::npos);
  CHECK(problems_of("- a\n- b\n") == "small.yaml:1:1: expects sections such as model and train; found a list");
  CHECK(problems_of("hello\n") == "small.yaml:1:1: expects sections such as model and train; found hello");
}

TEST_CASE("an empty file misses every required key", "[quick][config]") {
  for (const std::string text : {"", "\n\n", "# nothing\n", "---\n", "null\n"}) {
    const std::string message = problems_of(text);
    CHECK_THAT(message, Catch::StartsWith("small.yaml:1:1: run.name: missing"));
    CHECK(std::count(message.begin(), message.end(), '\n') == 8);
  }
}

TEST_CASE("all problems are listed in one go, in the order of the file", "[quick][config]") {
  CHECK(problems_of("data:\n"
                    "  train: a.txt\n"
                    "  shufle: true\n"
                    "optimizer:\n"
                    "  betas: [0.9, 2]\n"
                    "train:\n"
                    "  steps: 1e3\n"
                    "  global_batch_size: 7\n"
                    "run: {name: x}\n"
                    "model: {seq_length: 32, layers: 4, hidden_size: 64, heads: 8}\n",
                    {"mesh.dp=2"}, 2) ==
        "small.yaml:3:3: data.shufle: unknown key; did you mean data.shuffle?\n"
        "small.yaml:4:1: optimizer.learning_rate: missing; expected a number of at least 0 (peak learning rate)\n"
        "small.yaml:5:16: optimizer.betas: 2 is out of range; expected two numbers from 0 to below 1\n"
        "small.yaml:7:10: train.steps: 1e3 is not written as an integer; write 1000\n"
        "small.yaml:8:22: train.global_batch_size: 7 is not a multiple of train.micro_batch_size * mesh.dp * mesh.ep "
        "(1 * "
        "2 * 1 = 2); choose 6 or 8");
}

TEST_CASE("the command line beats the file, and the last of two wins", "[quick][config]") {
  CHECK(load_small({"train.steps=20"}).train.steps == 20);
  CHECK(load_small({"train.steps=20", "train.steps=30"}).train.steps == 30);
  CHECK(load_small({"train={steps: 20, eval_steps: 3}"}).train.eval_steps == 3);
  CHECK(load_small({"data.train=a=b.txt"}).data.train[0].path == "a=b.txt");
  CHECK(problems_of(kSmall.substr(0, kSmall.find("data:")) + "data:\n  train: []\n", {"data.train=a"}).empty());
}

TEST_CASE("a wrong override is named as it was written", "[quick][config]") {
  CHECK(problems_with({"mesh.tpp=2"}) == "command line: mesh.tpp=2: unknown key; did you mean mesh.tp?");
  CHECK(problems_with({"steps"}) == "command line: steps: expects KEY=VALUE, such as mesh.tp=4");
  CHECK(problems_with({"=3"}) == "command line: =3: expects KEY=VALUE, such as mesh.tp=4");
  CHECK_THAT(problems_with({"mesh.order=[tp"}), Catch::StartsWith("command line: mesh.order=[tp: not valid YAML: "));
  CHECK(problems_with({"data.train=*.txt"}) ==
        "command line: data.train=*.txt: aliases are not read; write the value itself, in quotes if it starts with *");
  CHECK(problems_with({"mesh={tpp: 2}"}) ==
        "command line: mesh={tpp: 2}: mesh.tpp: unknown key; did you mean mesh.tp?");
  CHECK(problems_with({"mesh=4"}) == "command line: mesh=4: expects keys below it, such as dp; found 4");
  CHECK(problems_with({"train.steps=x", "mesh.dp=y"}) ==
        "command line: train.steps=x: x does not fit; expected an integer of at least 1\n"
        "command line: mesh.dp=y: y does not fit; expected an integer of at least 1, or auto");
}

TEST_CASE("includes merge, later ones win and the file itself wins over all", "[quick][config]") {
  const Folder folder;
  folder.write("shared/base.yaml", "include: [deep.yaml]\n" + kSmall + "logging: {every: 5}\n");
  folder.write("shared/deep.yaml", "logging: {every: 4}\nfault: {max_skipped_steps: 4}\n");
  folder.write("second.yaml", "train: {steps: 77}\nmodel: {layers: 3}\n");
  const std::string main = folder.write("main.yaml", "model: {layers: 2}\ninclude: [shared/base.yaml, second.yaml]\n");
  const Config config = load(main, Overrides{}, 1);
  CHECK(config.model.layers == 2);
  CHECK(config.train.steps == 77);
  CHECK(config.logging.every == 5);
  CHECK(config.fault.max_skipped_steps == 4);
  CHECK(config.run.name == "small");
  CHECK(load(main, Overrides{"model.layers=9"}, 1).model.layers == 9);
}

TEST_CASE("a problem names the file that the value came from", "[quick][config]") {
  const Folder folder;
  folder.write("base.yaml", kSmall + "mesh:\n  tq: 2\n");
  const std::string main = folder.write("main.yaml", "include: [base.yaml]\ntrain:\n  steps: many\n");
  CHECK(problems_of_file(main) == main + ":3:10: train.steps: many does not fit; expected an integer of at least 1\n" +
                                      folder.name("base.yaml") + ":16:3: mesh.tq: unknown key; did you mean mesh.tp?");
}

TEST_CASE("an include that cannot be read or includes itself is refused where it stands", "[quick][config]") {
  const Folder folder;
  const std::string main = folder.write("main.yaml", kSmall + "include:\n  - missing.yaml\n");
  CHECK(problems_of_file(main) == main + ":16:5: include: " + folder.name("missing.yaml") + ": no such file");

  folder.write("b.yaml", "include: [c.yaml]\n");
  const std::string c = folder.write("c.yaml", "\ninclude: [b.yaml]\n" + kSmall);
  CHECK_THAT(problems_of_file(c),
             Catch::StartsWith(folder.name("b.yaml") + ":1:11: include: " + c + " includes itself"));

  for (const std::string value : {"base.yaml", "[[a]]", "{a: b}", "[\"\"]"}) {
    const std::string file = folder.write("main.yaml", kSmall + "include: " + value + "\n");
    CHECK_THAT(problems_of_file(file),
               Catch::StartsWith(file + ":15:10: include: expects a list of files such as [base.yaml]; found "));
  }
}

TEST_CASE("a config that is missing, a folder or unreadable says so", "[quick][config]") {
  const Folder folder;
  CHECK(problems_of_file(folder.name("none.yaml")) == folder.name("none.yaml") + ": no such file");
  CHECK(problems_of_file(folder.name("")) == folder.name("") + ": is a folder; name a YAML file");
  CHECK(problems_of_file("/dev/null") == "/dev/null: is not a regular file");
  const std::string secret = folder.write("secret.yaml", kSmall);
  REQUIRE(chmod(secret.c_str(), 0) == 0);
  if (geteuid() != 0) CHECK(problems_of_file(secret) == secret + ": cannot be read: Permission denied");
  const std::string large = folder.write("large.yaml", std::string(2 << 20, '#'));
  CHECK(problems_of_file(large) == large + ": has 2097152 bytes; a config has at most 1048576");
}

}  // namespace
}  // namespace quintet::config
