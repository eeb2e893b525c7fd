// Matrix products by cuBLASLt. Descriptors and the algorithm that its heuristics choose are kept per problem. Sums are
// fp32 (never TF32), and an algorithm that splits k adds the parts in a fixed order.
#pragma once

#include <cublasLt.h>

#include <cstdint>
#include <map>
#include <memory>

#include "lib/base/dtype.h"

namespace quintet::device::cuda {

// What happens to a sum before it is stored; each works on row-major results [m, n].
enum class Epilogue : uint8_t {
  none,
  bias,            // + bias[n]
  keep_gelu,       // auxiliary = sum, then gelu(sum)
  keep_gelu_bias,  // auxiliary = sum + bias[n], then gelu of that
  gelu_slope,      // times gelu'(auxiliary)
};

// result [m, n] (+)= op(a) op(b), all dense and row-major: a is [m, k], or [k, m] if transposed; b [k, n], or [n, k].
struct Product {
  DType operands = DType::fp32, result_type = DType::fp32;  // fp32 or bf16; operands of fp32 give fp32
  int64_t m = 0, n = 0, k = 0;
  bool transpose_a = false, transpose_b = false;
  bool accumulate = false;
  Epilogue epilogue = Epilogue::none;
  const void* a = nullptr;
  const void* b = nullptr;
  void* result = nullptr;
  const void* bias = nullptr;  // [n], of the result's type
  void* auxiliary = nullptr;   // [m, n], of the result's type
};

class Products {
 public:
  // Bytes of workspace that every product is given.
  static constexpr int64_t kWorkspaceBytes = int64_t{32} << 20;

  Products();
  ~Products();
  Products(const Products&) = delete;
  Products& operator=(const Products&) = delete;

  // Queues the product. False, and nothing done, where cuBLASLt has no algorithm with this epilogue.
  bool multiply(const Product& product, void* workspace, cudaStream_t stream);

 private:
  struct Plan;
  struct Problem;
  Plan& plan_of(const Product& product);

  cublasLtHandle_t handle_ = nullptr;
  std::map<Problem, std::unique_ptr<Plan>> plans_;
};

}  // namespace quintet::device::cuda
