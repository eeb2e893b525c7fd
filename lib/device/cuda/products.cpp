// cuBLASLt thinks in columns. A row-major [m, n] is the column-major transposed [n, m] of the same memory, so that
// result = op(a) op(b) is asked for as result^T = op(b)^T op(a)^T: the operands change places, and "transposed" means
// the same to both.
#include "lib/device/cuda/products.h"

#include <algorithm>
#include <compare>
#include <initializer_list>

#include "lib/base/error.h"
#include "lib/base/integers.h"

namespace quintet::device::cuda {
namespace {

void require_done(cublasStatus_t status, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  if (status == CUBLAS_STATUS_SUCCESS) [[likely]]
    return;
  detail::check_failed("cuBLASLt", file, line, cublasLtGetStatusString(status));
}

cudaDataType type_of(DType dtype) {
  QUINTET_CHECK(dtype == DType::fp32 || dtype == DType::bf16, "a product of {}", name_of(dtype));
  return dtype == DType::fp32 ? CUDA_R_32F : CUDA_R_16BF;
}

cublasLtEpilogue_t epilogue_of(Epilogue epilogue) {
  switch (epilogue) {
    case Epilogue::none: return CUBLASLT_EPILOGUE_DEFAULT;
    case Epilogue::bias: return CUBLASLT_EPILOGUE_BIAS;
    case Epilogue::keep_gelu: return CUBLASLT_EPILOGUE_GELU_AUX;
    case Epilogue::keep_gelu_bias: return CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
    case Epilogue::gelu_slope: return CUBLASLT_EPILOGUE_DGELU;
  }
  QUINTET_CHECK(false, "epilogue {}", static_cast<int>(epilogue));
}

// Bytes that all operands are aligned to; more than this no algorithm asks for.
constexpr uint32_t kFullAlignment = 16;
uint32_t alignment_of(const Product& product) {
  uintptr_t bits = kFullAlignment;
  for (const void* memory : {product.a, product.b, static_cast<const void*>(product.result), product.bias,
                             static_cast<const void*>(product.auxiliary)})
    bits |= reinterpret_cast<uintptr_t>(memory);
  return static_cast<uint32_t>(bits & (~bits + 1));  // the lowest bit that is set
}

}  // namespace

struct Products::Problem {
  DType operands, result_type;
  int64_t m, n, k;
  bool transpose_a, transpose_b, accumulate;
  Epilogue epilogue;
  uint32_t alignment;

  auto operator<=>(const Problem&) const = default;  // NOLINT(modernize-use-nullptr): it is none
};

struct Products::Plan {
  cublasLtMatmulDesc_t description = nullptr;
  cublasLtMatrixLayout_t left = nullptr, right = nullptr, result = nullptr;  // as cuBLASLt sees them
  bool found = false;
  cublasLtMatmulAlgo_t algorithm = {};

  Plan() = default;
  ~Plan() {
    cublasLtMatrixLayoutDestroy(result);
    cublasLtMatrixLayoutDestroy(right);
    cublasLtMatrixLayoutDestroy(left);
    cublasLtMatmulDescDestroy(description);
  }
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;

  template <typename Value>
  void set(cublasLtMatmulDescAttributes_t attribute, const Value& value) {
    require_done(cublasLtMatmulDescSetAttribute(description, attribute, &value, sizeof value));
  }
  void set_pointers(const Product& product) {
    if (product.bias != nullptr) set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, product.bias);
    if (product.auxiliary != nullptr) set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, product.auxiliary);
  }
  void describe(const Product& product);
  void choose(cublasLtHandle_t handle, uint32_t alignment);
};

void Products::Plan::describe(const Product& product) {
  require_done(cublasLtMatmulDescCreate(&description, CUBLAS_COMPUTE_32F, CUDA_R_32F));
  set(CUBLASLT_MATMUL_DESC_TRANSA, product.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N);
  set(CUBLASLT_MATMUL_DESC_TRANSB, product.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N);
  set(CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue_of(product.epilogue));
  if (product.auxiliary != nullptr) set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, product.n);
  set_pointers(product);
  // A row-major matrix of these rows and columns is columns by rows here.
  const auto lay_out = [](cublasLtMatrixLayout_t* layout, DType dtype, int64_t rows, int64_t columns) {
    require_done(
        cublasLtMatrixLayoutCreate(layout, type_of(dtype), narrow<uint64_t>(columns), narrow<uint64_t>(rows), columns));
  };
  lay_out(&left, product.operands, product.transpose_b ? product.n : product.k,
          product.transpose_b ? product.k : product.n);
  lay_out(&right, product.operands, product.transpose_a ? product.k : product.m,
          product.transpose_a ? product.m : product.k);
  lay_out(&result, product.result_type, product.m, product.n);
}

void Products::Plan::choose(cublasLtHandle_t handle, uint32_t alignment) {
  cublasLtMatmulPreference_t preference = nullptr;
  require_done(cublasLtMatmulPreferenceCreate(&preference));
  const auto prefer = [&]<typename Value>(cublasLtMatmulPreferenceAttributes_t attribute, Value value) {
    require_done(cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof value));
  };
  prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<uint64_t>(kWorkspaceBytes));
  // Parts of a sum go through the workspace in fp32; the other schemes add in no fixed order, or round in between.
  prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, static_cast<uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  for (const auto attribute : {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
                               CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
    prefer(attribute, alignment);
  cublasLtMatmulHeuristicResult_t best = {};
  int count = 0;
  const cublasStatus_t status =
      cublasLtMatmulAlgoGetHeuristic(handle, description, left, right, result, result, preference, 1, &best, &count);
  cublasLtMatmulPreferenceDestroy(preference);
  if (status != CUBLAS_STATUS_NOT_SUPPORTED) require_done(status);
  found = status == CUBLAS_STATUS_SUCCESS && count > 0;
  algorithm = best.algo;
}

Products::Products() { require_done(cublasLtCreate(&handle_)); }

Products::~Products() {
  plans_.clear();
  cublasLtDestroy(handle_);
}

Products::Plan& Products::plan_of(const Product& product) {
  const Problem problem = {.operands = product.operands,
                           .result_type = product.result_type,
                           .m = product.m,
                           .n = product.n,
                           .k = product.k,
                           .transpose_a = product.transpose_a,
                           .transpose_b = product.transpose_b,
                           .accumulate = product.accumulate,
                           .epilogue = product.epilogue,
                           .alignment = alignment_of(product)};
  std::unique_ptr<Plan>& plan = plans_[problem];
  if (!plan) {
    auto made = std::make_unique<Plan>();
    made->describe(product);
    made->choose(handle_, problem.alignment);
    QUINTET_CHECK(made->found || product.epilogue != Epilogue::none,
                  "cuBLASLt has no algorithm for [{}, {}] by [{}, {}] of {} to {}", product.m, product.k, product.k,
                  product.n, name_of(product.operands), name_of(product.result_type));
    plan = std::move(made);
  }
  return *plan;
}

bool Products::multiply(const Product& product, void* workspace, cudaStream_t stream) {
  constexpr int64_t kAuxiliaryGrain = 8;  // elements that rows of an auxiliary matrix must be a multiple of
  if (product.m == 0 || product.n == 0) return true;
  QUINTET_CHECK(product.k > 0, "a product over nothing");
  if (product.auxiliary != nullptr && product.n % kAuxiliaryGrain != 0) return false;
  Plan& plan = plan_of(product);
  if (!plan.found) return false;
  plan.set_pointers(product);
  const float one = 1, kept = product.accumulate ? 1 : 0;
  require_done(cublasLtMatmul(handle_, plan.description, &one, product.b, plan.left, product.a, plan.right, &kept,
                              product.result, plan.result, product.result, plan.result, &plan.algorithm, workspace,
                              static_cast<size_t>(kWorkspaceBytes), stream));
  return true;
}

}  // namespace quintet::device::cuda
