// Backward: for each key head, tiles of keys outside and blocks of queries inside. The weights p and the gradients of
// the scores, ds, of a block against a tile are made strip by strip; d_query takes its part at once, d_key and d_value
// when the block is complete. All query heads of a key head are taken in turn by one thread, so sums have one order.
#include <cmath>

#include "kernels/cpu/attention.h"
#include "kernels/cpu/attention_softmax.h"
#include "kernels/cpu/scratch.h"
#include "lib/base/parallel.h"

namespace quintet::kernels::cpu {

namespace {

constexpr int64_t kKeyTile = 64;
constexpr int64_t kQueryBlock = 16 * kTileRows;

template <typename T>
struct BackwardScratch {
  Scratch<T> keys, keys_transposed, values_transposed, queries, d_outputs, weights, d_scores, deltas;
};

// A tile of keys and values, packed for the products that they enter.
template <typename T>
struct KeyTile {
  Range rows;
  PackedOperand<T> keys, keys_transposed, values_transposed;
};

template <typename T>
class HeadBackward {
 public:
  HeadBackward(const AttentionBackwardArgs<T>& args, int64_t b, int64_t key_head, BackwardScratch<T>& scratch)
      : args_(args),
        shape_(args.shape),
        b_(b),
        key_head_(key_head),
        group_(shape_.heads / shape_.key_heads),
        dim_(shape_.head_dim),
        scratch_(scratch) {
    weights_ = scratch.weights.get(kQueryBlock * kKeyTile);
    d_scores_ = scratch.d_scores.get(kQueryBlock * kKeyTile);
    deltas_ = scratch.deltas.get(group_ * shape_.query_rows);
  }

  void run() {
    if (!args_.accumulate) clear_gradients();
    for (int64_t i = 0; i < group_; ++i) compute_deltas(key_head_ * group_ + i, deltas_ + i * shape_.query_rows);
    for (int64_t key = 0; key < shape_.key_rows; key += kKeyTile) {
      const int64_t first = first_query_of(shape_, key);
      if (first >= shape_.query_rows) break;
      const KeyTile<T> tile = pack_tile({key, std::min(key + kKeyTile, shape_.key_rows)});
      for (int64_t i = 0; i < group_; ++i) {
        for (int64_t q = first; q < shape_.query_rows; q += kQueryBlock) {
          add_block(tile, i, {q, std::min(q + kQueryBlock, shape_.query_rows)});
        }
      }
    }
  }

 private:
  static void clear(const HeadTensor<T>& tensor, int64_t b, int64_t head, int64_t rows, int64_t dim) {
    for (int64_t row = 0; row < rows; ++row) std::fill_n(tensor.at(b, head) + row * tensor.row_stride, dim, T{0});
  }

  void clear_gradients() const {
    clear(args_.d_key, b_, key_head_, shape_.key_rows, dim_);
    clear(args_.d_value, b_, key_head_, shape_.key_rows, dim_);
    for (int64_t i = 0; i < group_; ++i) clear(args_.d_query, b_, key_head_ * group_ + i, shape_.query_rows, dim_);
  }

  // deltas[q] = output[q] . d_output[q], which is the sum over keys of weight times d_weight.
  void compute_deltas(int64_t head, T* deltas) const {
    for (int64_t q = 0; q < shape_.query_rows; ++q) {
      const T* output = args_.output.at(b_, head) + q * args_.output.row_stride;
      const T* d_output = args_.d_output.at(b_, head) + q * args_.d_output.row_stride;
      Vector<T> lanes{};
      int64_t i = 0;
      for (; i + kLanes<T> <= dim_; i += kLanes<T>) lanes += load(output + i) * load(d_output + i);
      T sum = 0;
      for (int lane = 0; lane < kLanes<T>; ++lane) sum += lanes[lane];
      for (; i < dim_; ++i) sum += output[i] * d_output[i];
      deltas[q] = sum;
    }
  }

  KeyTile<T> pack_tile(Range rows) const {
    const T* key = args_.key.at(b_, key_head_) + rows.begin * args_.key.row_stride;
    const T* value = args_.value.at(b_, key_head_) + rows.begin * args_.value.row_stride;
    const int64_t transposed = packed_size<T>(dim_, kKeyTile);
    return {
        rows, pack(key, args_.key.row_stride, rows.size(), dim_, scratch_.keys.get(packed_size<T>(kKeyTile, dim_))),
        pack_transposed(key, args_.key.row_stride, dim_, rows.size(), scratch_.keys_transposed.get(transposed)),
        pack_transposed(value, args_.value.row_stride, dim_, rows.size(), scratch_.values_transposed.get(transposed))};
  }

  // The contributions of a block of queries of the group's head i against a tile.
  void add_block(const KeyTile<T>& tile, int64_t i, Range queries) {
    const int64_t head = key_head_ * group_ + i;
    const TileOperand<T> query{args_.query.at(b_, head), args_.query.row_stride, 1};
    const TileOperand<T> d_output{args_.d_output.at(b_, head), args_.d_output.row_stride, 1};
    bool any = false;
    for (int64_t q = queries.begin; q < queries.end; q += kTileRows) {
      const int rows = static_cast<int>(std::min<int64_t>(kTileRows, queries.end - q));
      const VisibleTile<T> visible(shape_, b_, q, rows, tile.rows);
      T* weights = weights_ + (q - queries.begin) * kKeyTile;
      T* d_scores = d_scores_ + (q - queries.begin) * kKeyTile;
      for (int r = 0; r < rows; ++r) {
        clear_outside(visible.columns(), weights + r * kKeyTile);
        clear_outside(visible.columns(), d_scores + r * kKeyTile);
      }
      if (visible.empty()) continue;
      any = true;
      const int64_t begin = visible.all.begin;
      block_product<TileStore::overwrite>(rows, visible.columns(), {0, dim_}, query.from(q, 0), tile.keys_transposed,
                                          weights + begin, kKeyTile);
      block_product<TileStore::overwrite>(rows, visible.columns(), {0, dim_}, d_output.from(q, 0),
                                          tile.values_transposed, d_scores + begin, kKeyTile);
      turn_into_gradients(visible, head, i, q, rows, weights, d_scores);
      block_product<TileStore::add>(rows, {0, dim_}, visible.all, TileOperand<T>{d_scores + begin, kKeyTile, 1},
                                    tile.keys, args_.d_query.at(b_, head) + q * args_.d_query.row_stride,
                                    args_.d_query.row_stride);
    }
    if (any) add_to_keys(tile, queries, query, d_output);
  }

  static void clear_outside(Range columns, T* row) {
    std::fill(row, row + columns.begin, T{0});
    std::fill(row + columns.end, row + kKeyTile, T{0});
  }

  // weights: scores to p = exp(score / sqrt(dim) - log_sum_exp); d_scores: dp to ds = p (dp - delta) / sqrt(dim).
  void turn_into_gradients(const VisibleTile<T>& visible, int64_t head, int64_t i, int64_t q, int rows, T* weights,
                           T* d_scores) const {
    const T factor = static_cast<T>(1 / std::sqrt(static_cast<double>(dim_)));
    const T scale = static_cast<T>(kLog2E / std::sqrt(static_cast<double>(dim_)));
    const T* log_sum_exp = args_.log_sum_exp + (b_ * shape_.heads + head) * shape_.query_rows + q;
    const T* deltas = deltas_ + i * shape_.query_rows + q;
    const Range columns = visible.columns();
    for (int r = 0; r < rows; ++r, weights += kKeyTile, d_scores += kKeyTile) {
      const T reference = log_sum_exp[r] * static_cast<T>(kLog2E);
      for (int64_t k = columns.begin; k < columns.end; k += kLanes<T>) {
        const Vector<T> p = exp2_of<T>(load(weights + k) * scale - reference);
        store(p, weights + k);
        store<T>(p * (load(d_scores + k) - deltas[r]) * factor, d_scores + k);
      }
      visible.fill_unseen(r, T{0}, weights);
      visible.fill_unseen(r, T{0}, d_scores);
    }
  }

  // d_value += p^T d_output, d_key += ds^T query, for keys in strips, each from the first query that sees it on.
  void add_to_keys(const KeyTile<T>& tile, Range queries, const TileOperand<T>& query, const TileOperand<T>& d_output) {
    const int64_t size = packed_size<T>(kQueryBlock, dim_);
    const PackedOperand<T> packed_queries =
        pack(query.from(queries.begin, 0).data, query.row_stride, queries.size(), dim_, scratch_.queries.get(size));
    const PackedOperand<T> packed_d_outputs = pack(d_output.from(queries.begin, 0).data, d_output.row_stride,
                                                   queries.size(), dim_, scratch_.d_outputs.get(size));
    for (int64_t k = tile.rows.begin; k < tile.rows.end; k += kTileRows) {
      const int64_t rows = std::min<int64_t>(kTileRows, tile.rows.end - k);
      const int64_t first = std::max(first_query_of(shape_, k), queries.begin) - queries.begin;
      if (first >= queries.size()) break;
      const int64_t at = first * kKeyTile + k - tile.rows.begin;
      block_product<TileStore::add>(
          rows, {0, dim_}, {first, queries.size()}, TileOperand<T>{weights_ + at, 1, kKeyTile}, packed_d_outputs,
          args_.d_value.at(b_, key_head_) + k * args_.d_value.row_stride, args_.d_value.row_stride);
      block_product<TileStore::add>(rows, {0, dim_}, {first, queries.size()},
                                    TileOperand<T>{d_scores_ + at, 1, kKeyTile}, packed_queries,
                                    args_.d_key.at(b_, key_head_) + k * args_.d_key.row_stride, args_.d_key.row_stride);
    }
  }

  const AttentionBackwardArgs<T>& args_;
  const AttentionShape& shape_;
  int64_t b_, key_head_, group_, dim_;
  BackwardScratch<T>& scratch_;
  T* weights_;
  T* d_scores_;
  T* deltas_;
};

}  // namespace

template <typename T>
void attention_backward(const AttentionBackwardArgs<T>& args) {
  const AttentionShape& shape = args.shape;
  parallel_for(args.threads, shape.batch * shape.key_heads, 1, [&](int64_t begin, int64_t end) {
    thread_local BackwardScratch<T> scratch;
    for (int64_t i = begin; i < end; ++i) {
      HeadBackward<T>(args, i / shape.key_heads, i % shape.key_heads, scratch).run();
    }
  });
}

template void attention_backward(const AttentionBackwardArgs<float>&);
template void attention_backward(const AttentionBackwardArgs<double>&);

}  // namespace quintet::kernels::cpu
