// The CUDA device: every operation checks its shapes and queues kernels of kernels/cuda and products of cuBLASLt on one
// stream. What has a result for the host waits for that stream.
#include "lib/device/cuda/cuda_device.h"

#include <cstring>

#include <fmt/core.h>

#include "kernels/cuda/adamw.h"
#include "kernels/cuda/bias.h"
#include "kernels/cuda/elementwise.h"
#include "kernels/cuda/router.h"
#include "kernels/cuda/row_moves.h"
#include "kernels/cuda/swiglu.h"
#include "lib/base/integers.h"
#include "lib/device/cuda/cuda_arguments.h"
#include "lib/device/cuda/gpus.h"
#include "lib/device/cuda/memory_pool.h"
#include "lib/device/cuda/products.h"
#include "lib/device/cuda/side_stream.h"
#include "lib/device/cuda/staging.h"
#include "lib/device/cuda/stream.h"

namespace quintet::device {
namespace cuda {
namespace {

// Makes the GPU the thread's own before anything else is made on it.
int choose_gpu(int ordinal) {
  std::string problem;
  const int visible = visible_gpus(problem);
  if (problem.empty() && ordinal >= visible) problem = fmt::format("there is no GPU {} among {}", ordinal, visible);
  if (problem.empty()) problem = problem_of_gpu(ordinal);
  if (!problem.empty()) fail(ExitCode::config, "{}", problem);
  require_success(cudaSetDevice(ordinal));
  return ordinal;
}

class CudaDevice : public Device, public WorkQueue {
 public:
  CudaDevice(int ordinal, int host_threads)
      : ordinal_(choose_gpu(ordinal)), host_(make_cpu_device(host_threads)), staging_(stream_) {}

  ~CudaDevice() override {
    // Other ranks' queues may still read memory of ours, where a failure unwinds.
    for (const int gpu : reached_) {
      cudaSetDevice(gpu);
      cudaDeviceSynchronize();
    }
    cudaSetDevice(ordinal_);
    cudaDeviceSynchronize();
  }

  std::string description() const override { return fmt::format("GPU {}: {}", ordinal_, name_of_gpu(ordinal_)); }
  int threads() const override { return host_->threads(); }
  WorkQueue* queue() override { return this; }

  std::optional<int64_t> free_bytes() const override {
    size_t free = 0, total = 0;
    require_success(cudaMemGetInfo(&free, &total));
    return static_cast<int64_t>(free) + pool_.idle_bytes();
  }

  void* allocate(int64_t bytes) override {
    void* memory = pool_.take(bytes);
    if (memory == nullptr) return nullptr;
    require_success(cudaMemsetAsync(memory, 0, static_cast<size_t>(bytes), stream_));
    return memory;
  }
  void release(void* memory, int64_t) override { pool_.give_back(memory); }
  int64_t workspace_bytes() const override { return workspace_bytes_; }

  void fill(Tensor tensor, double value) override {
    if (value == 0) {
      require_success(cudaMemsetAsync(tensor.data(), 0, static_cast<size_t>(tensor.bytes()), stream_));
      return;
    }
    visit_element_type(tensor.dtype(), [&]<typename T>() {
      kernels::fill(tensor.elements(), T(static_cast<float>(value)), tensor.as<T>(), stream_);
    });
  }

  void copy(Tensor from, Tensor to) override;

  void transpose_rows(Tensor input, Tensor output) override {
    require_rank(input, 3, "input");
    require(output, {input.size(1), input.size(0), input.size(2)}, "output");
    QUINTET_CHECK(input.dtype() == output.dtype(), "{} and {} in transpose_rows", name_of(input.dtype()),
                  name_of(output.dtype()));
    kernels::transpose_rows(input.size(0), input.size(1), input.size(2) * size_of(input.dtype()), input.data(),
                            output.data(), stream_);
  }

  void scale(Tensor tensor, double factor) override {
    visit_element_type(tensor.dtype(), [&]<typename T>() {
      kernels::scale(tensor.elements(), static_cast<float>(factor), tensor.as<T>(), stream_);
    });
  }

  void add_dropout(Tensor residual, Tensor branch, const Dropout& dropout, Tensor output) override {
    require_rank(output, 2, "output");
    require(branch, output.shape(), "branch");
    require_if_present(residual, output.shape(), "residual");
    const kernels::DropoutMask mask = mask_of(dropout, output.size(0));
    visit_element_type(output.dtype(), [&]<typename T>() {
      kernels::add_dropout<T>(mask, output.size(0), output.size(1), residual.as<T>(), branch.as<T>(), output.as<T>(),
                              stream_);
    });
  }

  void embedding_forward(const EmbeddingForward& op) override {
    require_rank(op.output, 2, "output");
    const auto args = embedding_operands<kernels::EmbeddingArgs>(op.tokens, op.vocabulary_start, op.positions,
                                                                 op.output, op.table, op.position_table);
    visit_element_type(op.output.dtype(), [&]<typename T>() {
      kernels::embedding_forward<T>(args, op.table.as<T>(), op.position_table.as<T>(), op.output.as<T>(), stream_);
    });
  }

  void embedding_backward(const EmbeddingBackward& op) override {
    require_rank(op.d_output, 2, "d_output");
    const auto args = embedding_operands<kernels::EmbeddingArgs>(
        op.tokens, op.vocabulary_start, op.positions, op.d_output, op.table_gradient, op.position_table_gradient);
    visit_with_gradient(op.d_output, op.table_gradient, [&]<typename T, typename G>() {
      kernels::embedding_backward<T, G>(args, op.d_output.as<T>(), op.table_gradient.as<G>(),
                                        op.position_table_gradient.as<G>(), stream_);
    });
  }

  void add_norm_forward(const AddNormForward& op) override;
  void add_norm_backward_input(const AddNormBackwardInput& op) override;
  void add_norm_backward_weight(const AddNormBackwardWeight& op) override;
  void linear_forward(const LinearForward& op) override;
  void linear_backward_input(const LinearBackwardInput& op) override;
  void linear_backward_weight(const LinearBackwardWeight& op) override;

  void activation_forward(const ActivationForward& op) override {
    require_rank(op.output, 2, "output");
    require(op.pre_activation, op.output.shape(), "pre_activation");
    visit_element_type(op.output.dtype(), [&]<typename T>() {
      kernels::bias_activation_forward<T>(kind_of(op.activation), op.output.size(0), op.output.size(1), nullptr,
                                          op.pre_activation.as<T>(), op.output.as<T>(), stream_);
    });
  }

  void swiglu_forward(const SwigluForward& op) override {
    require(op.gate, op.output.shape(), "gate");
    require(op.up, op.output.shape(), "up");
    visit_element_type(op.output.dtype(), [&]<typename T>() {
      kernels::swiglu_forward<T>(op.output.elements(), op.gate.as<T>(), op.up.as<T>(), op.output.as<T>(), stream_);
    });
  }

  void swiglu_backward(const SwigluBackward& op) override {
    const Shape shape = op.d_output.shape();
    require(op.gate, shape, "gate");
    require(op.up, shape, "up");
    require(op.d_gate, shape, "d_gate");
    require(op.d_up, shape, "d_up");
    visit_element_type(op.d_output.dtype(), [&]<typename T>() {
      kernels::swiglu_backward<T>(op.d_output.elements(), op.gate.as<T>(), op.up.as<T>(), op.d_output.as<T>(),
                                  op.d_gate.as<T>(), op.d_up.as<T>(), stream_);
    });
  }

  void rope_norm_forward(const RopeNormForward& op) override {
    require_rank(op.output, 3, "output");
    require(op.input, op.output.shape(), "input");
    visit_element_type(op.output.dtype(), [&]<typename T>() {
      kernels::rope_norm_forward<T>(
          rope_norm_args<T>(op.output, op.scale, op.epsilon, op.cosine, op.sine, op.positions, op.inverse_rms),
          op.input.as<T>(), op.inverse_rms.as<float>(), op.output.as<T>(), stream_);
    });
  }

  void rope_norm_backward_input(const RopeNormBackwardInput& op) override {
    require_rank(op.d_output, 3, "d_output");
    require(op.d_input, op.d_output.shape(), "d_input");
    if (op.scale) require(op.input, op.d_output.shape(), "input");
    visit_element_type(op.d_output.dtype(), [&]<typename T>() {
      kernels::rope_norm_backward_input<T>(
          rope_norm_args<T>(op.d_output, op.scale, 0, op.cosine, op.sine, op.positions, op.inverse_rms),
          op.input.as<T>(), op.inverse_rms.as<float>(), op.d_output.as<T>(), op.d_input.as<T>(), stream_);
    });
  }

  void rope_norm_backward_weight(const RopeNormBackwardWeight& op) override {
    require_rank(op.d_output, 3, "d_output");
    const Shape shape = op.d_output.shape();
    require(op.input, shape, "input");
    require(op.inverse_rms, {shape[0], shape[1]}, "inverse_rms");
    require(op.scale_gradient, {shape[2]}, "scale_gradient");
    void* scratch = workspace(kernels::rope_norm_workspace(shape[0], shape[1], shape[2]));
    visit_with_gradient(op.d_output, op.scale_gradient, [&]<typename T, typename G>() {
      kernels::rope_norm_backward_scale<T, G>(
          rope_norm_args<T>(op.d_output, {}, 0, op.cosine, op.sine, op.positions, op.inverse_rms), op.input.as<T>(),
          op.inverse_rms.as<float>(), op.d_output.as<T>(), op.scale_gradient.as<G>(), scratch, stream_);
    });
  }

  void attention_forward(const AttentionForward& op) override;
  void attention_backward(const AttentionBackward& op) override;
  void attention_merge(const AttentionMerge& op) override;

  void cross_entropy_statistics(const CrossEntropyStatistics& op) override {
    require_statistics(op);
    visit_element_type(op.logits.dtype(), [&]<typename T>() {
      kernels::cross_entropy_statistics(cross_entropy_args<T>(op.logits, op.targets, op.vocabulary_start, op.valid),
                                        op.maximum.as<float>(), op.sum_exp.as<float>(), op.target_logit.as<float>(),
                                        stream_);
    });
  }

  void cross_entropy_merge(const CrossEntropyMerge& op) override {
    require_rank(op.shards, 3, "shards");
    const int64_t shards = op.shards.size(0), rows = op.shards.size(2);
    require(op.shards, {shards, 3, rows}, "shards");
    require(op.maximum, {rows}, "maximum");
    require(op.sum_exp, {rows}, "sum_exp");
    require(op.target_logit, {rows}, "target_logit");
    kernels::cross_entropy_merge(shards, rows, op.shards.as<float>(), op.maximum.as<float>(), op.sum_exp.as<float>(),
                                 op.target_logit.as<float>(), stream_);
  }

  void cross_entropy_gradient(const CrossEntropyGradient& op) override {
    require_rank(op.logits, 2, "logits");
    require(op.maximum, {op.logits.size(0)}, "maximum");
    require(op.sum_exp, {op.logits.size(0)}, "sum_exp");
    visit_element_type(op.logits.dtype(), [&]<typename T>() {
      kernels::cross_entropy_gradient(cross_entropy_args<T>(op.logits, op.targets, op.vocabulary_start, op.valid),
                                      op.maximum.as<float>(), op.sum_exp.as<float>(), op.scale, stream_);
    });
  }

  // Three numbers a row: the host adds them up, exactly.
  void cross_entropy_sum(const CrossEntropySum& op, ExactSum& sum) override {
    const int64_t rows = require_losses(op);
    std::vector<int32_t> targets(static_cast<size_t>(rows));
    std::vector<float> statistics(static_cast<size_t>(3 * rows));
    const Tensor whole(statistics.data(), DType::fp32, {3 * rows});
    const CrossEntropySum on_host = {.targets = Tensor(targets.data(), DType::i32, {rows}),
                                     .maximum = whole.rows(0, rows),
                                     .sum_exp = whole.rows(rows, rows),
                                     .target_logit = whole.rows(2 * rows, rows)};
    copy(op.targets, on_host.targets);
    copy(op.maximum, on_host.maximum);
    copy(op.sum_exp, on_host.sum_exp);
    copy(op.target_logit, on_host.target_logit);
    host_->cross_entropy_sum(on_host, sum);
  }

  void router_forward(const RouterForward& op) override {
    const auto shape = router_operands<kernels::RouterShape>(op.probabilities, op.experts, op.weights, op.log_sum_exp,
                                                             op.rows, op.normalize);
    require(op.logits, op.probabilities.shape(), "logits");
    require_if_present(op.selection_bias, {shape.experts}, "selection_bias");
    kernels::router_forward(shape, op.logits.as<float>(), op.selection_bias.as<float>(), op.round_robin,
                            op.probabilities.as<float>(), op.experts.as<int32_t>(), op.weights.as<float>(),
                            op.log_sum_exp.as<float>(), stream_);
  }
  void router_backward(const RouterBackward& op) override;
  void router_losses(const RouterLosses& op, ExactSum& balance, ExactSum& z) override;

  void gather_rows(const GatherRows& op) override {
    require_rank(op.input, 2, "input");
    const int64_t rows = op.index.elements(), width = op.input.size(1);
    require(op.output, {rows, width}, "output");
    visit_element_type(op.input.dtype(), [&]<typename T>() {
      kernels::gather_rows<T>(rows, width, op.input.as<T>(), op.index.as<int32_t>(), op.output.as<T>(), stream_);
    });
  }

  void combine_rows(const CombineRows& op) override {
    const auto shape = combine_operands<kernels::CombineShape>(op.input, op.index, op.output);
    require_if_present(op.weights, op.index.shape(), "weights");
    require_if_present(op.addend, op.output.shape(), "addend");
    visit_element_type(op.input.dtype(), [&]<typename T>() {
      kernels::combine_rows<T>(shape, op.input.as<T>(), op.index.as<int32_t>(), op.weights.as<float>(),
                               op.addend.as<float>(), op.output.as<T>(), stream_);
    });
  }

  void combine_rows_backward(const CombineRowsBackward& op) override {
    const auto shape = combine_operands<kernels::CombineShape>(op.input, op.index, op.d_output);
    require(op.weights, op.index.shape(), "weights");
    require(op.d_input, op.input.shape(), "d_input");
    require(op.d_weights, op.index.shape(), "d_weights");
    visit_element_type(op.input.dtype(), [&]<typename T>() {
      kernels::combine_rows_backward<T>(shape, op.input.as<T>(), op.index.as<int32_t>(), op.weights.as<float>(),
                                        op.d_output.as<T>(), op.d_input.as<T>(), op.d_weights.as<float>(), stream_);
    });
  }

  void adamw(std::span<const AdamwSpan> spans, const AdamwStep& step) override;
  void squared_norm(std::span<const Tensor> tensors, ExactSum& sum) override;

  bool all_finite(Tensor tensor) override {
    int32_t finite = 1;
    auto* flag = static_cast<int32_t*>(workspace(sizeof finite));
    staging_.upload(&finite, flag, sizeof finite);
    visit_element_type(tensor.dtype(), [&]<typename T>() {
      kernels::check_finite<T>(tensor.elements(), tensor.as<T>(), flag, stream_);
    });
    staging_.download(flag, &finite, sizeof finite);
    return finite != 0;
  }

  bool holds(const void* memory) const override { return pool_.holds(memory); }

  std::shared_ptr<const Fence> fence() override { return fence_behind(stream_); }
  void wait_for(const Fence& fence) override { hold_for(fence, stream_); }
  std::unique_ptr<SideQueue> branch() override { return make_side_stream(); }
  void while_host_waits(std::function<void()> call) override { staging_.while_host_waits(std::move(call)); }

  void reach(int gpu) {
    if (gpu == ordinal_) return;
    int can = 0;
    require_success(cudaDeviceCanAccessPeer(&can, ordinal_, gpu));
    if (can == 0)
      fail(ExitCode::config,
           "GPU {} cannot reach the memory of GPU {}, which other ranks of this process use; show one GPU alone "
           "(CUDA_VISIBLE_DEVICES), or start as many ranks as GPUs with a build that has NCCL",
           ordinal_, gpu);
    const cudaError_t status = cudaDeviceEnablePeerAccess(gpu, 0);
    if (status == cudaErrorPeerAccessAlreadyEnabled) {
      cudaGetLastError();  // another rank on this GPU was first
    } else {
      require_success(status);
    }
    reached_.push_back(gpu);
  }

  double seconds_of(const std::function<void()>& work) {
    Event begin(cudaEventDefault), end(cudaEventDefault);
    begin.record(stream_);
    work();
    end.record(stream_);
    return end.seconds_since(begin);
  }

 private:
  // `bytes` that the next operation may use; what is queued before still finds its own.
  void* workspace(int64_t bytes) {
    if (bytes > workspace_bytes_) {
      if (workspace_ != nullptr) pool_.give_back(workspace_);
      workspace_bytes_ = 0;
      workspace_ = pool_.take(bytes);
      if (workspace_ == nullptr)
        fail(ExitCode::config,
             "memory: the GPU has no {} MiB for the workspace of an operation; choose fewer ranks on this GPU, a "
             "smaller train.micro_batch_size or a smaller model",
             ceil_div(bytes, int64_t{1} << 20));
      workspace_bytes_ = bytes;
    }
    return workspace_;
  }
  bool try_multiply(const Product& product) {
    return products_.multiply(product, workspace(Products::kWorkspaceBytes), stream_);
  }
  void multiply(const Product& product) { QUINTET_CHECK(try_multiply(product), "a plain product was not possible"); }

  int ordinal_;
  std::vector<int> reached_;      // GPUs whose memory this one uses, and that use its own
  std::unique_ptr<Device> host_;  // for what remains to the host
  MemoryPool pool_;
  Stream stream_;
  Staging staging_;
  Products products_;
  void* workspace_ = nullptr;
  int64_t workspace_bytes_ = 0;
};

void CudaDevice::copy(Tensor from, Tensor to) {
  QUINTET_CHECK(from.elements() == to.elements(), "copy from {} to {}", to_string(from.shape()), to_string(to.shape()));
  if (from.elements() == 0) return;
  const bool reads_device = holds(from.data()), writes_device = holds(to.data());
  if (!reads_device && !writes_device) return host_->copy(from, to);
  if (from.dtype() == to.dtype()) {
    if (reads_device && writes_device)
      return require_success(cudaMemcpyAsync(to.data(), from.data(), static_cast<size_t>(from.bytes()),
                                             cudaMemcpyDeviceToDevice, stream_));
    if (writes_device) return staging_.upload(from.data(), to.data(), from.bytes());
    return staging_.download(from.data(), to.data(), from.bytes());
  }
  if (reads_device && writes_device) {
    if (from.dtype() == DType::bf16)
      return kernels::cast(from.elements(), from.as<bfloat16>(), to.as<float>(), stream_);
    return kernels::cast(from.elements(), from.as<float>(), to.as<bfloat16>(), stream_);
  }
  // The host casts what it has or gets.
  const Tensor& on_device = reads_device ? from : to;
  std::vector<std::byte> bytes(static_cast<size_t>(on_device.bytes()));
  const Tensor on_host(bytes.data(), on_device.dtype(), on_device.shape());
  copy(from, on_host);
  copy(on_host, to);
}

void CudaDevice::add_norm_forward(const AddNormForward& op) {
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
  visit_element_type(op.residual.dtype(), [&]<typename T>() {
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
                                  .mean = op.mean.as<float>(),
                                  .inverse_deviation = op.inverse_deviation.as<float>()},
                                 stream_);
  });
}

void CudaDevice::add_norm_backward_input(const AddNormBackwardInput& op) {
  const Shape shape = norm_backward_shape(op);
  require(op.weight, {shape[1]}, "weight");
  require(op.d_residual, shape, "d_residual");
  visit_element_type(op.input.dtype(), [&]<typename T>() {
    kernels::NormBackwardArgs<T> args = norm_backward_args<T>(op);
    args.weight = op.weight.as<T>();
    args.d_input = op.d_residual.as<T>();
    args.accumulate = true;
    kernels::norm_backward_input(args, stream_);
  });
}

void CudaDevice::add_norm_backward_weight(const AddNormBackwardWeight& op) {
  const Shape shape = norm_backward_shape(op), width = {shape[1]};
  require(op.weight_gradient, width, "weight_gradient");
  require_if_present(op.bias_gradient, width, "bias_gradient");
  void* scratch = workspace(kernels::norm_backward_workspace(shape[0], shape[1]));
  visit_with_gradient(op.input, op.weight_gradient, [&]<typename T, typename G>() {
    kernels::norm_backward_parameters(norm_backward_args<T>(op), op.weight_gradient.as<G>(), op.bias_gradient.as<G>(),
                                      scratch, stream_);
  });
}

void CudaDevice::linear_forward(const LinearForward& op) {
  require_rank(op.x, 2, "x");
  require_rank(op.weight, 2, "weight");
  const int64_t rows = op.x.size(0), inputs = op.x.size(1), outputs = op.weight.size(0);
  const bool plain = op.activation == Activation::none;
  require(op.weight, {outputs, inputs}, "weight");
  require_if_present(op.bias, {outputs}, "bias");
  require(op.output, {rows, outputs}, "output");
  if (op.pre_activation || !plain) require(op.pre_activation, {rows, outputs}, "pre_activation");
  const DType dtype = op.x.dtype();
  const Product product = {.operands = dtype,
                           .result_type = dtype,
                           .m = rows,
                           .n = outputs,
                           .k = inputs,
                           .transpose_b = true,
                           .a = op.x.data(),
                           .b = op.weight.data(),
                           .result = (plain ? op.output : op.pre_activation).data()};
  Product fused = product;
  fused.result = op.output.data();
  fused.bias = op.bias.data();
  if (op.activation == Activation::gelu) {
    fused.epilogue = op.bias ? Epilogue::keep_gelu_bias : Epilogue::keep_gelu;
    fused.auxiliary = op.pre_activation.data();
  } else if (plain && op.bias) {
    fused.epilogue = Epilogue::bias;
  }
  if (fused.epilogue == Epilogue::none || !try_multiply(fused)) {
    multiply(product);
    visit_element_type(dtype, [&]<typename T>() {
      if (!plain) {
        kernels::bias_activation_forward<T>(kind_of(op.activation), rows, outputs, op.bias.as<T>(),
                                            op.pre_activation.as<T>(), op.output.as<T>(), stream_);
      } else if (op.bias) {
        kernels::add_bias<T>(rows, outputs, op.bias.as<T>(), op.output.as<T>(), stream_);
      }
    });
  }
  if (plain && op.pre_activation) copy(op.output, op.pre_activation);
}

void CudaDevice::linear_backward_input(const LinearBackwardInput& op) {
  require_rank(op.d_output, 2, "d_output");
  require_rank(op.d_x, 2, "d_x");
  const int64_t rows = op.d_output.size(0), outputs = op.d_output.size(1), inputs = op.d_x.size(1);
  require(op.weight, {outputs, inputs}, "weight");
  require(op.d_x, {rows, inputs}, "d_x");
  const bool plain = op.activation == Activation::none;
  QUINTET_CHECK(plain || !op.accumulate, "an activation's derivative cannot be applied to a sum");
  if (!plain) require(op.pre_activation, op.d_x.shape(), "pre_activation");
  const DType dtype = op.d_output.dtype();
  const Product product = {.operands = dtype,
                           .result_type = dtype,
                           .m = rows,
                           .n = inputs,
                           .k = outputs,
                           .accumulate = op.accumulate,
                           .a = op.d_output.data(),
                           .b = op.weight.data(),
                           .result = op.d_x.data()};
  if (op.activation == Activation::gelu) {
    Product fused = product;
    fused.epilogue = Epilogue::gelu_slope;
    fused.auxiliary = op.pre_activation.data();
    if (try_multiply(fused)) return;
  }
  multiply(product);
  if (plain) return;
  visit_element_type(dtype, [&]<typename T>() {
    kernels::activation_backward<T>(kind_of(op.activation), op.d_x.elements(), op.pre_activation.as<T>(),
                                    op.d_x.as<T>(), stream_);
  });
}

void CudaDevice::linear_backward_weight(const LinearBackwardWeight& op) {
  require_rank(op.x, 2, "x");
  require_rank(op.d_output, 2, "d_output");
  const int64_t rows = op.x.size(0), inputs = op.x.size(1), outputs = op.d_output.size(1);
  require(op.d_output, {rows, outputs}, "d_output");
  require(op.weight_gradient, {outputs, inputs}, "weight_gradient");
  require_if_present(op.bias_gradient, {outputs}, "bias_gradient");
  Product product = {.operands = op.x.dtype(),
                     .result_type = op.weight_gradient.dtype(),
                     .m = outputs,
                     .n = inputs,
                     .k = rows,
                     .transpose_a = true,
                     .accumulate = true,
                     .a = op.d_output.data(),
                     .b = op.x.data(),
                     .result = op.weight_gradient.data()};
  if (product.operands == DType::fp32 && product.result_type == DType::bf16) {
    // A router's: products of fp32 give fp32, so the gradient is widened for a while, behind their workspace.
    const int64_t elements = op.weight_gradient.elements();
    auto* gradient = op.weight_gradient.as<bfloat16>();
    auto* all = static_cast<std::byte*>(workspace(Products::kWorkspaceBytes + elements * int64_t{sizeof(float)}));
    auto* wide = reinterpret_cast<float*>(all + Products::kWorkspaceBytes);
    product.result_type = DType::fp32;
    product.result = wide;
    kernels::cast(elements, static_cast<const bfloat16*>(gradient), wide, stream_);
    multiply(product);
    kernels::cast(elements, static_cast<const float*>(wide), gradient, stream_);
  } else {
    multiply(product);
  }
  if (!op.bias_gradient) return;
  // cuBLASLt's epilogue would overwrite the gradient, which sums over microbatches.
  void* scratch = workspace(kernels::bias_gradient_workspace(rows, outputs));
  visit_with_gradient(op.d_output, op.bias_gradient, [&]<typename T, typename G>() {
    kernels::bias_gradient<T, G>(rows, outputs, op.d_output.as<T>(), op.bias_gradient.as<G>(), scratch, stream_);
  });
}

void CudaDevice::attention_forward(const AttentionForward& op) {
  const kernels::AttentionShape shape =
      attention_shape(op.query, op.key, op.first_query, op.first_key, op.document_starts);
  require(op.value, op.key.shape(), "value");
  require(op.output, op.query.shape(), "output");
  require(op.log_sum_exp, {shape.batch, shape.heads, shape.query_rows}, "log_sum_exp");
  visit_with_result(op.query, op.output, [&]<typename T, typename Output>() {
    kernels::AttentionForwardArgs<T, Output> args;
    args.shape = shape;
    args.query = head_tensor<const T>(op.query);
    args.key = head_tensor<const T>(op.key);
    args.value = head_tensor<const T>(op.value);
    args.output = head_tensor<Output>(op.output);
    args.log_sum_exp = op.log_sum_exp.as<float>();
    kernels::attention_forward(args, stream_);
  });
}

void CudaDevice::attention_backward(const AttentionBackward& op) {
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
    kernels::AttentionBackwardArgs<T, Gradient> args;
    args.shape = shape;
    args.query = head_tensor<const T>(op.query);
    args.key = head_tensor<const T>(op.key);
    args.value = head_tensor<const T>(op.value);
    args.output = head_tensor<const T>(op.output);
    args.d_output = head_tensor<const T>(op.d_output);
    args.log_sum_exp = op.log_sum_exp.as<float>();
    args.d_query = head_tensor<Gradient>(op.d_query);
    args.d_key = head_tensor<Gradient>(op.d_key);
    args.d_value = head_tensor<Gradient>(op.d_value);
    args.accumulate = op.accumulate;
    args.workspace = workspace(kernels::attention_backward_workspace<T>(shape));
    kernels::attention_backward(args, stream_);
  });
}

void CudaDevice::router_backward(const RouterBackward& op) {
  const RouterLosses& losses = op.losses;
  const auto shape = router_operands<kernels::RouterShape>(losses.probabilities, op.experts, op.weights,
                                                           losses.log_sum_exp, losses.rows, op.normalize);
  require(losses.loads, {losses.loads.size(0), shape.experts}, "loads");
  require(op.d_weights, op.weights.shape(), "d_weights");
  require(op.d_logits, losses.probabilities.shape(), "d_logits");
  kernels::router_backward(shape,
                           {.probabilities = losses.probabilities.as<float>(),
                            .chosen = op.experts.as<int32_t>(),
                            .weights = op.weights.as<float>(),
                            .log_sum_exp = losses.log_sum_exp.as<float>(),
                            .d_weights = op.d_weights.as<float>(),
                            .loads = losses.loads.as<float>(),
                            .balance_scale = op.balance_scale,
                            .z_scale = op.z_scale,
                            .d_logits = op.d_logits.as<float>()},
                           stream_);
}

void CudaDevice::router_losses(const RouterLosses& op, ExactSum& balance, ExactSum& z) {
  const auto shape = router_operands<kernels::RouterShape>(op.probabilities, op.log_sum_exp, op.rows);
  require(op.loads, {op.loads.size(0), shape.experts}, "loads");
  if (shape.rows == 0) return;
  std::vector<double> of_rows(static_cast<size_t>(2 * shape.rows));
  const int64_t bytes = 2 * shape.rows * int64_t{sizeof(double)};
  auto* on_device = static_cast<double*>(workspace(bytes));
  kernels::router_losses(shape, op.probabilities.as<float>(), op.loads.as<float>(), op.log_sum_exp.as<float>(),
                         on_device, stream_);
  staging_.download(on_device, of_rows.data(), bytes);
  balance.add(std::span<const double>(of_rows).first(static_cast<size_t>(shape.rows)));
  z.add(std::span<const double>(of_rows).last(static_cast<size_t>(shape.rows)));
}

void CudaDevice::attention_merge(const AttentionMerge& op) {
  require_rank(op.output, 4, "output");
  const Shape shape = op.output.shape(), statistics = {shape[0], shape[2], shape[1]};
  require(op.partial_output, shape, "partial_output");
  require(op.partial_log_sum_exp, statistics, "partial_log_sum_exp");
  require(op.log_sum_exp, statistics, "log_sum_exp");
  visit_element_type(op.partial_output.dtype(), [&]<typename T>() {
    kernels::attention_merge<T>(
        {.shape = {.batch = shape[0], .heads = shape[2], .query_rows = shape[1], .head_dim = shape[3]},
         .partial_output = head_tensor<const T>(op.partial_output),
         .partial_log_sum_exp = op.partial_log_sum_exp.as<float>(),
         .output = head_tensor<float>(op.output),
         .log_sum_exp = op.log_sum_exp.as<float>()},
        stream_);
  });
}

void CudaDevice::adamw(std::span<const AdamwSpan> spans, const AdamwStep& step) {
  QUINTET_CHECK(step.update >= 1, "update {}", step.update);
  if (spans.empty()) return;
  const kernels::AdamwArgs args = {.learning_rate = step.learning_rate,
                                   .beta1 = step.beta1,
                                   .beta2 = step.beta2,
                                   .epsilon = step.epsilon,
                                   .weight_decay = step.weight_decay,
                                   .gradient_scale = step.gradient_scale,
                                   .update = step.update};
  visit_element_type(spans.front().gradient.dtype(), [&]<typename G>() {
    std::vector<kernels::AdamwSpan<G>> passed;
    for (const AdamwSpan& span : spans) {
      const int64_t elements = span.weight.elements();
      for (const Tensor& other : {span.gradient, span.first_moment, span.second_moment})
        QUINTET_CHECK(other.elements() == elements, "{} elements for a weight of {}", other.elements(), elements);
      kernels::AdamwSpan<G> one = {.elements = elements,
                                   .gradient = span.gradient.as<G>(),
                                   .weight = (span.master ? span.master : span.weight).as<float>(),
                                   .first_moment = span.first_moment.as<float>(),
                                   .second_moment = span.second_moment.as<float>(),
                                   .decay = span.decay};
      if (span.master) {
        QUINTET_CHECK(span.master.elements() == elements, "{} master weights of {}", span.master.elements(), elements);
        one.rounded_weight = span.weight.as<bfloat16>();
      }
      passed.push_back(one);
    }
    kernels::adamw<G>(args, passed, stream_);
  });
}

void CudaDevice::squared_norm(std::span<const Tensor> tensors, ExactSum& sum) {
  const auto partials_of = [](const Tensor& tensor) {
    return ceil_div(tensor.elements(), kernels::kSquaresPerPartial);
  };
  int64_t count = 0;
  for (const Tensor& tensor : tensors) count += partials_of(tensor);
  if (count == 0) return;
  std::vector<double> partials(static_cast<size_t>(count));
  auto* on_device = static_cast<double*>(workspace(count * int64_t{sizeof(double)}));
  double* next = on_device;
  for (const Tensor& tensor : tensors) {
    visit_element_type(tensor.dtype(), [&]<typename T>() {
      kernels::squared_norm<T>(tensor.elements(), tensor.as<T>(), next, stream_);
    });
    next += partials_of(tensor);
  }
  staging_.download(on_device, partials.data(), count * int64_t{sizeof(double)});
  sum.add(partials);
}

}  // namespace
}  // namespace cuda

std::unique_ptr<Device> make_cuda_device(int ordinal, int host_threads) {
  return std::make_unique<cuda::CudaDevice>(ordinal, host_threads);
}

void reach_gpus(Device& device, int count) {
  for (int gpu = 0; gpu < count; ++gpu) dynamic_cast<cuda::CudaDevice&>(device).reach(gpu);
}

double cuda_seconds(Device& device, const std::function<void()>& work) {
  return dynamic_cast<cuda::CudaDevice&>(device).seconds_of(work);
}

}  // namespace quintet::device
