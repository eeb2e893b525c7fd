// cuBLASLt's matrix product over host memory, run as an operation of its stream. Sums are fp32 in ascending k.
#include <cublasLt.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include <fmt/core.h>

#include "lib/base/dtype.h"
#include "tests/gpu_emulator/machine.h"
#include "tests/gpu_emulator/memory.h"

// NOLINTBEGIN(readability-identifier-naming): cuBLASLt's names
struct cublasLtContext {};
struct cublasLtMatmulDescOpaque_t {
  cublasComputeType_t compute;
  cublasOperation_t transpose_a = CUBLAS_OP_N, transpose_b = CUBLAS_OP_N;
  cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  void* bias = nullptr;
  void* auxiliary = nullptr;
  int64_t auxiliary_leading = 0;
  int bias_type = -1, auxiliary_type = -1;  // -1: as d
};
struct cublasLtMatrixLayoutOpaque_t {
  cudaDataType type;
  uint64_t rows, columns;
  int64_t leading;
  cublasLtOrder_t order = CUBLASLT_ORDER_COL;
};
struct cublasLtMatmulPreferenceOpaque_t {
  uint64_t workspace_bytes = 0;
  uint32_t reduction_schemes = 7;
  uint32_t a_alignment = 256, b_alignment = 256, c_alignment = 256, d_alignment = 256;
};
// NOLINTEND(readability-identifier-naming)

namespace {

using namespace quintet::gpu_emulator;
using quintet::bfloat16;
using Description = cublasLtMatmulDescOpaque_t;
using Layout = cublasLtMatrixLayoutOpaque_t;

int64_t bytes_of(cudaDataType type) { return type == CUDA_R_32F ? 4 : 2; }

float read(const void* memory, cudaDataType type, int64_t at) {
  return type == CUDA_R_32F ? static_cast<const float*>(memory)[at]
                            : static_cast<float>(static_cast<const bfloat16*>(memory)[at]);
}
void write(void* memory, cudaDataType type, int64_t at, float value) {
  if (type == CUDA_R_32F) {
    static_cast<float*>(memory)[at] = value;
  } else {
    static_cast<bfloat16*>(memory)[at] = bfloat16(value);
  }
}

int64_t place(const Layout& layout, int64_t row, int64_t column) {
  return layout.order == CUBLASLT_ORDER_COL ? row + column * layout.leading : row * layout.leading + column;
}
size_t extent(const Layout& layout) {
  const int64_t last = place(layout, static_cast<int64_t>(layout.rows) - 1, static_cast<int64_t>(layout.columns) - 1);
  return static_cast<size_t>((last + 1) * bytes_of(layout.type));
}

// The tanh form, as cuBLASLt has it.
constexpr float kOuter = 0.797884560802865F, kCubic = 0.044715F;
float gelu(float x) { return 0.5F * x * (1 + std::tanh(kOuter * (x + kCubic * x * x * x))); }
float gelu_slope(float x) {
  const float t = std::tanh(kOuter * (x + kCubic * x * x * x));
  return 0.5F * (1 + t) + 0.5F * x * (1 - t * t) * kOuter * (1 + 3 * kCubic * x * x);
}

// d [m, n] = epilogue(alpha op(a) op(b) + beta c), op(a) [m, k], op(b) [k, n].
struct Product {
  Description description;
  Layout a_layout, b_layout, c_layout, d_layout;
  const void* a;
  const void* b;
  const void* c;
  void* d;
  float alpha, beta;
  void* workspace;
  size_t workspace_bytes;

  bool has(int flag) const { return (description.epilogue & flag) != 0; }
  int64_t m() const { return static_cast<int64_t>(d_layout.rows); }
  int64_t n() const { return static_cast<int64_t>(d_layout.columns); }
  int64_t k() const {
    return static_cast<int64_t>(description.transpose_a == CUBLAS_OP_N ? a_layout.columns : a_layout.rows);
  }
  cudaDataType bias_type() const {
    return description.bias_type < 0 ? d_layout.type : static_cast<cudaDataType>(description.bias_type);
  }
  cudaDataType auxiliary_type() const {
    return description.auxiliary_type < 0 ? d_layout.type : static_cast<cudaDataType>(description.auxiliary_type);
  }
  float left(int64_t i, int64_t k) const {
    return read(a, a_layout.type,
                description.transpose_a == CUBLAS_OP_N ? place(a_layout, i, k) : place(a_layout, k, i));
  }
  float right(int64_t k, int64_t j) const {
    return read(b, b_layout.type,
                description.transpose_b == CUBLAS_OP_N ? place(b_layout, k, j) : place(b_layout, j, k));
  }

  std::string memory_misuse() const;
  void run() const;
};

constexpr int kBias = 4, kGradientOfBias = 16, kGelu = 32, kGeluSlope = 64, kAuxiliary = 128;

std::string Product::memory_misuse() const {
  const auto check = [](const char* what, const void* memory, size_t bytes) {
    return describe_misuse(fmt::format("cublasLtMatmul {}", what), memory, bytes);
  };
  std::vector<std::string> reports = {check("reads of a", a, extent(a_layout)),
                                      check("reads of b", b, extent(b_layout)),
                                      check("writes of d", d, extent(d_layout))};
  if (beta != 0) reports.push_back(check("reads of c", c, extent(c_layout)));
  if (workspace_bytes > 0) reports.push_back(check("uses of its workspace", workspace, workspace_bytes));
  if (has(kBias) || has(kGradientOfBias) || has(CUBLASLT_EPILOGUE_BGRADA) || has(CUBLASLT_EPILOGUE_BGRADB)) {
    const int64_t elements = has(CUBLASLT_EPILOGUE_BGRADB) ? n() : m();
    reports.push_back(check("uses of a bias", description.bias, static_cast<size_t>(elements * bytes_of(bias_type()))));
  }
  if (has(kAuxiliary)) {
    const int64_t elements = (n() - 1) * description.auxiliary_leading + m();
    reports.push_back(
        check("uses of auxiliary", description.auxiliary, static_cast<size_t>(elements * bytes_of(auxiliary_type()))));
  }
  for (const std::string& report : reports) {
    if (!report.empty()) return report;
  }
  return {};
}

void Product::run() const {
  std::vector<float> columns_of_a(static_cast<size_t>(m() * k()));
  for (int64_t p = 0; p < k(); ++p) {
    for (int64_t i = 0; i < m(); ++i) columns_of_a[static_cast<size_t>(p * m() + i)] = left(i, p);
  }
  // Of bias gradients: over columns of the result, or over k of an operand.
  std::vector<float> sums(static_cast<size_t>(has(CUBLASLT_EPILOGUE_BGRADB) ? n() : m()));
  std::vector<float> column(static_cast<size_t>(m()));
  for (int64_t j = 0; j < n(); ++j) {
    std::fill(column.begin(), column.end(), 0.0F);
    for (int64_t p = 0; p < k(); ++p) {
      const float factor = right(p, j);
      const float* from = columns_of_a.data() + p * m();
      for (int64_t i = 0; i < m(); ++i) column[static_cast<size_t>(i)] += from[i] * factor;
      if (has(CUBLASLT_EPILOGUE_BGRADB)) sums[static_cast<size_t>(j)] += factor;
    }
    for (int64_t i = 0; i < m(); ++i) {
      float value = alpha * column[static_cast<size_t>(i)];
      if (beta != 0) value += beta * read(c, c_layout.type, place(c_layout, i, j));
      if (has(kBias)) value += read(description.bias, bias_type(), i);
      const int64_t auxiliary = i + j * description.auxiliary_leading;
      if (has(kGelu)) {
        if (has(kAuxiliary)) write(description.auxiliary, auxiliary_type(), auxiliary, value);
        value = gelu(value);
      }
      if (has(kGeluSlope)) value *= gelu_slope(read(description.auxiliary, auxiliary_type(), auxiliary));
      if (has(kGradientOfBias)) sums[static_cast<size_t>(i)] += value;
      write(d, d_layout.type, place(d_layout, i, j), value);
    }
  }
  if (has(CUBLASLT_EPILOGUE_BGRADA)) {
    for (int64_t p = 0; p < k(); ++p) {
      for (int64_t i = 0; i < m(); ++i) sums[static_cast<size_t>(i)] += columns_of_a[static_cast<size_t>(p * m() + i)];
    }
  }
  if (has(kGradientOfBias) || has(CUBLASLT_EPILOGUE_BGRADA) || has(CUBLASLT_EPILOGUE_BGRADB)) {
    for (size_t i = 0; i < sums.size(); ++i) write(description.bias, bias_type(), static_cast<int64_t>(i), sums[i]);
  }
}

// Empty, or what cuBLASLt would not do.
std::string shape_misuse(const Description& description, const Layout& a, const Layout& b, const Layout& c,
                         const Layout& d) {
  const bool a_turned = description.transpose_a != CUBLAS_OP_N, b_turned = description.transpose_b != CUBLAS_OP_N;
  const uint64_t m = a_turned ? a.columns : a.rows, k = a_turned ? a.rows : a.columns;
  const uint64_t inner = b_turned ? b.columns : b.rows, n = b_turned ? b.rows : b.columns;
  if (k != inner || d.rows != m || d.columns != n || c.rows != m || c.columns != n) {
    return fmt::format("[{}, {}] by [{}, {}] to [{}, {}], adding [{}, {}]", m, k, inner, n, d.rows, d.columns, c.rows,
                       c.columns);
  }
  for (const Layout* layout : {&a, &b, &c, &d}) {
    const uint64_t contiguous = layout->order == CUBLASLT_ORDER_COL ? layout->rows : layout->columns;
    if (layout->leading < static_cast<int64_t>(contiguous)) return "a leading dimension is smaller than its matrix";
  }
  if (a.type != b.type || c.type != d.type || (a.type == CUDA_R_32F && d.type == CUDA_R_16BF)) {
    return "a combination of element types";
  }
  if (description.epilogue != CUBLASLT_EPILOGUE_DEFAULT && d.order != CUBLASLT_ORDER_COL) {
    return "an epilogue on a row-major result";
  }
  if ((description.epilogue & kAuxiliary) != 0 && description.auxiliary_leading < static_cast<int64_t>(m)) {
    return "an auxiliary matrix without its leading dimension";
  }
  return {};
}

// What an algorithm is chosen for.
uint64_t digest(const Description& description, const Layout& a, const Layout& b, const Layout& c, const Layout& d) {
  uint64_t hash = 0xcbf29ce484222325ULL;
  const auto mix = [&hash](uint64_t value) { hash = (hash ^ value) * 0x100000001b3ULL; };
  for (const uint64_t value :
       {static_cast<uint64_t>(description.transpose_a), static_cast<uint64_t>(description.transpose_b),
        static_cast<uint64_t>(description.epilogue), static_cast<uint64_t>(description.compute)}) {
    mix(value);
  }
  for (const Layout* layout : {&a, &b, &c, &d}) {
    for (const uint64_t value : {static_cast<uint64_t>(layout->type), layout->rows, layout->columns,
                                 static_cast<uint64_t>(layout->leading), static_cast<uint64_t>(layout->order)}) {
      mix(value);
    }
  }
  return hash;
}

cublasStatus_t refuse(cublasStatus_t status, const std::string& what) {
  std::fprintf(stderr, "GPU emulator: cublasLtMatmul: %s\n", what.c_str());
  return status;
}

template <typename T>
bool take(T& to, const void* value, size_t bytes) {
  if (bytes != sizeof(T)) return false;
  std::memcpy(&to, value, bytes);
  return true;
}

cublasStatus_t status_of(bool valid) { return valid ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE; }

}  // namespace

const char* cublasLtGetStatusString(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_SUCCESS: return "success";
    case CUBLAS_STATUS_NOT_INITIALIZED: return "the library was not initialized";
    case CUBLAS_STATUS_INVALID_VALUE: return "an invalid value";
    case CUBLAS_STATUS_EXECUTION_FAILED: return "the execution failed";
    case CUBLAS_STATUS_NOT_SUPPORTED: return "not supported";
  }
  return "unknown status";
}
size_t cublasLtGetVersion() { return 130000; }

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  *handle = new cublasLtContext;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  delete handle;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* description, cublasComputeType_t compute,
                                        cudaDataType_t scale) {
  if (scale != CUDA_R_32F) return CUBLAS_STATUS_NOT_SUPPORTED;
  *description = new Description{compute};
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t description,
                                              cublasLtMatmulDescAttributes_t attribute, const void* value,
                                              size_t bytes) {
  switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA: return status_of(take(description->transpose_a, value, bytes));
    case CUBLASLT_MATMUL_DESC_TRANSB: return status_of(take(description->transpose_b, value, bytes));
    case CUBLASLT_MATMUL_DESC_EPILOGUE: return status_of(take(description->epilogue, value, bytes));
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER: return status_of(take(description->bias, value, bytes));
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER: return status_of(take(description->auxiliary, value, bytes));
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD: return status_of(take(description->auxiliary_leading, value, bytes));
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE: return status_of(take(description->auxiliary_type, value, bytes));
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE: return status_of(take(description->bias_type, value, bytes));
  }
  return CUBLAS_STATUS_NOT_SUPPORTED;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t description) {
  delete description;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType type, uint64_t rows,
                                          uint64_t columns, int64_t leading) {
  if (rows == 0 || columns == 0) return CUBLAS_STATUS_INVALID_VALUE;
  *layout = new Layout{type, rows, columns, leading};
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                cublasLtMatrixLayoutAttribute_t attribute, const void* value,
                                                size_t bytes) {
  switch (attribute) {
    case CUBLASLT_MATRIX_LAYOUT_TYPE: return status_of(take(layout->type, value, bytes));
    case CUBLASLT_MATRIX_LAYOUT_ORDER: return status_of(take(layout->order, value, bytes));
    case CUBLASLT_MATRIX_LAYOUT_ROWS: return status_of(take(layout->rows, value, bytes));
    case CUBLASLT_MATRIX_LAYOUT_COLS: return status_of(take(layout->columns, value, bytes));
    case CUBLASLT_MATRIX_LAYOUT_LD: return status_of(take(layout->leading, value, bytes));
  }
  return CUBLAS_STATUS_NOT_SUPPORTED;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  delete layout;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  *preference = new cublasLtMatmulPreferenceOpaque_t;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute, const void* value,
                                                    size_t bytes) {
  switch (attribute) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES: return status_of(take(preference->workspace_bytes, value, bytes));
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
      return status_of(take(preference->reduction_schemes, value, bytes));
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES: return status_of(take(preference->a_alignment, value, bytes));
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES: return status_of(take(preference->b_alignment, value, bytes));
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES: return status_of(take(preference->c_alignment, value, bytes));
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES: return status_of(take(preference->d_alignment, value, bytes));
  }
  return CUBLAS_STATUS_NOT_SUPPORTED;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  delete preference;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t description,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int requested,
                                              cublasLtMatmulHeuristicResult_t results[], int* returned) {
  *returned = 0;
  if (handle == nullptr || preference == nullptr || requested < 1) return CUBLAS_STATUS_INVALID_VALUE;
  const std::string misuse = shape_misuse(*description, *a, *b, *c, *d);
  if (!misuse.empty()) return refuse(CUBLAS_STATUS_NOT_SUPPORTED, misuse);
  results[0] = {};
  results[0].algo.data[0] = digest(*description, *a, *b, *c, *d);
  results[0].algo.data[1] =
      std::min(preference->a_alignment,
               std::min(preference->b_alignment, std::min(preference->c_alignment, preference->d_alignment)));
  *returned = 1;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t description, const void* alpha,
                              const void* a, cublasLtMatrixLayout_t a_layout, const void* b,
                              cublasLtMatrixLayout_t b_layout, const void* beta, const void* c,
                              cublasLtMatrixLayout_t c_layout, void* d, cublasLtMatrixLayout_t d_layout,
                              const cublasLtMatmulAlgo_t* algorithm, void* workspace, size_t workspace_bytes,
                              cudaStream_t stream) {
  if (handle == nullptr) return CUBLAS_STATUS_NOT_INITIALIZED;
  if (!Machine::instance().is_stream(stream)) return refuse(CUBLAS_STATUS_INVALID_VALUE, "no such stream");
  std::string misuse = shape_misuse(*description, *a_layout, *b_layout, *c_layout, *d_layout);
  if (!misuse.empty()) return refuse(CUBLAS_STATUS_NOT_SUPPORTED, misuse);
  if (algorithm != nullptr && algorithm->data[0] != digest(*description, *a_layout, *b_layout, *c_layout, *d_layout)) {
    return refuse(CUBLAS_STATUS_INVALID_VALUE, "the algorithm was chosen for another problem");
  }
  if (algorithm != nullptr) {
    for (const void* memory : {a, b, c, static_cast<const void*>(d)}) {
      if (reinterpret_cast<uintptr_t>(memory) % algorithm->data[1] != 0) {
        return refuse(CUBLAS_STATUS_INVALID_VALUE, "memory is less aligned than the algorithm was chosen for");
      }
    }
  }
  const Product product = {*description,
                           *a_layout,
                           *b_layout,
                           *c_layout,
                           *d_layout,
                           a,
                           b,
                           c,
                           d,
                           *static_cast<const float*>(alpha),
                           *static_cast<const float*>(beta),
                           workspace,
                           workspace_bytes};
  misuse = product.memory_misuse();
  if (!misuse.empty()) return refuse(CUBLAS_STATUS_INVALID_VALUE, misuse);
  Machine::instance().enqueue(stream, {.run =
                                           [product] {
                                             std::string report = product.memory_misuse();
                                             if (report.empty()) product.run();
                                             return report;
                                           },
                                       .ready = {},
                                       .what = "product"});
  return Machine::instance().fault().empty() ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}
