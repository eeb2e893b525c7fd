// The CPU device: every operation checks its shapes, picks the compute type and calls kernels/cpu.
#include <fmt/core.h>

#if QUINTET_HAS_DNNL
#include <oneapi/dnnl/dnnl.h>
#endif

#include "kernels/cpu/adamw.h"
#include "kernels/cpu/column_sums.h"
#include "kernels/cpu/elementwise.h"
#include "kernels/cpu/instruction_set.h"
#include "kernels/cpu/matmul.h"
#include "kernels/cpu/scratch.h"
#include "lib/device/cpu_arguments.h"
#include "lib/device/device.h"
#include "lib/device/host_memory.h"

namespace quintet::device {
namespace {

namespace kernels = quintet::kernels::cpu;
using kernels::Arithmetic;

// From and To differ; both are fp64, fp32 or bf16.
template <typename From, typename To>
void cast(int threads, const Tensor& from, const Tensor& to) {
  constexpr bool kFloating = !std::is_integral_v<From> && !std::is_integral_v<To>;
  if constexpr (kFloating && !std::is_same_v<From, To>) {
    kernels::cast(threads, from.elements(), from.as<From>(), to.as<To>());
  } else {
    QUINTET_CHECK(false, "no cast from {} to {}", name_of(from.dtype()), name_of(to.dtype()));
  }
}

class CpuDevice : public Device {
 public:
  explicit CpuDevice(int threads) : threads_(threads) { QUINTET_CHECK(threads >= 1, "{} threads", threads); }

  std::string description() const override {
    std::string text =
        fmt::format("CPU, {} thread{} ({})", threads_, threads_ == 1 ? "" : "s", kernels::instruction_set());
#if QUINTET_HAS_DNNL
    const dnnl_version_t* version = dnnl_version();
    text += fmt::format(", oneDNN {}.{}.{}", version->major, version->minor, version->patch);
#endif
    return text;
  }

  int threads() const override { return threads_; }

  void* allocate(int64_t bytes) override { return allocate_host(bytes); }
  void release(void* memory, int64_t bytes) override { release_host(memory, bytes); }

  void fill(Tensor tensor, double value) override {
    visit_dtype(tensor.dtype(), [&]<typename T>() {
      T converted;
      if constexpr (std::is_same_v<T, bfloat16>) {
        converted = bfloat16(static_cast<float>(value));
      } else {
        converted = static_cast<T>(value);
      }
      kernels::fill(threads_, tensor.elements(), converted, tensor.as<T>());
    });
  }

  void copy(Tensor from, Tensor to) override {
    QUINTET_CHECK(from.elements() == to.elements(), "copy from {} to {}", to_string(from.shape()),
                  to_string(to.shape()));
    if (from.dtype() == to.dtype()) return kernels::copy_bytes(threads_, from.bytes(), from.data(), to.data());
    visit_dtype(from.dtype(), [&]<typename From>() {
      visit_dtype(to.dtype(), [&]<typename To>() { cast<From, To>(threads_, from, to); });
    });
  }

  void transpose_rows(Tensor input, Tensor output) override {
    require_rank(input, 3, "input");
    require(output, {input.size(1), input.size(0), input.size(2)}, "output");
    QUINTET_CHECK(input.dtype() == output.dtype(), "{} and {} in transpose_rows", name_of(input.dtype()),
                  name_of(output.dtype()));
    kernels::transpose_rows(threads_, input.size(0), input.size(1), input.size(2) * size_of(input.dtype()),
                            input.data(), output.data());
  }

  void scale(Tensor tensor, double factor) override {
    visit_storage_type(tensor.dtype(), [&]<typename T>() {
      kernels::scale<T>(threads_, tensor.elements(), static_cast<Arithmetic<T>>(factor), tensor.as<T>());
    });
  }

  void add_dropout(Tensor residual, Tensor branch, const Dropout& dropout, Tensor output) override {
    require_rank(output, 2, "output");
    require(branch, output.shape(), "branch");
    require_if_present(residual, output.shape(), "residual");
    const kernels::DropoutMask mask = mask_of(dropout, output.size(0));
    visit_storage_type(output.dtype(), [&]<typename T>() {
      kernels::add_dropout(threads_, mask, output.size(0), output.size(1), residual.as<T>(), branch.as<T>(),
                           output.as<T>());
    });
  }

  void embedding_forward(const EmbeddingForward& op) override {
    require_rank(op.output, 2, "output");
    visit_storage_type(op.output.dtype(), [&]<typename T>() {
      kernels::embedding_forward(embedding_args<T>(op.tokens, op.vocabulary_start, op.positions, op.output, op.table,
                                                   op.position_table, threads_),
                                 op.table.as<T>(), op.position_table.as<T>(), op.output.as<T>());
    });
  }

  void embedding_backward(const EmbeddingBackward& op) override {
    require_rank(op.d_output, 2, "d_output");
    visit_with_gradient(op.d_output, op.table_gradient, [&]<typename T, typename G>() {
      kernels::embedding_backward(embedding_args<T>(op.tokens, op.vocabulary_start, op.positions, op.d_output,
                                                    op.table_gradient, op.position_table_gradient, threads_),
                                  op.d_output.as<T>(), op.table_gradient.as<G>(), op.position_table_gradient.as<G>());
    });
  }

  void add_norm_forward(const AddNormForward& op) override {
    require_rank(op.residual, 2, "residual");
    const Shape shape = op.residual.shape(), rows = {shape[0]}, width = {shape[1]};
    require(op.output, shape, "output");
    require(op.weight, width, "weight");
    require_if_present(op.bias, width, "bias");
    require(op.inverse_deviation, rows, "inverse_deviation");
    if (op.kind == NormKind::layernorm) require(op.mean, rows, "mean");
    kernels::DropoutMask mask;
    if (op.branch) {
      require(op.branch, shape, "branch");
      require(op.residual_output, shape, "residual_output");
      mask = mask_of(op.dropout, shape[0]);
    }
    visit_storage_type(op.residual.dtype(), [&]<typename T>() {
      kernels::add_norm_forward<T>({.norm = kind_of(op.kind),
                                    .rows = shape[0],
                                    .width = shape[1],
                                    .epsilon = op.epsilon,
                                    .residual = op.residual.as<T>(),
                                    .branch = op.branch.as<T>(),
                                    .dropout = mask,
                                    .residual_output = op.residual_output.as<T>(),
                                    .weight = op.weight.as<T>(),
                                    .bias = op.bias.as<T>(),
                                    .output = op.output.as<T>(),
                                    .mean = op.mean.as<Arithmetic<T>>(),
                                    .inverse_deviation = op.inverse_deviation.as<Arithmetic<T>>(),
                                    .threads = threads_});
    });
  }

  void add_norm_backward_input(const AddNormBackwardInput& op) override {
    const Shape shape = norm_backward_shape(op);
    require(op.weight, {shape[1]}, "weight");
    require(op.d_residual, shape, "d_residual");
    visit_storage_type(op.input.dtype(), [&]<typename T>() {
      kernels::NormBackwardArgs<T> args = norm_backward_args<T>(op, threads_);
      args.weight = op.weight.as<T>();
      args.d_input = op.d_residual.as<T>();
      args.accumulate = true;
      kernels::norm_backward_input(args);
    });
  }

  void add_norm_backward_weight(const AddNormBackwardWeight& op) override {
    const Shape width = {norm_backward_shape(op)[1]};
    require(op.weight_gradient, width, "weight_gradient");
    require_if_present(op.bias_gradient, width, "bias_gradient");
    visit_with_gradient(op.input, op.weight_gradient, [&]<typename T, typename G>() {
      kernels::norm_backward_parameters(norm_backward_args<T>(op, threads_), op.weight_gradient.as<G>(),
                                        op.bias_gradient.as<G>());
    });
  }

  void linear_forward(const LinearForward& op) override {
    require_rank(op.x, 2, "x");
    require_rank(op.weight, 2, "weight");
    const int64_t rows = op.x.size(0), inputs = op.x.size(1), outputs = op.weight.size(0);
    const bool plain = op.activation == Activation::none;
    require(op.weight, {outputs, inputs}, "weight");
    require_if_present(op.bias, {outputs}, "bias");
    require(op.output, {rows, outputs}, "output");
    if (op.pre_activation || !plain) require(op.pre_activation, {rows, outputs}, "pre_activation");
    visit_storage_type(op.x.dtype(), [&]<typename T>() {
      T* product = (plain ? op.output : op.pre_activation).as<T>();
      // What is rounded when it is stored has its bias by then.
      const bool with_bias = plain || std::is_same_v<T, bfloat16>;
      kernels::matmul<T, T>({.m = rows,
                             .n = outputs,
                             .k = inputs,
                             .a = op.x.as<T>(),
                             .lda = inputs,
                             .b = op.weight.as<T>(),
                             .ldb = inputs,
                             .transpose_b = true,
                             .bias = with_bias ? op.bias.as<T>() : nullptr,
                             .c = product,
                             .ldc = outputs,
                             .threads = threads_});
      if (!plain) {
        kernels::bias_activation_forward(threads_, kind_of(op.activation), rows, outputs,
                                         with_bias ? nullptr : op.bias.as<T>(), product, op.output.as<T>());
      }
    });
    if (plain && op.pre_activation) copy(op.output, op.pre_activation);
  }

  void linear_backward_input(const LinearBackwardInput& op) override {
    require_rank(op.d_output, 2, "d_output");
    require_rank(op.d_x, 2, "d_x");
    const int64_t rows = op.d_output.size(0), outputs = op.d_output.size(1), inputs = op.d_x.size(1);
    require(op.weight, {outputs, inputs}, "weight");
    require(op.d_x, {rows, inputs}, "d_x");
    const bool plain = op.activation == Activation::none;
    QUINTET_CHECK(plain || !op.accumulate, "an activation's derivative cannot be applied to a sum");
    if (!plain) require(op.pre_activation, op.d_x.shape(), "pre_activation");
    visit_storage_type(op.d_output.dtype(), [&]<typename T>() {
      const auto multiply = [&]<typename C>(int64_t first, int64_t count, C* product) {
        kernels::matmul<T, C>({.m = count,
                               .n = inputs,
                               .k = outputs,
                               .a = op.d_output.as<T>() + first * outputs,
                               .lda = outputs,
                               .b = op.weight.as<T>(),
                               .ldb = inputs,
                               .c = product,
                               .ldc = inputs,
                               .accumulate = op.accumulate,
                               .threads = threads_});
      };
      const auto differentiate = [&](int64_t first, int64_t count, const Arithmetic<T>* product) {
        kernels::activation_backward(threads_, kind_of(op.activation), count * inputs,
                                     op.pre_activation.as<T>() + first * inputs, product,
                                     op.d_x.as<T>() + first * inputs);
      };
      if constexpr (std::is_same_v<T, Arithmetic<T>>) {
        multiply(0, rows, op.d_x.as<T>());
        if (!plain) differentiate(0, rows, op.d_x.as<T>());
      } else if (plain) {
        multiply(0, rows, op.d_x.as<T>());
      } else {
        // Rounded once, behind the derivative: until then some rows at a time are kept in the type of arithmetic.
        thread_local kernels::Scratch<Arithmetic<T>> scratch;
        const int64_t piece = std::max<int64_t>(64, (int64_t{1} << 20) / std::max<int64_t>(1, inputs));
        for (int64_t first = 0; first < rows; first += piece) {
          const int64_t count = std::min(piece, rows - first);
          Arithmetic<T>* product = scratch.get(count * inputs);
          multiply(first, count, product);
          differentiate(first, count, product);
        }
      }
    });
  }

  void linear_backward_weight(const LinearBackwardWeight& op) override {
    require_rank(op.x, 2, "x");
    require_rank(op.d_output, 2, "d_output");
    const int64_t rows = op.x.size(0), inputs = op.x.size(1), outputs = op.d_output.size(1);
    require(op.d_output, {rows, outputs}, "d_output");
    require(op.weight_gradient, {outputs, inputs}, "weight_gradient");
    require_if_present(op.bias_gradient, {outputs}, "bias_gradient");
    visit_with_gradient(op.x, op.weight_gradient, [&]<typename T, typename G>() {
      kernels::matmul<T, G>({.m = outputs,
                             .n = inputs,
                             .k = rows,
                             .a = op.d_output.as<T>(),
                             .lda = outputs,
                             .transpose_a = true,
                             .b = op.x.as<T>(),
                             .ldb = inputs,
                             .c = op.weight_gradient.as<G>(),
                             .ldc = inputs,
                             .accumulate = true,
                             .threads = threads_});
      if (op.bias_gradient) {
        kernels::column_sums(threads_, op.d_output.as<T>(), rows, outputs, op.bias_gradient.as<G>());
      }
    });
  }

  void activation_forward(const ActivationForward& op) override {
    require_rank(op.output, 2, "output");
    require(op.pre_activation, op.output.shape(), "pre_activation");
    visit_storage_type(op.output.dtype(), [&]<typename T>() {
      kernels::bias_activation_forward<T>(threads_, kind_of(op.activation), op.output.size(0), op.output.size(1),
                                          nullptr, op.pre_activation.as<T>(), op.output.as<T>());
    });
  }

  void swiglu_forward(const SwigluForward& op) override {
    require(op.gate, op.output.shape(), "gate");
    require(op.up, op.output.shape(), "up");
    visit_storage_type(op.output.dtype(), [&]<typename T>() {
      kernels::swiglu_forward(threads_, op.output.elements(), op.gate.as<T>(), op.up.as<T>(), op.output.as<T>());
    });
  }

  void swiglu_backward(const SwigluBackward& op) override {
    const Shape shape = op.d_output.shape();
    require(op.gate, shape, "gate");
    require(op.up, shape, "up");
    require(op.d_gate, shape, "d_gate");
    require(op.d_up, shape, "d_up");
    visit_storage_type(op.d_output.dtype(), [&]<typename T>() {
      kernels::swiglu_backward(threads_, op.d_output.elements(), op.gate.as<T>(), op.up.as<T>(), op.d_output.as<T>(),
                               op.d_gate.as<T>(), op.d_up.as<T>());
    });
  }

  void rope_norm_forward(const RopeNormForward& op) override {
    require_rank(op.output, 3, "output");
    require(op.input, op.output.shape(), "input");
    visit_storage_type(op.output.dtype(), [&]<typename T>() {
      kernels::rope_norm_forward(rope_norm_args<T>(op.output, op.scale, op.epsilon, op.cosine, op.sine, op.positions,
                                                   op.inverse_rms, threads_),
                                 op.input.as<T>(), op.inverse_rms.as<Arithmetic<T>>(), op.output.as<T>());
    });
  }

  void rope_norm_backward_input(const RopeNormBackwardInput& op) override {
    require_rank(op.d_output, 3, "d_output");
    require(op.d_input, op.d_output.shape(), "d_input");
    if (op.scale) require(op.input, op.d_output.shape(), "input");
    visit_storage_type(op.d_output.dtype(), [&]<typename T>() {
      kernels::rope_norm_backward_input(
          rope_norm_args<T>(op.d_output, op.scale, 0, op.cosine, op.sine, op.positions, op.inverse_rms, threads_),
          op.input.as<T>(), op.inverse_rms.as<Arithmetic<T>>(), op.d_output.as<T>(), op.d_input.as<T>());
    });
  }

  void rope_norm_backward_weight(const RopeNormBackwardWeight& op) override {
    require_rank(op.d_output, 3, "d_output");
    require(op.input, op.d_output.shape(), "input");
    require(op.inverse_rms, {op.d_output.size(0), op.d_output.size(1)}, "inverse_rms");
    require(op.scale_gradient, {op.d_output.size(2)}, "scale_gradient");
    visit_with_gradient(op.d_output, op.scale_gradient, [&]<typename T, typename G>() {
      kernels::rope_norm_backward_scale(
          rope_norm_args<T>(op.d_output, {}, 0, op.cosine, op.sine, op.positions, op.inverse_rms, threads_),
          op.input.as<T>(), op.inverse_rms.as<Arithmetic<T>>(), op.d_output.as<T>(), op.scale_gradient.as<G>());
    });
  }

  void attention_forward(const AttentionForward& op) override {
    const kernels::AttentionShape shape =
        attention_shape(op.query, op.key, op.first_query, op.first_key, op.document_starts);
    require(op.value, op.key.shape(), "value");
    require(op.output, op.query.shape(), "output");
    require(op.log_sum_exp, {shape.batch, shape.heads, shape.query_rows}, "log_sum_exp");
    visit_with_result(op.query, op.output, [&]<typename T, typename Output>() {
      kernels::attention_forward(
          kernels::AttentionForwardArgs<T, Output>{.shape = shape,
                                                   .query = head_tensor<const T>(op.query),
                                                   .key = head_tensor<const T>(op.key),
                                                   .value = head_tensor<const T>(op.value),
                                                   .output = head_tensor<Output>(op.output),
                                                   .log_sum_exp = op.log_sum_exp.as<Arithmetic<T>>(),
                                                   .threads = threads_});
    });
  }

  void attention_backward(const AttentionBackward& op) override {
    const kernels::AttentionShape shape =
        attention_shape(op.query, op.key, op.first_query, op.first_key, op.document_starts);
    require(op.value, op.key.shape(), "value");
    require(op.output, op.query.shape(), "output");
    require(op.log_sum_exp, {shape.batch, shape.heads, shape.query_rows}, "log_sum_exp");
    require(op.d_output, op.query.shape(), "d_output");
    require(op.d_query, op.query.shape(), "d_query");
    require(op.d_key, op.key.shape(), "d_key");
    require(op.d_value, op.key.shape(), "d_value");
    visit_with_result(op.query, op.d_query, [&]<typename T, typename Gradient>() {
      kernels::attention_backward(
          kernels::AttentionBackwardArgs<T, Gradient>{.shape = shape,
                                                      .query = head_tensor<const T>(op.query),
                                                      .key = head_tensor<const T>(op.key),
                                                      .value = head_tensor<const T>(op.value),
                                                      .output = head_tensor<const T>(op.output),
                                                      .d_output = head_tensor<const T>(op.d_output),
                                                      .log_sum_exp = op.log_sum_exp.as<Arithmetic<T>>(),
                                                      .d_query = head_tensor<Gradient>(op.d_query),
                                                      .d_key = head_tensor<Gradient>(op.d_key),
                                                      .d_value = head_tensor<Gradient>(op.d_value),
                                                      .accumulate = op.accumulate,
                                                      .threads = threads_});
    });
  }

  void attention_merge(const AttentionMerge& op) override {
    require_rank(op.output, 4, "output");
    const Shape shape = op.output.shape(), statistics = {shape[0], shape[2], shape[1]};
    require(op.partial_output, shape, "partial_output");
    require(op.partial_log_sum_exp, statistics, "partial_log_sum_exp");
    require(op.log_sum_exp, statistics, "log_sum_exp");
    visit_storage_type(op.partial_output.dtype(), [&]<typename T>() {
      kernels::attention_merge<T>(
          {.shape = {.batch = shape[0], .heads = shape[2], .query_rows = shape[1], .head_dim = shape[3]},
           .partial_output = head_tensor<const T>(op.partial_output),
           .partial_log_sum_exp = op.partial_log_sum_exp.as<Arithmetic<T>>(),
           .output = head_tensor<Arithmetic<T>>(op.output),
           .log_sum_exp = op.log_sum_exp.as<Arithmetic<T>>(),
           .threads = threads_});
    });
  }

  void cross_entropy_statistics(const CrossEntropyStatistics& op) override {
    require_statistics(op);
    visit_storage_type(op.logits.dtype(), [&]<typename T>() {
      kernels::cross_entropy_statistics(
          cross_entropy_args<T>(op.logits, op.targets, op.vocabulary_start, op.valid, threads_),
          op.maximum.as<Arithmetic<T>>(), op.sum_exp.as<Arithmetic<T>>(), op.target_logit.as<Arithmetic<T>>());
    });
  }

  void cross_entropy_merge(const CrossEntropyMerge& op) override {
    require_rank(op.shards, 3, "shards");
    const int64_t shards = op.shards.size(0), rows = op.shards.size(2);
    require(op.shards, {shards, 3, rows}, "shards");
    require(op.maximum, {rows}, "maximum");
    require(op.sum_exp, {rows}, "sum_exp");
    require(op.target_logit, {rows}, "target_logit");
    visit_compute_type(op.shards.dtype(), [&]<typename T>() {
      kernels::cross_entropy_merge(threads_, shards, rows, op.shards.as<T>(), op.maximum.as<T>(), op.sum_exp.as<T>(),
                                   op.target_logit.as<T>());
    });
  }

  void cross_entropy_gradient(const CrossEntropyGradient& op) override {
    require_rank(op.logits, 2, "logits");
    require(op.maximum, {op.logits.size(0)}, "maximum");
    require(op.sum_exp, {op.logits.size(0)}, "sum_exp");
    visit_storage_type(op.logits.dtype(), [&]<typename T>() {
      kernels::cross_entropy_gradient(
          cross_entropy_args<T>(op.logits, op.targets, op.vocabulary_start, op.valid, threads_),
          op.maximum.as<Arithmetic<T>>(), op.sum_exp.as<Arithmetic<T>>(), op.scale);
    });
  }

  void cross_entropy_sum(const CrossEntropySum& op, ExactSum& sum) override {
    const int64_t rows = require_losses(op);
    visit_compute_type(op.maximum.dtype(), [&]<typename T>() {
      kernels::cross_entropy_sum(rows, op.targets.as<int32_t>(), op.maximum.as<T>(), op.sum_exp.as<T>(),
                                 op.target_logit.as<T>(), sum);
    });
  }

  void router_forward(const RouterForward& op) override {
    const kernels::RouterShape shape =
        router_shape(op.probabilities, op.experts, op.weights, op.log_sum_exp, op.rows, op.normalize, threads_);
    require(op.logits, op.probabilities.shape(), "logits");
    require_if_present(op.selection_bias, {shape.experts}, "selection_bias");
    visit_compute_type(op.logits.dtype(), [&]<typename T>() {
      kernels::router_forward(shape, op.logits.as<T>(), op.selection_bias.as<T>(), op.round_robin,
                              op.probabilities.as<T>(), op.experts.as<int32_t>(), op.weights.as<T>(),
                              op.log_sum_exp.as<T>());
    });
  }

  void router_backward(const RouterBackward& op) override {
    const RouterLosses& losses = op.losses;
    const kernels::RouterShape shape = router_shape(losses.probabilities, op.experts, op.weights, losses.log_sum_exp,
                                                    losses.rows, op.normalize, threads_);
    require(losses.loads, {losses.loads.size(0), shape.experts}, "loads");
    require(op.d_weights, op.weights.shape(), "d_weights");
    require(op.d_logits, losses.probabilities.shape(), "d_logits");
    visit_compute_type(op.d_logits.dtype(), [&]<typename T>() {
      kernels::router_backward<T>(shape, {.probabilities = losses.probabilities.as<T>(),
                                          .chosen = op.experts.as<int32_t>(),
                                          .weights = op.weights.as<T>(),
                                          .log_sum_exp = losses.log_sum_exp.as<T>(),
                                          .d_weights = op.d_weights.as<T>(),
                                          .loads = losses.loads.as<T>(),
                                          .balance_scale = op.balance_scale,
                                          .z_scale = op.z_scale,
                                          .d_logits = op.d_logits.as<T>()});
    });
  }

  void router_losses(const RouterLosses& op, ExactSum& balance, ExactSum& z) override {
    const kernels::RouterShape shape = router_shape(op.probabilities, op.log_sum_exp, op.rows, threads_);
    require(op.loads, {op.loads.size(0), shape.experts}, "loads");
    visit_compute_type(op.probabilities.dtype(), [&]<typename T>() {
      kernels::router_losses(shape, op.probabilities.as<T>(), op.loads.as<T>(), op.log_sum_exp.as<T>(), balance, z);
    });
  }

  void gather_rows(const GatherRows& op) override {
    require_rank(op.input, 2, "input");
    const int64_t rows = op.index.elements(), width = op.input.size(1);
    require(op.output, {rows, width}, "output");
    visit_storage_type(op.input.dtype(), [&]<typename T>() {
      kernels::gather_rows(threads_, rows, width, op.input.as<T>(), op.index.as<int32_t>(), op.output.as<T>());
    });
  }

  void combine_rows(const CombineRows& op) override {
    const kernels::CombineShape shape = combine_shape(op.input, op.index, op.output, threads_);
    require_if_present(op.weights, op.index.shape(), "weights");
    require_if_present(op.addend, op.output.shape(), "addend");
    visit_storage_type(op.input.dtype(), [&]<typename T>() {
      using A = kernels::Arithmetic<T>;
      kernels::combine_rows(shape, op.input.as<T>(), op.index.as<int32_t>(), op.weights.as<A>(), op.addend.as<A>(),
                            op.output.as<T>());
    });
  }

  void combine_rows_backward(const CombineRowsBackward& op) override {
    const kernels::CombineShape shape = combine_shape(op.input, op.index, op.d_output, threads_);
    require(op.weights, op.index.shape(), "weights");
    require(op.d_input, op.input.shape(), "d_input");
    require(op.d_weights, op.index.shape(), "d_weights");
    visit_storage_type(op.input.dtype(), [&]<typename T>() {
      using A = kernels::Arithmetic<T>;
      kernels::combine_rows_backward(shape, op.input.as<T>(), op.index.as<int32_t>(), op.weights.as<A>(),
                                     op.d_output.as<T>(), op.d_input.as<T>(), op.d_weights.as<A>());
    });
  }

  void adamw(std::span<const AdamwSpan> spans, const AdamwStep& step) override {
    QUINTET_CHECK(step.update >= 1, "update {}", step.update);
    for (const AdamwSpan& span : spans) {
      const int64_t elements = span.weight.elements();
      const bool rounds = span.weight.dtype() == DType::bf16;
      QUINTET_CHECK(rounds == static_cast<bool>(span.master), "a weight of {} {} a master",
                    name_of(span.weight.dtype()), rounds ? "without" : "with");
      const Tensor& master = rounds ? span.master : span.weight;
      for (const Tensor& other : {span.gradient, span.first_moment, span.second_moment, master}) {
        QUINTET_CHECK(other.elements() == elements, "{} elements for a weight of {}", other.elements(), elements);
      }
      const kernels::AdamwArgs args = {.learning_rate = step.learning_rate,
                                       .beta1 = step.beta1,
                                       .beta2 = step.beta2,
                                       .epsilon = step.epsilon,
                                       .weight_decay = span.decay ? step.weight_decay : 0,
                                       .gradient_scale = step.gradient_scale,
                                       .update = step.update,
                                       .threads = threads_};
      visit_with_gradient(span.weight, span.gradient, [&]<typename T, typename G>() {
        using A = Arithmetic<T>;
        kernels::adamw(args, elements, span.gradient.as<G>(), master.as<A>(), span.first_moment.as<A>(),
                       span.second_moment.as<A>(), span.weight.as<T>());
      });
    }
  }

  void squared_norm(std::span<const Tensor> tensors, ExactSum& sum) override {
    for (const Tensor& tensor : tensors) {
      visit_storage_type(tensor.dtype(), [&]<typename T>() {
        kernels::squared_norm(threads_, tensor.elements(), tensor.as<T>(), sum);
      });
    }
  }

  bool all_finite(Tensor tensor) override {
    return visit_storage_type(
        tensor.dtype(), [&]<typename T>() { return kernels::all_finite(threads_, tensor.elements(), tensor.as<T>()); });
  }

 private:
  int threads_;
};

}  // namespace

std::unique_ptr<Device> make_cpu_device(int threads) { return std::make_unique<CpuDevice>(threads); }

}  // namespace quintet::device
