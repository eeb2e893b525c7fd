// Which GPUs a build can use.
#include <catch2/catch.hpp>

#include "lib/device/cuda/gpus.h"

namespace quintet::device::cuda {

TEST_CASE("a build runs on the GPUs that it was compiled for, and on later ones", "[quick][cuda]") {
  CHECK(runs_on("sm_80", 8, 0));
  CHECK(runs_on("sm_80", 8, 6));
  CHECK(runs_on("sm_80", 9, 0));
  CHECK(runs_on("sm_80, sm_90a, sm_100", 12, 0));
  CHECK_FALSE(runs_on("sm_90", 8, 0));
  CHECK_FALSE(runs_on("sm_100", 9, 0));
}

TEST_CASE("code for sm_90a runs on compute capability 9.0 alone", "[quick][cuda]") {
  CHECK(runs_on("sm_90a", 9, 0));
  CHECK(runs_on("sm_100, sm_90a", 9, 0));
  CHECK_FALSE(runs_on("sm_90a", 8, 0));
  CHECK_FALSE(runs_on("sm_90a", 10, 0));
}

}  // namespace quintet::device::cuda
