#include "lib/data/sample_order.h"

#include <set>

#include <catch2/catch.hpp>

#include "tests/data/fixtures.h"

namespace quintet::data {
namespace {

TEST_CASE("a window needs a token more than it has inputs", "[quick][order]") {
  CHECK(window_count(0, 4) == 0);
  CHECK(window_count(4, 4) == 0);
  CHECK(window_count(5, 4) == 1);
  CHECK(window_count(8, 4) == 1);
  CHECK(window_count(9, 4) == 2);
  CHECK(window_count((int64_t{1} << 40) + 1, 1) == int64_t{1} << 40);
}

TEST_CASE("without shuffle ordinals run through the windows, epoch after epoch", "[quick][order]") {
  SampleOrder order({.windows = {5}, .shuffle = false});
  for (int64_t n = 0; n < 23; ++n) CHECK(order.at(n).window == n % 5);
  CHECK(order.at(int64_t{5'000'000'000'003}).window == 3);
}

TEST_CASE("with shuffle each epoch meets every window once, in its own order", "[quick][order]") {
  SampleOrder order({.windows = {50}, .seed = 3, .shuffle = true});
  std::set<std::vector<int64_t>> orders;
  for (const int64_t epoch : {int64_t{0}, int64_t{1}, int64_t{2}, int64_t{1} << 40}) {
    std::vector<int64_t> windows;
    for (int64_t place = 0; place < 50; ++place) windows.push_back(order.at(epoch * 50 + place).window);
    CHECK(std::set<int64_t>(windows.begin(), windows.end()).size() == 50);
    orders.insert(windows);
  }
  CHECK(orders.size() == 4);
}

TEST_CASE("weighted sources have ordinals and epochs of their own", "[quick][order]") {
  // Source 0 has one window and is drawn half of the time.
  SampleOrder order({.windows = {1, 3}, .weights = {1, 1}, .shuffle = false});
  std::vector<int64_t> windows;
  for (int64_t n = 0; n < 100; ++n) {
    const SampleOrder::Place place = order.at(n);
    REQUIRE(place.source == n % 2);
    CHECK(place.window == (place.source == 0 ? 0 : (n / 2) % 3));
  }
}

TEST_CASE("weighted sources of one size are shuffled differently", "[quick][order]") {
  SampleOrder order({.windows = {40, 40}, .weights = {1, 1}, .seed = 3, .shuffle = true});
  std::vector<int64_t> windows[2];
  for (int64_t n = 0; n < 80; ++n) windows[n % 2].push_back(order.at(n).window);
  CHECK(windows[0] != windows[1]);
  for (const auto& each : windows) CHECK(std::set<int64_t>(each.begin(), each.end()).size() == 40);
}

}  // namespace
}  // namespace quintet::data
