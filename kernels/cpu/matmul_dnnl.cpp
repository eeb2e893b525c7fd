#include "kernels/cpu/matmul_dnnl.h"

#ifdef QUINTET_HAS_DNNL

#include <oneapi/dnnl/dnnl.hpp>

#include <string_view>
#include <unordered_map>

#ifdef _OPENMP
#include <omp.h>
#endif

#include "kernels/cpu/scratch.h"
#include "lib/base/error.h"

namespace quintet::kernels::cpu {

namespace {

void use_threads([[maybe_unused]] int threads) {
#ifdef _OPENMP
  omp_set_num_threads(threads);  // of the calling rank alone
#endif
}

using Type = dnnl::memory::data_type;
template <typename T>
constexpr Type kTypeOf = std::is_same_v<T, bfloat16> ? Type::bf16 : Type::f32;

// [rows, columns] as op() makes it of a matrix with that leading dimension.
dnnl::memory::desc matrix(int64_t rows, int64_t columns, int64_t leading, bool transpose, Type type) {
  using Dims = dnnl::memory::dims;
  return {{rows, columns}, type, transpose ? Dims{1, leading} : Dims{leading, 1}};
}

// A primitive is made for every call: oneDNN keeps the latest thousand itself, so that this takes two microseconds.
template <typename C>
bool multiply(const MatmulArgs<bfloat16, C>& args) {
  use_threads(args.threads);
  const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  const auto a = matrix(args.m, args.k, args.lda, args.transpose_a, Type::bf16);
  const auto b = matrix(args.k, args.n, args.ldb, args.transpose_b, Type::bf16);
  const auto c = matrix(args.m, args.n, args.ldc, false, kTypeOf<C>);
  const auto bias = matrix(1, args.n, args.n, false, Type::bf16);
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  if (args.accumulate) {
    dnnl::post_ops sum;
    sum.append_sum();
    attributes.set_post_ops(sum);
  }
  const dnnl::matmul::desc product =
      args.bias == nullptr ? dnnl::matmul::desc(a, b, c) : dnnl::matmul::desc(a, b, bias, c);
  const dnnl::matmul::primitive_desc description(product, attributes, engine, /*allow_empty=*/true);
  if (!description || std::string_view(description.impl_info_str()).starts_with("ref")) return false;

  thread_local Scratch<std::byte> scratch;
  const dnnl::memory::desc scratchpad = description.scratchpad_desc();
  const auto memory = [&engine](const dnnl::memory::desc& desc, const void* data) {
    return dnnl::memory(desc, engine, const_cast<void*>(data));
  };
  std::unordered_map<int, dnnl::memory> operands = {
      {DNNL_ARG_SRC, memory(a, args.a)},
      {DNNL_ARG_WEIGHTS, memory(b, args.b)},
      {DNNL_ARG_DST, memory(c, args.c)},
      {DNNL_ARG_SCRATCHPAD, memory(scratchpad, scratch.get(static_cast<int64_t>(scratchpad.get_size())))}};
  if (args.bias != nullptr) operands.emplace(DNNL_ARG_BIAS, memory(bias, args.bias));
  dnnl::stream stream(engine);
  dnnl::matmul(description).execute(stream, operands);
  stream.wait();
  return true;
}

}  // namespace

template <>
bool multiply_by_dnnl(const MatmulArgs<float>& args) {
  use_threads(args.threads);
  const dnnl_status_t status =
      dnnl_sgemm(args.transpose_a ? 'T' : 'N', args.transpose_b ? 'T' : 'N', args.m, args.n, args.k, 1.0F, args.a,
                 args.lda, args.b, args.ldb, args.accumulate ? 1.0F : 0.0F, args.c, args.ldc);
  QUINTET_CHECK(status == dnnl_success, "dnnl_sgemm of {} x {} x {} returns {}", args.m, args.n, args.k,
                static_cast<int>(status));
  return true;
}

template <>
bool multiply_by_dnnl(const MatmulArgs<bfloat16>& args) {
  return multiply(args);
}

template <>
bool multiply_by_dnnl(const MatmulArgs<bfloat16, float>& args) {
  return multiply(args);
}

}  // namespace quintet::kernels::cpu

#endif
