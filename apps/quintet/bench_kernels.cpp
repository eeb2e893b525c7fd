#include "apps/quintet/bench_kernels.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <fmt/core.h>

#include "apps/quintet/yardsticks.h"
#include "lib/base/integers.h"
#include "lib/base/random.h"
#include "lib/device/cuda/cuda_device.h"
#include "lib/device/device.h"
#include "lib/device/memory.h"

namespace quintet {
namespace {

using device::Activation;

// Letters as in lib/device/device.h.
struct Sizes {
  int64_t rows, width;                // T and H: 256 MiB of bf16
  int64_t vocabulary;                 // of the embedding
  int64_t logit_rows, logit_columns;  // of cross-entropy
  int64_t merged_rows;                // of its merge, over four shards
  int64_t sequence, heads, head_dim;  // of attention, one sequence
  int64_t product;                    // m, n and k
  int64_t parameters;                 // of the optimizer
};
constexpr Sizes kLarge = {32768, 4096, 50304, 4096, 50304, 1 << 21, 8192, 32, 128, 8192, 1 << 26};
constexpr Sizes kTiny = {24, 64, 96, 24, 96, 40, 48, 4, 32, 64, 512};

class KernelBench {
 public:
  KernelBench(DType dtype, bool tiny)
      : sizes_(tiny ? kTiny : kLarge),
        tiny_(tiny),
        dtype_(dtype),
        device_(device::make_cuda_device(0, 1)),
        arena_(*device_, ledger_, device::Owner::workspace) {}

  int run() {
    fmt::print("{}, {}\n", device_->description(), name_of(dtype_));
    measure_yardsticks();
    if (!tiny_)
      fmt::print("copy from device to device: {:.0f} GB/s; best plain product: {:.1f} TFLOP/s\n", bandwidth_ / 1e9,
                 peak_ / 1e12);
    print_head("MB", "GB/s", "of copy");
    measure_elementwise();
    measure_embedding();
    measure_norm();
    measure_heads();
    measure_cross_entropy();
    measure_optimizer();
    print_head("GFLOP", "TFLOP/s", "of peak");
    measure_products();
    measure_attention();
    return 0;
  }

 private:
  using Call = std::function<void()>;

  double seconds_of(const Call& call) {
    return tiny_ ? device::cuda_seconds(*device_, call) : gpu_seconds(*device_, call);
  }

  void print_head(const char* amount, const char* rate, const char* share) const {
    if (tiny_) return;
    fmt::print("\n{:<42} {:>8} {:>12} {:>8} {:>8}\n", "operation", amount, "microseconds", rate, share);
  }
  void moves(const std::string& name, int64_t bytes, const Call& call) {
    const double seconds = seconds_of(call), rate = static_cast<double>(bytes) / seconds;
    if (tiny_) return fmt::print("{:<42} {:>8} bytes\n", name, bytes);
    fmt::print("{:<42} {:>8.0f} {:>12.1f} {:>8.0f} {:>7.1f}%\n", name, static_cast<double>(bytes) / 1e6, 1e6 * seconds,
               rate / 1e9, 100 * rate / bandwidth_);
  }
  void computes(const std::string& name, double flops, const Call& call) {
    const double seconds = seconds_of(call), rate = flops / seconds;
    if (tiny_) return fmt::print("{:<42} {:>8.0f} FLOPs\n", name, flops);
    fmt::print("{:<42} {:>8.0f} {:>12.1f} {:>8.1f} {:>7.1f}%\n", name, flops / 1e9, 1e6 * seconds, rate / 1e12,
               100 * rate / peak_);
  }

  Tensor random(DType dtype, Shape shape) { return random_operand(*device_, arena_, dtype, shape); }
  Tensor random(Shape shape) { return random(dtype_, shape); }
  Tensor statistics(Shape shape) { return random(DType::fp32, shape); }

  template <typename Function>
  Tensor indices(int64_t count, Function&& index_of) {
    std::vector<int32_t> values;
    for (int64_t i = 0; i < count; ++i) values.push_back(narrow<int32_t>(index_of(i)));
    const Tensor tensor = arena_.allocate(DType::i32, {count});
    device_->copy(Tensor(values.data(), DType::i32, {count}), tensor);
    return tensor;
  }
  Tensor random_indices(int64_t count, int64_t limit) {
    return indices(count, [&](int64_t i) { return philox(2, static_cast<uint64_t>(i), 0)[0] % limit; });
  }

  device::Dropout dropout(int64_t rows) {
    std::vector<int64_t> identities;
    for (int64_t i = 0; i < rows; ++i) identities.push_back(i);
    const Tensor tensor = arena_.allocate(DType::i64, {rows});
    device_->copy(Tensor(identities.data(), DType::i64, {rows}), tensor);
    return {.probability = 0.1, .seed = 1, .stream = 2, .rows = tensor};
  }

  void measure_yardsticks() {
    const device::ArenaScope scope(arena_);
    const Tensor from = random({sizes_.rows, sizes_.width}), to = random({sizes_.rows, sizes_.width});
    bandwidth_ = 2 * static_cast<double>(from.bytes()) / seconds_of([&] { device_->copy(from, to); });
    if (!tiny_) peak_ = best_product(*device_, dtype_, sizes_.product);
  }

  void measure_elementwise() {
    const Shape shape = {sizes_.rows, sizes_.width};
    {
      const device::ArenaScope scope(arena_);
      const Tensor a = random(shape), b = random(shape), c = random(shape), d = random(shape), e = random(shape);
      moves("fill", a.bytes(), [&] { device_->fill(a, 0.5); });
      moves("scale", 2 * a.bytes(), [&] { device_->scale(b, 1.0); });
      ExactSum sum;
      moves("squared norm, with its way to the host", a.bytes(), [&] { device_->squared_norm({&b, 1}, sum); });
      moves("check, with its way to the host", a.bytes(), [&] { device_->all_finite(b); });
      const device::Dropout mask = dropout(shape[0]);
      moves("residual and dropout", 3 * a.bytes(), [&] { device_->add_dropout(a, b, mask, c); });
      moves("swiglu, forward", 3 * a.bytes(), [&] { device_->swiglu_forward({.gate = a, .up = b, .output = c}); });
      moves("swiglu, backward", 5 * a.bytes(),
            [&] { device_->swiglu_backward({.gate = a, .up = b, .d_output = c, .d_gate = d, .d_up = e}); });
      std::vector<const std::byte*> pieces;
      for (const Tensor& piece : {a, b, c, d}) pieces.push_back(static_cast<const std::byte*>(piece.data()));
      auto* total = static_cast<std::byte*>(e.data());
      // As communication does it, on a queue of its own.
      device::WorkQueue& queue = *device_->queue();
      const std::unique_ptr<device::SideQueue> side = queue.branch();
      moves("sum of 4 buffers", 5 * a.bytes(), [&] {
        side->wait_for(*queue.fence());
        side->sum_pieces(dtype_, pieces, total, e.elements());
        queue.wait_for(*side->fence());
      });
    }
    const device::ArenaScope scope(arena_);
    const Tensor narrow = random(DType::bf16, shape), wide = random(DType::fp32, shape);
    moves("cast, fp32 to bf16", narrow.bytes() + wide.bytes(), [&] { device_->copy(wide, narrow); });
    moves("cast, bf16 to fp32", narrow.bytes() + wide.bytes(), [&] { device_->copy(narrow, wide); });
  }

  void measure_embedding() {
    const device::ArenaScope scope(arena_);
    const Tensor tokens = random_indices(sizes_.rows, sizes_.vocabulary);
    const Tensor table = random({sizes_.vocabulary, sizes_.width}), rows = random({sizes_.rows, sizes_.width});
    const Tensor gradient = statistics({sizes_.vocabulary, sizes_.width});
    moves("embedding, forward", 2 * rows.bytes(),
          [&] { device_->embedding_forward({.tokens = tokens, .table = table, .output = rows}); });
    std::vector<int32_t> values(static_cast<size_t>(sizes_.rows));
    device_->copy(tokens, Tensor(values.data(), DType::i32, {sizes_.rows}));
    std::sort(values.begin(), values.end());
    const int64_t distinct = std::unique(values.begin(), values.end()) - values.begin();
    moves("embedding, backward", rows.bytes() + 8 * distinct * sizes_.width,
          [&] { device_->embedding_backward({.tokens = tokens, .d_output = rows, .table_gradient = gradient}); });
  }

  void measure_norm() {
    const Shape shape = {sizes_.rows, sizes_.width}, width = {sizes_.width}, rows = {sizes_.rows};
    for (const device::NormKind kind : {device::NormKind::layernorm, device::NormKind::rmsnorm}) {
      const device::ArenaScope scope(arena_);
      const bool layer = kind == device::NormKind::layernorm;
      const std::string name = layer ? "residual, dropout, layer norm" : "residual, dropout, RMS norm";
      const Tensor residual = random(shape), branch = random(shape), sum = random(shape), output = random(shape);
      const Tensor weight = random(width), bias = layer ? random(width) : Tensor();
      const Tensor mean = layer ? statistics(rows) : Tensor(), deviation = statistics(rows);
      const Tensor weight_gradient = statistics(width), bias_gradient = layer ? statistics(width) : Tensor();
      const device::Dropout mask = dropout(sizes_.rows);
      moves(name + ", forward", 4 * residual.bytes(), [&] {
        device_->add_norm_forward({.kind = kind,
                                   .epsilon = 1e-5,
                                   .residual = residual,
                                   .branch = branch,
                                   .dropout = mask,
                                   .residual_output = sum,
                                   .weight = weight,
                                   .bias = bias,
                                   .output = output,
                                   .mean = mean,
                                   .inverse_deviation = deviation});
      });
      // Two passes over input and d_output: one for the input's gradient, one for the parameters'.
      moves(layer ? "layer norm, backward" : "RMS norm, backward", 6 * residual.bytes(), [&] {
        device_->add_norm_backward_weight({.kind = kind,
                                           .input = sum,
                                           .mean = mean,
                                           .inverse_deviation = deviation,
                                           .d_output = output,
                                           .weight_gradient = weight_gradient,
                                           .bias_gradient = bias_gradient});
        device_->add_norm_backward_input({.kind = kind,
                                          .input = sum,
                                          .weight = weight,
                                          .mean = mean,
                                          .inverse_deviation = deviation,
                                          .d_output = output,
                                          .d_residual = residual});
      });
    }
  }

  void measure_heads() {
    const device::ArenaScope scope(arena_);
    const int64_t heads = sizes_.width / sizes_.head_dim, half = sizes_.head_dim / 2;
    const Shape shape = {sizes_.rows, heads, sizes_.head_dim};
    const Tensor input = random(shape), output = random(shape), gradient = random(shape);
    const Tensor scale = random({sizes_.head_dim}), scale_gradient = statistics({sizes_.head_dim});
    const Tensor cosine = statistics({sizes_.sequence, half}), sine = statistics({sizes_.sequence, half});
    const Tensor inverse = statistics({sizes_.rows, heads});
    const Tensor positions = indices(sizes_.rows, [&](int64_t i) { return i % sizes_.sequence; });
    for (const bool norm : {false, true}) {
      const std::string name = norm ? "qk norm and rotation" : "rotation";
      moves(name + ", forward", 2 * input.bytes(), [&] {
        device_->rope_norm_forward({.input = input,
                                    .scale = norm ? scale : Tensor(),
                                    .epsilon = 1e-5,
                                    .cosine = cosine,
                                    .sine = sine,
                                    .positions = positions,
                                    .inverse_rms = norm ? inverse : Tensor(),
                                    .output = output});
      });
      moves(name + ", backward", (norm ? 5 : 2) * input.bytes(), [&] {
        if (norm)
          device_->rope_norm_backward_weight({.input = input,
                                              .cosine = cosine,
                                              .sine = sine,
                                              .positions = positions,
                                              .inverse_rms = inverse,
                                              .d_output = gradient,
                                              .scale_gradient = scale_gradient});
        device_->rope_norm_backward_input({.input = norm ? input : Tensor(),
                                           .scale = norm ? scale : Tensor(),
                                           .cosine = cosine,
                                           .sine = sine,
                                           .positions = positions,
                                           .inverse_rms = norm ? inverse : Tensor(),
                                           .d_output = gradient,
                                           .d_input = gradient});
      });
    }
  }

  void measure_cross_entropy() {
    const device::ArenaScope scope(arena_);
    const Shape rows = {sizes_.logit_rows};
    const Tensor logits = random({sizes_.logit_rows, sizes_.logit_columns});
    const Tensor targets = random_indices(sizes_.logit_rows, sizes_.logit_columns);
    const Tensor maximum = statistics(rows), sum_exp = statistics(rows), target = statistics(rows);
    moves("cross-entropy, statistics", logits.bytes(), [&] {
      device_->cross_entropy_statistics({.logits = logits,
                                         .targets = targets,
                                         .valid = sizes_.logit_columns,
                                         .maximum = maximum,
                                         .sum_exp = sum_exp,
                                         .target_logit = target});
    });
    moves("cross-entropy, gradient", 2 * logits.bytes(), [&] {
      device_->cross_entropy_gradient({.logits = logits,
                                       .targets = targets,
                                       .valid = sizes_.logit_columns,
                                       .maximum = maximum,
                                       .sum_exp = sum_exp,
                                       .scale = 1.0});
    });
    const Tensor shards = statistics({4, 3, sizes_.merged_rows});
    const Tensor whole = statistics({3, sizes_.merged_rows});
    const auto merged = [&](int64_t i) { return whole.rows(i, 1).reshaped({sizes_.merged_rows}); };
    moves("cross-entropy, merge of 4 shards", shards.bytes() + whole.bytes(), [&] {
      device_->cross_entropy_merge(
          {.shards = shards, .maximum = merged(0), .sum_exp = merged(1), .target_logit = merged(2)});
    });
  }

  void measure_optimizer() {
    const device::ArenaScope scope(arena_);
    const Shape shape = {sizes_.parameters};
    const bool has_master = dtype_ != DType::fp32;
    const Tensor master = statistics(shape), gradient = statistics(shape);
    const Tensor first = statistics(shape), second = statistics(shape);
    const Tensor rounded = has_master ? random(shape) : Tensor();
    device_->fill(second, 0.25);  // what is a mean of squares is not negative
    const device::AdamwSpan span = {.weight = has_master ? rounded : master,
                                    .gradient = gradient,
                                    .first_moment = first,
                                    .second_moment = second,
                                    .master = has_master ? master : Tensor(),
                                    .decay = true};
    const device::AdamwStep step = {
        .learning_rate = 1e-4, .beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-8, .weight_decay = 0.1, .update = 10};
    moves("AdamW", sizes_.parameters * (has_master ? 30 : 28), [&] { device_->adamw({&span, 1}, step); });
  }

  double product_flops() const {
    const auto n = static_cast<double>(sizes_.product);
    return 2 * n * n * n;
  }

  void measure_products() {
    const device::ArenaScope scope(arena_);
    const int64_t n = sizes_.product;
    const double flops = product_flops();
    const Tensor x = random({n, n}), weight = random({n, n}), y = random({n, n}), before = random({n, n});
    const Tensor bias = random({n}), bias_gradient = statistics({n}), gradient = statistics({n, n});
    for (const Activation activation : {Activation::none, Activation::gelu, Activation::relu_squared}) {
      const bool plain = activation == Activation::none;
      const std::string name = plain ? "" : activation == Activation::gelu ? ", gelu" : ", squared relu";
      const Tensor pre_activation = plain ? Tensor() : before;
      computes("product, forward, bias" + name, flops, [&] {
        device_->linear_forward({.x = x,
                                 .weight = weight,
                                 .bias = bias,
                                 .activation = activation,
                                 .pre_activation = pre_activation,
                                 .output = y});
      });
      computes("product, backward, input" + name, flops, [&] {
        device_->linear_backward_input(
            {.d_output = y, .weight = weight, .d_x = x, .activation = activation, .pre_activation = pre_activation});
      });
    }
    computes("product, backward, weight", flops,
             [&] { device_->linear_backward_weight({.x = x, .d_output = y, .weight_gradient = gradient}); });
    computes("product, backward, weight and bias", flops, [&] {
      device_->linear_backward_weight(
          {.x = x, .d_output = y, .weight_gradient = gradient, .bias_gradient = bias_gradient});
    });
  }

  void measure_attention() {
    const auto s = static_cast<double>(sizes_.sequence);
    for (const int64_t group : {int64_t{1}, sizes_.heads / 2}) {
      const device::ArenaScope scope(arena_);
      const Shape queries = {1, sizes_.sequence, sizes_.heads, sizes_.head_dim};
      const Shape keys = {1, sizes_.sequence, sizes_.heads / group, sizes_.head_dim};
      const Tensor q = random(queries), k = random(keys), v = random(keys), output = random(queries);
      const Tensor d_output = random(queries), d_q = random(queries), d_k = random(keys), d_v = random(keys);
      const Tensor log_sum_exp = statistics({1, sizes_.heads, sizes_.sequence});
      const double product = static_cast<double>(sizes_.heads * sizes_.head_dim) * s * s;  // one, causal half
      const std::string name = fmt::format("attention, {} heads of {} on {}", sizes_.heads, sizes_.head_dim, keys[2]);
      computes(name + ", forward", 2 * product, [&] {
        device_->attention_forward({.query = q, .key = k, .value = v, .output = output, .log_sum_exp = log_sum_exp});
      });
      computes(name + ", backward", 5 * product, [&] {
        device_->attention_backward({.query = q,
                                     .key = k,
                                     .value = v,
                                     .output = output,
                                     .log_sum_exp = log_sum_exp,
                                     .d_output = d_output,
                                     .d_query = d_q,
                                     .d_key = d_k,
                                     .d_value = d_v});
      });
    }
  }

  const Sizes sizes_;
  const bool tiny_;
  const DType dtype_;
  std::unique_ptr<device::Device> device_;
  device::MemoryLedger ledger_;
  device::Arena arena_;
  double bandwidth_ = 0;  // bytes a second, reads and writes
  double peak_ = 0;       // FLOPs a second
};

}  // namespace

int bench_kernels(DType dtype, bool tiny) { return KernelBench(dtype, tiny).run(); }

}  // namespace quintet
