#include <catch2/catch.hpp>

#include <cublasLt.h>

#include <cmath>
#include <functional>

#include "lib/base/dtype.h"
#include "lib/base/random.h"
#include "tests/gpu_emulator/emulator.h"
#include "tests/support/device_memory.h"

using namespace quintet;
using namespace quintet::testing;

namespace {

constexpr int64_t kRows = 5, kColumns = 7, kInner = 9;

void require(cublasStatus_t status) { REQUIRE(status == CUBLAS_STATUS_SUCCESS); }

template <typename T>
constexpr cudaDataType kType = sizeof(T) == 4 ? CUDA_R_32F : CUDA_R_16BF;

template <typename T>
std::vector<T> random_matrix(int64_t elements, uint64_t seed) {
  std::vector<T> values(static_cast<size_t>(elements));
  for (size_t i = 0; i < values.size(); ++i) values[i] = T(static_cast<float>(normal(seed, i, 0)));
  return values;
}

// A matrix on the device in either order, with two elements between its lines.
template <typename T>
struct Matrix {
  int64_t rows, columns;
  cublasLtOrder_t order;
  std::vector<T> values;
  DeviceArray<T> memory;
  cublasLtMatrixLayout_t layout = nullptr;

  Matrix(int64_t m, int64_t n, cublasLtOrder_t how, uint64_t seed)
      : rows(m),
        columns(n),
        order(how),
        values(random_matrix<T>((std::max(m, n) + 2) * std::max(m, n), seed)),
        memory(values) {
    require(cublasLtMatrixLayoutCreate(&layout, kType<T>, static_cast<uint64_t>(rows), static_cast<uint64_t>(columns),
                                       leading()));
    require(cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_ORDER, &order, sizeof order));
  }
  ~Matrix() { cublasLtMatrixLayoutDestroy(layout); }
  Matrix(const Matrix&) = delete;
  Matrix& operator=(const Matrix&) = delete;

  int64_t leading() const { return (order == CUBLASLT_ORDER_COL ? rows : columns) + 2; }
  double at(const std::vector<T>& of, int64_t i, int64_t j) const {
    const int64_t place = order == CUBLASLT_ORDER_COL ? i + j * leading() : i * leading() + j;
    return static_cast<double>(static_cast<float>(of[static_cast<size_t>(place)]));
  }
  double at(int64_t i, int64_t j) const { return at(values, i, j); }
};

struct Library {
  cublasLtHandle_t handle = nullptr;
  cublasLtMatmulDesc_t description = nullptr;
  Library() {
    require(cublasLtCreate(&handle));
    require(cublasLtMatmulDescCreate(&description, CUBLAS_COMPUTE_32F, CUDA_R_32F));
  }
  ~Library() {
    cublasLtMatmulDescDestroy(description);
    cublasLtDestroy(handle);
  }
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;

  template <typename V>
  void set(cublasLtMatmulDescAttributes_t attribute, V value) {
    require(cublasLtMatmulDescSetAttribute(description, attribute, &value, sizeof value));
  }
  template <typename A, typename D>
  cublasStatus_t multiply(const Matrix<A>& a, const Matrix<A>& b, const Matrix<D>& d, float beta, cudaStream_t stream,
                          const cublasLtMatmulAlgo_t* algorithm = nullptr) {
    const float alpha = 0.5F;
    return cublasLtMatmul(handle, description, &alpha, a.memory.data(), a.layout, b.memory.data(), b.layout, &beta,
                          d.memory.data(), d.layout, d.memory.data(), d.layout, algorithm, nullptr, 0, stream);
  }
};

double gelu(double x) { return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x))); }

}  // namespace

TEMPLATE_TEST_CASE("a product in any order and transposition is the plain product", "[quick][emulator]", float,
                   bfloat16) {
  using T = TestType;
  const Stream stream;
  for (const bool turn_a : {false, true}) {
    for (const bool turn_b : {false, true}) {
      for (const cublasLtOrder_t order : {CUBLASLT_ORDER_COL, CUBLASLT_ORDER_ROW}) {
        Library library;
        library.set(CUBLASLT_MATMUL_DESC_TRANSA, turn_a ? CUBLAS_OP_T : CUBLAS_OP_N);
        library.set(CUBLASLT_MATMUL_DESC_TRANSB, turn_b ? CUBLAS_OP_T : CUBLAS_OP_N);
        const Matrix<T> a(turn_a ? kInner : kRows, turn_a ? kRows : kInner, order, 1);
        const Matrix<T> b(turn_b ? kColumns : kInner, turn_b ? kInner : kColumns, CUBLASLT_ORDER_COL, 2);
        const Matrix<float> d(kRows, kColumns, order, 3);
        require(library.multiply(a, b, d, 2, stream));
        const auto result = d.memory.read(stream);
        for (int64_t i = 0; i < kRows; ++i) {
          for (int64_t j = 0; j < kColumns; ++j) {
            double sum = 0;
            for (int64_t k = 0; k < kInner; ++k) {
              sum += (turn_a ? a.at(k, i) : a.at(i, k)) * (turn_b ? b.at(j, k) : b.at(k, j));
            }
            REQUIRE(d.at(result, i, j) == Approx(0.5 * sum + 2 * d.at(i, j)).margin(1e-5));
          }
        }
      }
    }
  }
}

TEST_CASE("epilogues add the bias, keep what gelu was taken of, apply its slope and sum bias gradients",
          "[quick][emulator]") {
  const Stream stream;
  const Matrix<float> a(kRows, kInner, CUBLASLT_ORDER_COL, 1), b(kInner, kColumns, CUBLASLT_ORDER_COL, 2),
      d(kRows, kColumns, CUBLASLT_ORDER_COL, 3), auxiliary(kRows, kColumns, CUBLASLT_ORDER_COL, 4);
  const auto bias = random_matrix<float>(kRows, 5);
  const auto product = [&](int64_t i, int64_t j) {
    double sum = 0;
    for (int64_t k = 0; k < kInner; ++k) sum += a.at(i, k) * b.at(k, j);
    return 0.5 * sum;
  };
  const auto for_all = [&](const std::function<void(int64_t, int64_t)>& f) {
    for (int64_t i = 0; i < kRows; ++i) {
      for (int64_t j = 0; j < kColumns; ++j) f(i, j);
    }
  };
  const DeviceArray<float> bias_d(bias);
  Library library;
  library.set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_GELU_AUX_BIAS);
  library.set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias_d.data());
  library.set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, auxiliary.memory.data());
  library.set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, auxiliary.leading());
  require(library.multiply(a, b, d, 0, stream));
  const auto output = d.memory.read(stream), inner = auxiliary.memory.read(stream);
  for_all([&](int64_t i, int64_t j) {
    const double expected = product(i, j) + static_cast<double>(bias[static_cast<size_t>(i)]);
    REQUIRE(auxiliary.at(inner, i, j) == Approx(expected).margin(1e-5));
    REQUIRE(d.at(output, i, j) == Approx(gelu(expected)).margin(1e-5));
  });

  library.set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_DGELU_BGRAD);
  require(library.multiply(a, b, d, 0, stream));
  const auto gradient = d.memory.read(stream), bias_gradient = bias_d.read(stream);
  std::vector<double> sums(kRows);
  for_all([&](int64_t i, int64_t j) {
    const double x = auxiliary.at(inner, i, j), step = 1e-5;
    const double expected = product(i, j) * (gelu(x + step) - gelu(x - step)) / (2 * step);
    REQUIRE(d.at(gradient, i, j) == Approx(expected).margin(1e-5));
    sums[static_cast<size_t>(i)] += expected;
  });
  for (size_t i = 0; i < sums.size(); ++i) {
    REQUIRE(static_cast<double>(bias_gradient[i]) == Approx(sums[i]).margin(1e-4));
  }

  library.set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BGRADA);
  require(library.multiply(a, b, d, 0, stream));
  const auto row_sums = bias_d.read(stream);
  for (int64_t i = 0; i < kRows; ++i) {
    double sum = 0;
    for (int64_t k = 0; k < kInner; ++k) sum += a.at(i, k);
    REQUIRE(static_cast<double>(row_sums[static_cast<size_t>(i)]) == Approx(sum).margin(1e-5));
  }
}

TEST_CASE("a product refuses shapes that do not fit, foreign memory and another problem's algorithm",
          "[quick][emulator]") {
  const Stream stream;
  Library library;
  const Matrix<float> a(kRows, kInner, CUBLASLT_ORDER_COL, 1), b(kInner, kColumns, CUBLASLT_ORDER_COL, 2),
      d(kRows, kColumns, CUBLASLT_ORDER_COL, 3);
  CHECK(library.multiply(b, a, d, 0, stream) == CUBLAS_STATUS_NOT_SUPPORTED);

  cublasLtMatmulPreference_t preference = nullptr;
  require(cublasLtMatmulPreferenceCreate(&preference));
  cublasLtMatmulHeuristicResult_t result;
  int count = 0;
  require(cublasLtMatmulAlgoGetHeuristic(library.handle, library.description, a.layout, b.layout, d.layout, d.layout,
                                         preference, 1, &result, &count));
  REQUIRE(count == 1);
  require(library.multiply(a, b, d, 0, stream, &result.algo));
  const Matrix<float> narrow_b(kInner, 1, CUBLASLT_ORDER_COL, 2), narrow_d(kRows, 1, CUBLASLT_ORDER_COL, 2);
  CHECK(library.multiply(a, narrow_b, narrow_d, 0, stream, &result.algo) == CUBLAS_STATUS_INVALID_VALUE);
  require(cublasLtMatmulPreferenceDestroy(preference));

  std::vector<float> host(1000);
  const float one = 1;
  CHECK(cublasLtMatmul(library.handle, library.description, &one, host.data(), a.layout, b.memory.data(), b.layout,
                       &one, d.memory.data(), d.layout, d.memory.data(), d.layout, nullptr, nullptr, 0,
                       stream) == CUBLAS_STATUS_INVALID_VALUE);
  stream.synchronise();
}
