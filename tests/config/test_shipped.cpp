// The configs that a user starts from.
#include <filesystem>

#include <catch2/catch.hpp>

#include "lib/config/load.h"

namespace quintet::config {

TEST_CASE("three steps try any config", "[quick][config]") {
  int64_t configs = 0;
  for (const auto& entry : std::filesystem::directory_iterator(QUINTET_CONFIGS)) {
    if (entry.path().extension() != ".yaml") continue;
    CAPTURE(entry.path());
    const std::vector<std::string> overrides = {"train.steps=3"};
    CHECK(load(entry.path().string(), overrides, 0).train.steps == 3);
    ++configs;
  }
  CHECK(configs >= 6);
}

}  // namespace quintet::config
