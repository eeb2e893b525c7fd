// What CUDA C++ has no word for: dynamic shared memory of any type, and instructions that need PTX. Compiled by another
// compiler these are declarations, which tests/gpu_emulator defines.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace quintet::kernels::cuda {

#ifdef __CUDACC__
#define QUINTET_PTX __device__ __forceinline__
#else
#define QUINTET_PTX
#endif

// The block's dynamic shared memory, 16-byte aligned.
QUINTET_PTX void* dynamic_shared_memory();

// Two fp32 to two bf16, each rounded to nearest even; `low` lies in the low half.
QUINTET_PTX uint32_t to_bfloat16_pair(float low, float high);

// 2^x to about 2 units in the last place; results below the normal numbers become 0.
QUINTET_PTX float power_of_two(float x);

// Four 8x8 matrices of 16-bit elements: lane l gives the address of row l % 8 of matrix l / 8 in shared memory, 16-byte
// aligned; to[i] becomes elements (lane / 4, 2 (lane % 4)) and the next of matrix i. All 32 lanes.
QUINTET_PTX void load_matrices(uint32_t (&to)[4], const void* row);
// The same of the transposed matrices.
QUINTET_PTX void load_matrices_transposed(uint32_t (&to)[4], const void* row);

// d += a b for a [16, 16], b [16, 8] in bf16 and d [16, 8] in fp32 over a warp (mma.m16n8k16). With group = lane / 4,
// pair = 2 (lane % 4): a = rows group, group + 8 at columns pair, then the same at pair + 8; b = rows pair, pair + 8 of
// column group; d = row group at columns pair and pair + 1, then row group + 8. All 32 lanes.
QUINTET_PTX void multiply_accumulate(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]);

// Starts a copy of 16 bytes from global to shared memory, both 16-byte aligned; zeros in place of them where `valid` is
// false. The thread that started it sees it after a wait, others after a barrier behind the wait.
QUINTET_PTX void copy_async(void* shared, const void* global, bool valid = true);
// Closes the group of copies started since the last call.
QUINTET_PTX void commit_copies();
// Waits until at most `pending` of this thread's groups are under way.
template <int pending>
QUINTET_PTX void wait_for_copies();

// Blocks of a grid that take turns, by one thread of each. pass_turn publishes what the block has written before a
// barrier behind which that thread stands; wait_for_turn returns once *turn is `value`, and behind a barrier its block
// sees what was published. Who passes must be sure to run: a block that has begun by then.
QUINTET_PTX void pass_turn(int32_t* turn, int32_t value);
QUINTET_PTX void wait_for_turn(const int32_t* turn, int32_t value);

#ifdef __CUDACC__

QUINTET_PTX void* dynamic_shared_memory() {
  extern __shared__ __align__(16) unsigned char memory[];
  return memory;
}

QUINTET_PTX uint32_t to_bfloat16_pair(float low, float high) {
  uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

QUINTET_PTX float power_of_two(float x) {
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
  return power;
}

QUINTET_PTX void load_matrices(uint32_t (&to)[4], const void* row) {
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(address)
               : "memory");
}

QUINTET_PTX void load_matrices_transposed(uint32_t (&to)[4], const void* row) {
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(address)
               : "memory");
}

QUINTET_PTX void multiply_accumulate(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

QUINTET_PTX void copy_async(void* shared, const void* global, bool valid) {
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  const int bytes = valid ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(global), "r"(bytes) : "memory");
}

QUINTET_PTX void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

template <int pending>
QUINTET_PTX void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
}

QUINTET_PTX void pass_turn(int32_t* turn, int32_t value) {
  asm volatile("st.release.gpu.global.s32 [%0], %1;" ::"l"(turn), "r"(value) : "memory");
}

QUINTET_PTX void wait_for_turn(const int32_t* turn, int32_t value) {
  int32_t found;
  do {
    asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(found) : "l"(turn) : "memory");
  } while (found != value);
}

#else

void wait_for_copies(int pending);
template <int pending>
void wait_for_copies() {
  wait_for_copies(pending);
}

#endif
#undef QUINTET_PTX

}  // namespace quintet::kernels::cuda
