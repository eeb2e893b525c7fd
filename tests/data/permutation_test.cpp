#include "lib/data/permutation.h"

#include <algorithm>
#include <limits>
#include <set>
#include <vector>

#include <catch2/catch.hpp>

#include "lib/base/error.h"

namespace quintet::data {
namespace {

std::vector<int64_t> whole(int64_t size, uint64_t seed = 1, int64_t epoch = 0, int64_t source = 0) {
  const Permutation permutation(size, seed, epoch, source);
  std::vector<int64_t> image;
  for (int64_t place = 0; place < size; ++place) image.push_back(permutation(place));
  return image;
}

bool is_bijection(std::vector<int64_t> image) {
  std::sort(image.begin(), image.end());
  for (size_t i = 0; i < image.size(); ++i)
    if (image[i] != static_cast<int64_t>(i)) return false;
  return true;
}

TEST_CASE("the shuffle meets every window once an epoch", "[quick][shuffle]") {
  for (int64_t size = 1; size <= 200; ++size) {
    INFO("size " << size);
    for (int64_t epoch = 0; epoch < 2; ++epoch) REQUIRE(is_bijection(whole(size, 1234, epoch)));
  }
  for (const int64_t size : {4095, 4096, 4097, 65537, 100000}) {
    INFO("size " << size);
    REQUIRE(is_bijection(whole(size)));
  }
}

TEST_CASE("seed, epoch and source each change the shuffle, and nothing else does", "[quick][shuffle]") {
  const std::vector<int64_t> image = whole(1000, 1, 0, 0);
  CHECK(whole(1000, 1, 0, 0) == image);
  CHECK(whole(1000, 2, 0, 0) != image);
  CHECK(whole(1000, 1, 1, 0) != image);
  CHECK(whole(1000, 1, 0, 1) != image);
  CHECK(whole(1000, 1, 0, 1) != whole(1000, 1, 1, 0));
  CHECK(whole(1000, 1, 12, 1) != whole(1000, 1, 1, 12));
  CHECK(whole(1000, 1 + (uint64_t{1} << 32), 0, 0) != image);
}

// Values of an independent implementation: a run must go on in the same order under a later build.
TEST_CASE("the shuffle is the same in every build", "[quick][shuffle]") {
  CHECK(whole(10, 1234, 0, 0) == std::vector<int64_t>{1, 2, 6, 4, 7, 0, 5, 9, 3, 8});
  CHECK(whole(10, 1234, 1, 2) == std::vector<int64_t>{1, 3, 9, 6, 2, 7, 4, 8, 5, 0});
  const Permutation large((int64_t{1} << 40) + 1, (uint64_t{1} << 63) + 5, 3, 0);
  CHECK(large(0) == 257782864056);
  CHECK(large(1) == 443016374580);
  CHECK(large(int64_t{1} << 40) == 704384634597);
}

TEST_CASE("over many epochs a place goes everywhere about equally often", "[quick][shuffle]") {
  constexpr int64_t kSize = 10, kEpochs = 4000;
  std::vector<int64_t> hits(kSize * kSize);
  for (int64_t epoch = 0; epoch < kEpochs; ++epoch) {
    const Permutation permutation(kSize, 5, epoch, 0);
    for (int64_t place = 0; place < kSize; ++place) ++hits[static_cast<size_t>(place * kSize + permutation(place))];
  }
  // 400 expected with a deviation of 19.
  CHECK(*std::min_element(hits.begin(), hits.end()) > 300);
  CHECK(*std::max_element(hits.begin(), hits.end()) < 500);
}

TEST_CASE("neighbouring places do not stay neighbours", "[quick][shuffle]") {
  const std::vector<int64_t> image = whole(10000);
  int64_t fixed = 0, successive = 0;
  for (size_t i = 0; i < image.size(); ++i) {
    fixed += image[i] == static_cast<int64_t>(i);
    successive += i > 0 && image[i] == image[i - 1] + 1;
  }
  CHECK(fixed < 10);
  CHECK(successive < 10);
}

TEST_CASE("huge sources are shuffled in constant memory", "[quick][shuffle]") {
  for (const int64_t size : {(int64_t{1} << 33) + 1, int64_t{1} << 40, std::numeric_limits<int64_t>::max()}) {
    const Permutation permutation(size, 1, 0, 0);
    std::set<int64_t> images;
    int64_t largest = 0;
    for (int64_t i = 0; i < 1000; ++i) {
      const int64_t image = permutation(size - 1 - i);
      REQUIRE(image >= 0);
      REQUIRE(image < size);
      images.insert(image);
      largest = std::max(largest, image);
    }
    CHECK(images.size() == 1000);
    CHECK(largest > size / 2);
  }
}

TEST_CASE("a place outside the source is our fault", "[quick][shuffle]") {
  const Permutation permutation(5, 1, 0, 0);
  CHECK_THROWS_AS(permutation(5), CheckFailure);
  CHECK_THROWS_AS(permutation(-1), CheckFailure);
  CHECK_THROWS_AS(Permutation(0, 1, 0, 0), CheckFailure);
}

}  // namespace
}  // namespace quintet::data
