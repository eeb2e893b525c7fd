#include "lib/data/dataset.h"

#include <cmath>
#include <limits>
#include <set>

#include <catch2/catch.hpp>

#include "tests/data/fixtures.h"

namespace quintet::data {
namespace {

TEST_CASE("a sample is S inputs and the token behind, and neighbours share a token", "[quick][dataset]") {
  const TemporaryFolder folder;
  Dataset dataset(options_of({{folder.write("a", counting_text(35))}}, 8));
  REQUIRE(dataset.windows() == 4);
  for (int64_t n = 0; n < 12; ++n) CHECK(sample_of(dataset, n) == counting_tokens(9, n % 4 * 8));
}

TEST_CASE("windows of a list without weights span its files in the listed order", "[quick][dataset]") {
  const TemporaryFolder folder;
  const std::string late = folder.write("late", counting_text(30, 5)), early = folder.write("early", counting_text(5));
  Dataset dataset(options_of({{early}, {late}}, 4));
  REQUIRE(dataset.windows() == 8);
  for (int64_t n = 0; n < 8; ++n) CHECK(sample_of(dataset, n) == counting_tokens(5, n * 4));
  REQUIRE(dataset.summary().size() == 1);
  CHECK(dataset.summary()[0].files == 2);
  CHECK(dataset.summary()[0].tokens == 35);
  CHECK(dataset.summary()[0].windows == 8);
}

TEST_CASE("files too short for a window alone make windows together", "[quick][dataset]") {
  const TemporaryFolder folder;
  for (int64_t i = 0; i < 9; ++i) folder.write("part" + std::to_string(i), counting_text(2, 2 * i));
  Dataset dataset(options_of({{folder.path()}}, 16));
  REQUIRE(dataset.windows() == 1);
  CHECK(sample_of(dataset, 0) == counting_tokens(17));
}

TEST_CASE("with weights each entry is a source, drawn by the blend", "[quick][dataset]") {
  const TemporaryFolder folder;
  const std::string a = folder.write("a", counting_text(5)), b = folder.write("b", counting_text(33, 100));
  Dataset dataset(options_of({{a, 1.5}, {b, 1.5}}, 4));
  CHECK(dataset.windows() == 9);
  for (int64_t n = 0; n < 40; ++n)
    CHECK(sample_of(dataset, n) == (n % 2 == 0 ? counting_tokens(5) : counting_tokens(5, 100 + n / 2 % 8 * 4)));
  CHECK(dataset.summary()[1].share == 0.5);
  CHECK(dataset.summary()[1].name == b);

  Dataset without(options_of({{a, 0}, {b, 2}}, 4));
  CHECK(without.windows() == 8);
  for (int64_t n = 0; n < 10; ++n) CHECK(sample_of(without, n)[0] >= 100);
}

TEST_CASE("a copy of a dataset answers alike and on its own", "[quick][dataset]") {
  const TemporaryFolder folder;
  Dataset dataset(
      options_of({{folder.write("a", counting_text(100)), 1}, {folder.write("b", counting_text(90)), 2}}, 4, true));
  Dataset copy = dataset;
  for (const int64_t n : {900, 3, 0, 41, 5000}) {
    sample_of(copy, n + 1);
    CHECK(sample_of(dataset, n) == sample_of(copy, n));
  }
}

TEST_CASE("sources past 2^32 tokens are read at the right place", "[quick][dataset]") {
  constexpr int64_t kTokens = int64_t{1} << 40;
  Dataset plain = counting_dataset(kTokens, 1024, false);
  REQUIRE(plain.windows() == (int64_t{1} << 30) - 1);
  const int64_t window = plain.windows() - 2;
  const std::vector<int32_t> sample = sample_of(plain, plain.windows() * 3000 + window);
  CHECK(sample.front() == CountingSource::token(window * 1024));
  CHECK(sample.back() == CountingSource::token(window * 1024 + 1024));

  Dataset shuffled = counting_dataset(kTokens, 1024, true);
  std::set<std::vector<int32_t>> seen;
  for (int64_t n = 0; n < 100; ++n) seen.insert(sample_of(shuffled, plain.windows() * 3000 + n));
  CHECK(seen.size() == 100);
}

TEST_CASE("a validation fraction is the last floor(f*T) tokens of each source", "[quick][dataset][validation]") {
  const TemporaryFolder folder;
  const std::string text = folder.write("a", counting_text(103));
  Split split = open_split(options_of({{text}}, 4, true), {.fraction = 0.25});  // floor(25.75) = 25
  REQUIRE(split.validation);
  CHECK(split.training.summary()[0].tokens == 78);
  CHECK(split.training.windows() == 19);
  CHECK(split.validation->summary()[0].tokens == 25);
  REQUIRE(split.validation->windows() == 6);
  for (int64_t n = 0; n < 6; ++n) CHECK(sample_of(*split.validation, n) == counting_tokens(5, 78 + 4 * n));
  for (int64_t n = 0; n < 19 * 3; ++n)
    for (const int32_t token : sample_of(split.training, n)) CHECK(token < 78);
}

TEST_CASE("a fraction cuts the joined list once but every weighted entry", "[quick][dataset][validation]") {
  const TemporaryFolder folder;
  const std::string a = folder.write("a", counting_text(50)), b = folder.write("b", counting_text(100, 50));
  Split joined = open_split(options_of({{a}, {b}}, 4), {.fraction = 0.1});
  CHECK(joined.training.summary()[0].tokens == 135);
  CHECK(sample_of(*joined.validation, 0) == counting_tokens(5, 135));

  Split weighted = open_split(options_of({{a, 1}, {b, 1}}, 4), {.fraction = 0.1});
  CHECK(weighted.training.summary()[0].tokens == 45);
  CHECK(weighted.training.summary()[1].tokens == 90);
  CHECK(sample_of(*weighted.validation, 0) == counting_tokens(5, 45));
  CHECK(sample_of(*weighted.validation, 1) == counting_tokens(5, 140));
}

TEST_CASE("validation entries are sources of their own in plain order", "[quick][dataset][validation]") {
  const TemporaryFolder folder;
  const std::string a = folder.write("a", counting_text(100)), v = folder.write("v", counting_text(41, 100));
  Split split = open_split(options_of({{a}}, 4, true), {.entries = {{v}}});
  REQUIRE(split.validation);
  CHECK(split.training.summary()[0].tokens == 100);
  REQUIRE(split.validation->windows() == 10);
  for (int64_t n = 0; n < 10; ++n) CHECK(sample_of(*split.validation, n) == counting_tokens(5, 100 + 4 * n));
  CHECK_FALSE(open_split(options_of({{a}}, 4), {}).validation);
}

TEST_CASE("too little data is refused with the file named", "[quick][dataset][errors]") {
  const TemporaryFolder folder;
  const std::string a = folder.write("a.txt", counting_text(32)), b = folder.write("b.txt", counting_text(100));
  const auto check = [](const Refusal& refusal, const std::string& expected) {
    INFO(refusal.message);
    CHECK(refusal.code == ExitCode::data);
    CHECK(refusal.names(expected));
  };
  const auto open = [](const DatasetOptions& options) { return refusal_of([&] { Dataset{options}; }); };
  check(open(options_of({{a}}, 32)), "data.train: " + a + " holds 32 tokens");
  CHECK(open(options_of({{a}}, 31)).code == ExitCode::success);
  check(open(options_of({{b, 1}, {a, 1}}, 32)), "data.train: " + a + " holds 32 tokens");
  check(open(options_of({{folder.path("c.txt")}}, 32)), folder.path("c.txt") + " does not exist");
  const auto split = [](const DatasetOptions& options, const ValidationOptions& validation) {
    return refusal_of([&] { open_split(options, validation); });
  };
  check(split(options_of({{b}}, 32), {.fraction = 0.32}),
        "data.validation: the last 0.32 of " + b + " holds 32 tokens");
  check(split(options_of({{b}}, 32), {.fraction = 0.7}), "data.train: " + b + " holds 30 tokens");
  check(split(options_of({{b}}, 32), {.entries = {{a}}}), "data.validation: " + a + " holds 32 tokens");
  check(split(options_of({{b}}, 32), {.entries = {{folder.path("v")}}}), "data.validation: " + folder.path("v"));
}

TEST_CASE("weights on some entries and impossible fractions are refused", "[quick][dataset][errors]") {
  const TemporaryFolder folder;
  const std::string a = folder.write("a.txt", counting_text(100));
  const Refusal mixed = refusal_of([&] { Dataset{options_of({{a, 1}, {a}}, 8)}; });
  CHECK(mixed.code == ExitCode::config);
  CHECK(mixed.names("data.train[1]: " + a + " has no weight"));
  CHECK(refusal_of([&] { Dataset{options_of({}, 8)}; }).code == ExitCode::config);
  CHECK(refusal_of([&] { Dataset{options_of({{a, 1}, {a, -1}}, 8)}; }).names("data.train[1].weight: -1"));
  for (const double fraction : {-0.1, 1.0, 2.0, std::nan("")}) {
    const Refusal refusal = refusal_of([&] { open_split(options_of({{a}}, 8), {.fraction = fraction}); });
    CHECK(refusal.code == ExitCode::config);
    CHECK(refusal.names("data.validation: "));
  }
}

}  // namespace
}  // namespace quintet::data
