#include "lib/base/error.h"

#include <catch2/catch.hpp>

#include <thread>

using namespace quintet;

TEST_CASE("fail carries the exit code and the formatted message", "[quick][error]") {
  try {
    fail(ExitCode::data, "{}: {} is empty", "train.txt", 3);
    FAIL("did not throw");
  } catch (const Error& error) {
    CHECK(error.code() == ExitCode::data);
    CHECK(std::string(error.what()) == "train.txt: 3 is empty");
  }
}

TEST_CASE("a failed check names expression, place, detail and rank", "[quick][error]") {
  set_rank_label("rank 5 (dp 0, tp 1)");
  const int value = 3;
  std::string message;
  try {
    QUINTET_CHECK(value == 4, "value is {}", value);
  } catch (const CheckFailure& failure) {
    message = failure.what();
  }
  set_rank_label("");
  CHECK_THAT(message, Catch::Contains("error_test.cpp:") && Catch::Contains("value == 4") &&
                          Catch::Contains("value is 3") && Catch::Contains("on rank 5 (dp 0, tp 1)"));
  CHECK_NOTHROW([] { QUINTET_CHECK(true); }());
}

TEST_CASE("a rank label belongs to its thread", "[quick][error]") {
  set_rank_label("rank 0");
  std::string other = "unset";
  std::thread([&other] { other = rank_label(); }).join();
  CHECK(other.empty());
  CHECK(rank_label() == "rank 0");
  set_rank_label("");
}
