// Forward: for each head, keys and values are packed a tile at a time, and all queries that see some of it pass over
// them in strips as high as a register tile. What a strip needs of its past is its row maxima, its row sums and its
// unnormalised output, which grows in place.
#include "kernels/cpu/attention.h"

#include <cmath>

#include "kernels/cpu/attention_softmax.h"
#include "kernels/cpu/scratch.h"
#include "lib/base/parallel.h"

namespace quintet::kernels::cpu {

namespace {

constexpr int64_t kKeyTile = 128;

template <typename T>
struct ForwardScratch {
  Scratch<T> keys, values, maxima, sums;
};

template <typename T>
T largest(const T* values, Range range) {
  Vector<T> most = load(values + range.begin);
  for (int64_t k = range.begin + kLanes<T>; k < range.end; k += kLanes<T>) {
    const Vector<T> next = load(values + k);
    most = next > most ? next : most;
  }
  T result = most[0];
  for (int lane = 1; lane < kLanes<T>; ++lane) result = std::max(result, most[lane]);
  return result;
}

// Scores become 2^(score * scale - maximum) and their sum is returned.
template <typename T>
T exponentiate(T* scores, Range range, T scale, T maximum) {
  Vector<T> sum{};
  for (int64_t k = range.begin; k < range.end; k += kLanes<T>) {
    const Vector<T> weight = exp2_of<T>(load(scores + k) * scale - maximum);
    store(weight, scores + k);
    sum += weight;
  }
  T result = sum[0];
  for (int lane = 1; lane < kLanes<T>; ++lane) result += sum[lane];
  return result;
}

template <typename T>
void forward_of_head(const AttentionForwardArgs<T>& args, int64_t b, int64_t head, ForwardScratch<T>& scratch) {
  constexpr T kNothing = -std::numeric_limits<T>::infinity();
  const AttentionShape& shape = args.shape;
  const int64_t key_head = head * shape.key_heads / shape.heads, dim = shape.head_dim;
  const T scale = static_cast<T>(kLog2E / std::sqrt(static_cast<double>(dim)));
  const T* query = args.query.at(b, head);
  T* output = args.output.at(b, head);
  T* maxima = scratch.maxima.get(shape.query_rows);  // of score * scale
  T* sums = scratch.sums.get(shape.query_rows);
  std::fill_n(maxima, shape.query_rows, kNothing);
  std::fill_n(sums, shape.query_rows, T{0});
  T* packed_keys = scratch.keys.get(packed_size<T>(dim, kKeyTile));
  T* packed_values = scratch.values.get(packed_size<T>(kKeyTile, dim));
  alignas(64) T scores[kTileRows * kKeyTile];

  for (int64_t key = 0; key < shape.key_rows; key += kKeyTile) {
    if (first_query_of(shape, key) >= shape.query_rows) break;
    const Range tile{key, std::min(key + kKeyTile, shape.key_rows)};
    const PackedOperand<T> keys = pack_transposed(args.key.at(b, key_head) + key * args.key.row_stride,
                                                  args.key.row_stride, dim, tile.size(), packed_keys);
    const PackedOperand<T> values = pack(args.value.at(b, key_head) + key * args.value.row_stride,
                                         args.value.row_stride, tile.size(), dim, packed_values);
    for (int64_t q = first_query_of(shape, key); q < shape.query_rows; q += kTileRows) {
      const int rows = static_cast<int>(std::min<int64_t>(kTileRows, shape.query_rows - q));
      const VisibleTile<T> visible(shape, b, q, rows, tile);
      if (visible.empty()) continue;
      block_product<TileStore::overwrite>(rows, visible.columns(), {0, dim},
                                          TileOperand<T>{query + q * args.query.row_stride, args.query.row_stride, 1},
                                          keys, scores + visible.all.begin, kKeyTile);
      T factors[kTileRows];
      for (int r = 0; r < rows; ++r) {
        T* row = scores + r * kKeyTile;
        visible.fill_unseen(r, kNothing, row);
        T& maximum = maxima[q + r];
        T& sum = sums[q + r];
        const T larger = std::max(maximum, largest(row, visible.columns()) * scale);
        const T reference = larger == kNothing ? T{0} : larger;
        factors[r] = exp2_of<T>(maximum - reference);
        sum = sum * factors[r] + exponentiate(row, visible.columns(), scale, reference);
        maximum = larger;
      }
      block_product<TileStore::rescale>(rows, {0, dim}, visible.all,
                                        TileOperand<T>{scores + visible.all.begin, kKeyTile, 1}, values,
                                        output + q * args.output.row_stride, args.output.row_stride, factors);
    }
  }

  T* log_sum_exp = args.log_sum_exp + (b * shape.heads + head) * shape.query_rows;
  for (int64_t q = 0; q < shape.query_rows; ++q) {
    T* row = output + q * args.output.row_stride;
    if (sums[q] == T{0}) {  // saw nothing; a sum is NaN or at least 1 otherwise
      std::fill_n(row, dim, T{0});
      log_sum_exp[q] = kNothing;
      continue;
    }
    const T inverse = T{1} / sums[q];
    for (int64_t i = 0; i < dim; ++i) row[i] *= inverse;
    log_sum_exp[q] = maxima[q] * static_cast<T>(kLn2) + std::log(sums[q]);
  }
}

}  // namespace

template <typename T>
void attention_forward(const AttentionForwardArgs<T>& args) {
  const AttentionShape& shape = args.shape;
  parallel_for(args.threads, shape.batch * shape.heads, 1, [&](int64_t begin, int64_t end) {
    thread_local ForwardScratch<T> scratch;
    for (int64_t i = begin; i < end; ++i) forward_of_head(args, i / shape.heads, i % shape.heads, scratch);
  });
}

template void attention_forward(const AttentionForwardArgs<float>&);
template void attention_forward(const AttentionForwardArgs<double>&);

}  // namespace quintet::kernels::cpu
