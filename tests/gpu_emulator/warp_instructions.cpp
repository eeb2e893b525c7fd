// kernels/cuda/intrinsics.h in words of the emulator. Copies that run beside the thread happen when it waits for them,
// or at the end of the kernel: what is read too early is what was there before.
#include "kernels/cuda/intrinsics.h"

#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "lib/base/dtype.h"
#include "tests/gpu_emulator/block.h"

namespace quintet::kernels::cuda {
namespace {

using gpu_emulator::current_block;

float low_half(uint32_t pair) { return std::bit_cast<float>(pair << 16); }
float high_half(uint32_t pair) { return std::bit_cast<float>(pair & 0xffff0000U); }

uint32_t pair_of(float low, float high) { return bfloat16(low).bits | uint32_t{bfloat16(high).bits} << 16; }

struct Rows {
  std::array<uint16_t, 8> of_lane;
};

template <bool transposed>
void load(uint32_t (&to)[4], const void* row, const char* operation) {
  current_block()->access(row, 16, false, 16);
  if (!current_block()->is_shared(row)) current_block()->fault("ldmatrix reads what is not shared memory");
  Rows rows;
  std::memcpy(rows.of_lane.data(), row, 16);
  current_block()->meet(
      operation, 0xffffffffU, &rows, to,
      [](uint32_t, const void* const* in, void* const* out) {
        const auto element = [&](uint32_t matrix, uint32_t i, uint32_t j) {
          return uint32_t{static_cast<const Rows*>(in[matrix * 8 + (transposed ? j : i)])->of_lane[transposed ? i : j]};
        };
        for (uint32_t lane = 0; lane < 32; ++lane) {
          for (uint32_t matrix = 0; matrix < 4; ++matrix) {
            const uint32_t i = lane / 4, j = 2 * (lane % 4);
            static_cast<uint32_t*>(out[lane])[matrix] = element(matrix, i, j) | element(matrix, i, j + 1) << 16;
          }
        }
      },
      "", 0);
}

struct Fragments {
  const uint32_t* a;
  const uint32_t* b;
};

}  // namespace

void* dynamic_shared_memory() { return current_block()->dynamic_shared_memory(); }

uint32_t to_bfloat16_pair(float low, float high) { return pair_of(low, high); }

float power_of_two(float x) {
  const float power = std::exp2(x);
  return power < std::numeric_limits<float>::min() ? 0.0F : power;
}

void load_matrices(uint32_t (&to)[4], const void* row) { load<false>(to, row, "ldmatrix"); }
void load_matrices_transposed(uint32_t (&to)[4], const void* row) { load<true>(to, row, "ldmatrix.trans"); }

void multiply_accumulate(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  const Fragments mine = {a, b};
  current_block()->meet(
      "mma.sync", 0xffffffffU, &mine, d,
      [](uint32_t, const void* const* in, void* const* out) {
        const auto fragments = [&](uint32_t lane) { return *static_cast<const Fragments*>(in[lane]); };
        std::array<std::array<float, 16>, 16> left;
        std::array<std::array<float, 8>, 16> right;
        for (uint32_t lane = 0; lane < 32; ++lane) {
          const uint32_t group = lane / 4, pair = 2 * (lane % 4);
          for (uint32_t i = 0; i < 4; ++i) {
            const uint32_t row = group + 8 * (i % 2), column = pair + 8 * (i / 2);
            left[row][column] = low_half(fragments(lane).a[i]);
            left[row][column + 1] = high_half(fragments(lane).a[i]);
          }
          for (uint32_t i = 0; i < 2; ++i) {
            right[pair + 8 * i][group] = low_half(fragments(lane).b[i]);
            right[pair + 8 * i + 1][group] = high_half(fragments(lane).b[i]);
          }
        }
        for (uint32_t lane = 0; lane < 32; ++lane) {
          auto* sums = static_cast<float*>(out[lane]);
          for (uint32_t i = 0; i < 4; ++i) {
            const uint32_t row = lane / 4 + 8 * (i / 2), column = 2 * (lane % 4) + i % 2;
            // Products of bf16 are exact in fp32; the device adds them with at least fp32's precision.
            double sum = static_cast<double>(sums[i]);
            for (uint32_t k = 0; k < 16; ++k) sum += static_cast<double>(left[row][k] * right[k][column]);
            sums[i] = static_cast<float>(sum);
          }
        }
      },
      "", 0);
}

void copy_async(void* shared, const void* global, bool valid) {
  if (valid) current_block()->access(global, 16, false, 16);
  current_block()->access(shared, 16, true, 16);
  if (!current_block()->is_shared(shared)) current_block()->fault("cp.async writes what is not shared memory");
  current_block()->copies().start(shared, valid ? global : nullptr);
}
void commit_copies() { current_block()->copies().commit(); }
void wait_for_copies(int pending) { current_block()->copies().wait(pending); }

void pass_turn(int32_t* turn, int32_t value) {
  current_block()->access(turn, sizeof *turn, true, sizeof *turn);
  *turn = value;
}
void wait_for_turn(const int32_t* turn, int32_t value) {
  current_block()->access(turn, sizeof *turn, false, sizeof *turn);
  // Blocks follow one another: what is not there now never comes.
  if (*turn != value) current_block()->fault("waits for the turn of a block that has not begun");
}

}  // namespace quintet::kernels::cuda
