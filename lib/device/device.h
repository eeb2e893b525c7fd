// What the model asks of hardware: memory, and a flat list of operations. An operation is the largest region that one
// kernel can do on any device; operands are contiguous views unless strides are named. Letters: T tokens of a
// microbatch (B * S), H hidden, N heads, D head dim, V vocabulary; see lib/README.md. Weights and activations are fp64,
// fp32 or bf16. Statistics (means, inverse deviations, log-sum-exp and their like) and tables of angles are in the type
// of arithmetic: fp32 for bf16, else the type of the activations. What an operation computes from bf16 is rounded once,
// to nearest even. Gradients of parameters are accumulated (+=) in the type of arithmetic and kept in it or in bf16.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "lib/base/exact_sum.h"
#include "lib/device/queue.h"
#include "lib/device/tensor.h"

namespace quintet::device {

enum class Activation : uint8_t { none, gelu, gelu_exact, relu_squared };
enum class NormKind : uint8_t { layernorm, rmsnorm };

// Inverted dropout keyed by identity: element (t, channel) of a [T, H] tensor is kept when word (i mod 4) of the Philox
// block i / 4 is at or above probability * 2^32, with i = rows[t] * H + channel, and then scaled by 1 / (1 -
// probability).
struct Dropout {
  double probability = 0;  // 0: identity
  uint64_t seed = 0;
  uint64_t stream = 0;  // of (layer, site)
  Tensor rows;          // i64 [T]: sample ordinal * sequence length + position
};

// output[t] = table[tokens[t] - vocabulary_start] (zero if not in this shard) + position_table[positions[t]].
struct EmbeddingForward {
  Tensor tokens;  // i32 [T]
  Tensor table;   // [V shard, H]
  int64_t vocabulary_start = 0;
  Tensor position_table;  // [S, H], or absent
  Tensor positions;       // i32 [T]
  Tensor output;          // [T, H]
};

// table_gradient[tokens[t] - vocabulary_start] += d_output[t], in ascending t; the same for positions.
struct EmbeddingBackward {
  Tensor tokens;
  int64_t vocabulary_start = 0;
  Tensor positions;
  Tensor d_output;                 // [T, H]
  Tensor table_gradient;           // [V shard, H]
  Tensor position_table_gradient;  // [S, H], or absent
};

// residual_output = residual + dropout(branch), without branch the residual itself (then residual_output is not
// written and may be absent); output = norm(residual_output) * weight + bias. Statistics are kept for backward.
struct AddNormForward {
  NormKind kind = NormKind::layernorm;
  double epsilon = 0;
  Tensor residual;           // [T, H]
  Tensor branch;             // [T, H], or absent
  Dropout dropout;           // of the branch
  Tensor residual_output;    // [T, H]
  Tensor weight, bias;       // [H]; bias may be absent
  Tensor output;             // [T, H]
  Tensor mean;               // [T]; layernorm only
  Tensor inverse_deviation;  // [T]: 1 / sqrt(variance + epsilon), or 1 / rms
};

// d_residual += the norm's input gradient, in place: what arrives is the gradient of residual_output by other paths.
struct AddNormBackwardInput {
  NormKind kind = NormKind::layernorm;
  Tensor input;                    // [T, H]: forward's residual_output
  Tensor weight;                   // [H]
  Tensor mean, inverse_deviation;  // [T]
  Tensor d_output;                 // [T, H]
  Tensor d_residual;               // [T, H], in and out
};
// Adds to the gradients of weight and bias.
struct AddNormBackwardWeight {
  NormKind kind = NormKind::layernorm;
  Tensor input;
  Tensor mean, inverse_deviation;
  Tensor d_output;
  Tensor weight_gradient, bias_gradient;  // [H]; bias may be absent
};

// pre_activation = x w^T + bias; output = activation(pre_activation as it is stored). pre_activation is written only
// where given, and must be given unless activation is none.
struct LinearForward {
  Tensor x;       // [T, K]
  Tensor weight;  // [M, K]
  Tensor bias;    // [M], or absent
  Activation activation = Activation::none;
  Tensor pre_activation;  // [T, M], or absent
  Tensor output;          // [T, M]
};

// d_x = (d_output w) * activation'(pre_activation): the derivative of the activation that made x is applied here.
// With `accumulate` (only without an activation) d_x += instead.
struct LinearBackwardInput {
  Tensor d_output;  // [T, M]
  Tensor weight;    // [M, K]
  Tensor d_x;       // [T, K]
  bool accumulate = false;
  Activation activation = Activation::none;
  Tensor pre_activation;  // [T, K]
};

// weight_gradient += d_output^T x; bias_gradient += sum over T of d_output.
struct LinearBackwardWeight {
  Tensor x;                // [T, K]
  Tensor d_output;         // [T, M]
  Tensor weight_gradient;  // [M, K]
  Tensor bias_gradient;    // [M], or absent
};

// output = activation(pre_activation): what linear_forward makes of what it stored, the same bits. [T, M]; not `none`.
// On a GPU linear_forward may apply gelu to what it has not rounded yet: under bf16 these may differ there by a
// rounding.
struct ActivationForward {
  Activation activation = Activation::gelu;
  Tensor pre_activation, output;
};

// output = silu(gate) * up; all [T, F].
struct SwigluForward {
  Tensor gate, up, output;
};
struct SwigluBackward {
  Tensor gate, up, d_output;
  Tensor d_gate, d_up;
};

// Per head: RMS norm over D with one scale for all heads (where `scale` is given), then rotation by position in the
// half-split form (channel i turns with channel i + D/2; where `cosine` is given). output may alias input.
struct RopeNormForward {
  Tensor input;  // [T, N, D]
  Tensor scale;  // [D], or absent
  double epsilon = 0;
  Tensor cosine, sine;  // [positions, D/2], or both absent
  Tensor positions;     // i32 [T]
  Tensor inverse_rms;   // [T, N], written where scale is given
  Tensor output;        // [T, N, D]
};
struct RopeNormBackwardInput {
  Tensor input;  // forward's input; needed where scale is given
  Tensor scale;
  Tensor cosine, sine;
  Tensor positions;
  Tensor inverse_rms;
  Tensor d_output;  // [T, N, D]
  Tensor d_input;   // may alias d_output
};
// Adds to the gradient of the scale.
struct RopeNormBackwardWeight {
  Tensor input;
  Tensor cosine, sine;
  Tensor positions;
  Tensor inverse_rms;
  Tensor d_output;
  Tensor scale_gradient;  // [D]
};

// Causal attention, tiled with online softmax: memory is linear in the sequence. Query q sees key k when
// first_key + k <= first_query + q and, with document starts, first_key + k >= document_starts[b, q]. A query that sees
// nothing gives output 0 and log_sum_exp -inf. Query head h uses key head h * key_heads / heads.
// output = softmax(q k^T / sqrt(D)) v. Dao 2023 (FlashAttention-2). Under bf16 the output may be in the type of
// arithmetic: a part of what is rounded once it is whole.
struct AttentionForward {
  Tensor query;                            // [B, S_q, N, D]
  Tensor key, value;                       // [B, S_k, N_kv, D]
  int64_t first_query = 0, first_key = 0;  // global positions of row 0
  Tensor document_starts;                  // i32 [B, S_q]: first position that each query may see; or absent
  Tensor output;                           // [B, S_q, N, D]
  Tensor log_sum_exp;                      // [B, N, S_q], natural log
};

// d_query, d_key, d_value are written, or added to with `accumulate` (a ring's later blocks). Under bf16 all three may
// be in the type of arithmetic.
struct AttentionBackward {
  Tensor query, key, value;
  int64_t first_query = 0, first_key = 0;
  Tensor document_starts;
  Tensor output, log_sum_exp;
  Tensor d_output;
  Tensor d_query, d_key, d_value;
  bool accumulate = false;
};

// Attention over further keys joins attention over those before: both outputs are whole softmaxes of their own, and
// become that over all keys. output is read only where log_sum_exp is not -inf. Liu et al. 2023 (Ring Attention).
struct AttentionMerge {
  Tensor partial_output;       // [B, S_q, N, D]
  Tensor partial_log_sum_exp;  // [B, N, S_q]
  Tensor output;               // [B, S_q, N, D], in the type of arithmetic
  Tensor log_sum_exp;          // [B, N, S_q]
};

// Softmax statistics of a vocabulary shard: maximum[t] of the valid columns, sum_exp[t] of exp(logit - maximum), and
// target_logit[t], 0 where the target lies in another shard. Columns from `valid` on are padding.
struct CrossEntropyStatistics {
  Tensor logits;   // [T, V shard]
  Tensor targets;  // i32 [T]; -1: does not count
  int64_t vocabulary_start = 0;
  int64_t valid = 0;
  Tensor maximum, sum_exp, target_logit;  // [T]
};

// Statistics of all shards of a vocabulary to those of the whole, shards taken in their order. A row's shard
// without weight (maximum -inf, sum_exp 0) adds nothing, and NaN in one shard makes the row's sum_exp NaN.
struct CrossEntropyMerge {
  Tensor shards;  // [shards, 3, T]: maximum, sum_exp and target_logit of each; apart from what follows
  Tensor maximum, sum_exp, target_logit;  // [T]
};

// What statistics of the whole vocabulary come to: maximum + log(sum_exp) - target_logit of each row that counts.
struct CrossEntropySum {
  Tensor targets;                         // i32 [T]; -1: does not count
  Tensor maximum, sum_exp, target_logit;  // [T]
};

// logits become d_logits = (softmax - one_hot) * scale in place; rows that do not count and padding columns become 0.
struct CrossEntropyGradient {
  Tensor logits;
  Tensor targets;
  int64_t vocabulary_start = 0;
  int64_t valid = 0;
  Tensor maximum, sum_exp;  // of the whole vocabulary
  double scale = 1;         // 1 / tokens counted in the global batch
};

// A router's choice of K of E experts for each row (Shazeer et al. 2017): probabilities = softmax(logits); the experts
// of largest probability + selection_bias, ties to the lower index, or with round_robin expert (p * K + j) mod E for
// choice j at position p; weights = their probabilities, with `normalize` scaled to the sum 1. All but `experts` is in
// the type of statistics.
struct RouterRows {
  Tensor identities;            // i64 [T]: sample ordinal * sequence length + position
  int64_t sequence_length = 1;  // S
  int64_t first_ordinal = 0;    // of the microbatch's sequences
};
struct RouterForward {
  Tensor logits;          // [T, E]
  Tensor selection_bias;  // [E], or absent
  bool round_robin = false;
  bool normalize = false;
  RouterRows rows;
  Tensor probabilities;  // [T, E]
  Tensor experts;        // i32 [T, K]
  Tensor weights;        // [T, K]
  Tensor log_sum_exp;    // [T]
};

// The two losses of a router: the sum of probabilities[t, e] * loads[sequence of t, e], and of log_sum_exp[t]^2.
struct RouterLosses {
  Tensor probabilities;  // [T, E]
  Tensor loads;          // [B, E]
  Tensor log_sum_exp;    // [T]
  RouterRows rows;
};

// d_logits of what uses the weights and of both losses times their scales.
struct RouterBackward {
  RouterLosses losses;
  double balance_scale = 0, z_scale = 0;
  bool normalize = false;
  Tensor experts, weights;  // forward's
  Tensor d_weights;         // [T, K]
  Tensor d_logits;          // [T, E]
};

// output[i] = input[index[i]], a row of zeros where index is -1.
struct GatherRows {
  Tensor input;   // [R, H]
  Tensor index;   // i32 [N]
  Tensor output;  // [N, H]
};

// output[t] = addend[t] + sum over j of weights[t, j] * input[index[t, j]], added in the type of arithmetic and rounded
// once; -1 adds nothing.
struct CombineRows {
  Tensor input;    // [R, H]
  Tensor index;    // i32 [T, K]
  Tensor weights;  // [T, K], in the type of arithmetic; absent: 1
  Tensor addend;   // [T, H], in the type of arithmetic; absent: 0
  Tensor output;   // [T, H]
};

// d_input[index[t, j]] = weights[t, j] * d_output[t], rows that no index names left alone, none named twice;
// d_weights[t, j] = d_output[t] . input[index[t, j]], 0 where index is -1.
struct CombineRowsBackward {
  Tensor input, index, weights;
  Tensor d_output;   // [T, H]
  Tensor d_input;    // [R, H]
  Tensor d_weights;  // [T, K]
};

// One contiguous run of a parameter's elements in the optimizer's flat buffers.
struct AdamwSpan {
  Tensor weight, gradient, first_moment, second_moment;  // as many elements each
  Tensor master;                                         // fp32, where weight is its rounding to bf16; else absent
  bool decay = false;                                    // weight decay applies
};
struct AdamwStep {
  double learning_rate = 0, beta1 = 0, beta2 = 0, epsilon = 0, weight_decay = 0;
  double gradient_scale = 1;  // clipping
  int64_t update = 1;         // count of applied updates, this one included
};

class Device {
 public:
  Device() = default;
  virtual ~Device() = default;
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  // "CPU, 2 threads (AVX-512), oneDNN 2.6".
  virtual std::string description() const = 0;
  // Host threads that this rank computes on.
  virtual int threads() const = 0;
  // False: it has sizes only, neither memory nor arithmetic (lib/device/null_device.h).
  virtual bool computes() const { return true; }
  // Null: memory is the host's, and an operation has happened when its call returns. Otherwise operations happen in the
  // order of this queue, and calls return before; those that give the host a result wait for it.
  virtual WorkQueue* queue() { return nullptr; }
  // Bytes that can still be allocated, of all ranks that share it; nothing where memory is the host's.
  virtual std::optional<int64_t> free_bytes() const { return std::nullopt; }

  // Memory, zeroed and 64-byte aligned at least, or null where there is no more; only arenas and buffers
  // (lib/device/memory.h) call these.
  virtual void* allocate(int64_t bytes) = 0;
  virtual void release(void* memory, int64_t bytes) = 0;
  // Bytes that the device has taken for the workspace of its own operations.
  virtual int64_t workspace_bytes() const { return 0; }

  virtual void fill(Tensor tensor, double value) = 0;
  // Copies and casts between any of fp64, fp32, bf16; other types only to themselves. Either side may be host memory:
  // that may change, or has been written, when the call returns.
  virtual void copy(Tensor from, Tensor to) = 0;
  virtual void scale(Tensor tensor, double factor) = 0;
  // output[q][p] = input[p][q], runs of W elements each: [P, Q, W] to [Q, P, W].
  virtual void transpose_rows(Tensor input, Tensor output) = 0;
  // output = residual + dropout(branch); without residual, dropout(branch) alone. output may alias either. [T, H]
  virtual void add_dropout(Tensor residual, Tensor branch, const Dropout& dropout, Tensor output) = 0;

  virtual void embedding_forward(const EmbeddingForward& op) = 0;
  virtual void embedding_backward(const EmbeddingBackward& op) = 0;
  virtual void add_norm_forward(const AddNormForward& op) = 0;
  virtual void add_norm_backward_input(const AddNormBackwardInput& op) = 0;
  virtual void add_norm_backward_weight(const AddNormBackwardWeight& op) = 0;
  virtual void linear_forward(const LinearForward& op) = 0;
  virtual void linear_backward_input(const LinearBackwardInput& op) = 0;
  virtual void linear_backward_weight(const LinearBackwardWeight& op) = 0;
  virtual void activation_forward(const ActivationForward& op) = 0;
  virtual void swiglu_forward(const SwigluForward& op) = 0;
  virtual void swiglu_backward(const SwigluBackward& op) = 0;
  virtual void rope_norm_forward(const RopeNormForward& op) = 0;
  virtual void rope_norm_backward_input(const RopeNormBackwardInput& op) = 0;
  virtual void rope_norm_backward_weight(const RopeNormBackwardWeight& op) = 0;
  virtual void attention_forward(const AttentionForward& op) = 0;
  virtual void attention_backward(const AttentionBackward& op) = 0;
  virtual void attention_merge(const AttentionMerge& op) = 0;
  virtual void cross_entropy_statistics(const CrossEntropyStatistics& op) = 0;
  virtual void cross_entropy_merge(const CrossEntropyMerge& op) = 0;
  virtual void cross_entropy_gradient(const CrossEntropyGradient& op) = 0;
  // Adds the losses of the rows that count, order-free.
  virtual void cross_entropy_sum(const CrossEntropySum& op, ExactSum& sum) = 0;

  virtual void router_forward(const RouterForward& op) = 0;
  virtual void router_backward(const RouterBackward& op) = 0;
  // Adds both losses, order-free.
  virtual void router_losses(const RouterLosses& op, ExactSum& balance, ExactSum& z) = 0;
  virtual void gather_rows(const GatherRows& op) = 0;
  virtual void combine_rows(const CombineRows& op) = 0;
  virtual void combine_rows_backward(const CombineRowsBackward& op) = 0;

  virtual void adamw(std::span<const AdamwSpan> spans, const AdamwStep& step) = 0;
  // Adds the squares of all elements to `sum`, order-free.
  virtual void squared_norm(std::span<const Tensor> tensors, ExactSum& sum) = 0;
  // Whether every element is finite.
  virtual bool all_finite(Tensor tensor) = 0;
};

// A CPU device that computes on `threads` threads.
std::unique_ptr<Device> make_cpu_device(int threads);

}  // namespace quintet::device
