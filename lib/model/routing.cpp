#include "lib/model/routing.h"

#include <algorithm>
#include <numeric>

#include "lib/base/error.h"
#include "lib/base/random.h"

namespace quintet::model {
namespace {

// aux = mean over sequences and layers of E * sum over e of (load_e / (S K)) * (sum of p_e / S).
double aux_of_sum(const config::Config& config) {
  const auto experts = static_cast<double>(config.model.moe->experts);
  const auto length = static_cast<double>(config.model.seq_length);
  const auto top_k = static_cast<double>(config.model.moe->top_k);
  const auto sequences = static_cast<double>(config.train.global_batch_size);
  return experts / (length * length * top_k * sequences * static_cast<double>(moe_layers(config.model)));
}

double z_of_sum(const config::Config& config) {
  return 1.0 / (static_cast<double>(config.train.global_batch_size) * static_cast<double>(config.model.seq_length) *
                static_cast<double>(moe_layers(config.model)));
}

}  // namespace

bool is_moe_layer(const config::Model& config, int64_t layer) {
  return config.moe && (layer + 1) % config.moe->every == 0;
}

int64_t moe_ordinal(const config::Model& config, int64_t layer) { return (layer + 1) / config.moe->every - 1; }

int64_t moe_layers(const config::Model& config) { return config.moe ? config.layers / config.moe->every : 0; }

RoutingTotals RoutingTotals::zero(const config::Model& config) {
  RoutingTotals totals;
  if (config.moe) totals.loads.assign(static_cast<size_t>(moe_layers(config) * config.moe->experts), 0);
  return totals;
}

void LayerRouting::count(int64_t layer, std::span<const int32_t> choices, std::span<const int64_t> identities) {
  const size_t top_k = choices.size() / identities.size();
  for (size_t i = 0; i < choices.size(); ++i) {
    ++loads[static_cast<size_t>(choices[i])];
    const uint64_t slot = (static_cast<uint64_t>(i % top_k) << 32U) | static_cast<uint32_t>(choices[i]);
    const PhiloxBlock hash = philox(static_cast<uint64_t>(layer), static_cast<uint64_t>(identities[i / top_k]), slot);
    digest += (uint64_t{hash[1]} << 32U) | hash[0];
  }
}

void RoutingTotals::add(const LayerRouting& layer) {
  balance.add(layer.balance);
  z.add(layer.z);
  const size_t first = static_cast<size_t>(layer.ordinal) * layer.loads.size();
  for (size_t e = 0; e < layer.loads.size(); ++e) loads[first + e] += layer.loads[e];
  dropped += layer.dropped;
  digest += layer.digest;
}

std::vector<int64_t> RoutingTotals::words() {
  balance.normalise();
  z.normalise();
  std::vector<int64_t> words(balance.words().begin(), balance.words().end());
  words.insert(words.end(), z.words().begin(), z.words().end());
  words.push_back(dropped);
  words.push_back(static_cast<int64_t>(digest));
  words.insert(words.end(), loads.begin(), loads.end());
  return words;
}

void RoutingTotals::set_words(std::span<const int64_t> words) {
  constexpr size_t kWords = ExactSum::kWords;
  QUINTET_CHECK(words.size() == 2 * kWords + 2 + loads.size(), "{} words", words.size());
  std::copy_n(words.begin(), kWords, balance.words().begin());
  std::copy_n(words.begin() + kWords, kWords, z.words().begin());
  dropped = words[2 * kWords];
  digest = static_cast<uint64_t>(words[2 * kWords + 1]);
  std::copy(words.begin() + 2 * kWords + 2, words.end(), loads.begin());
}

RoutingFigures figures_of(const RoutingTotals& totals, const config::Config& config) {
  RoutingFigures figures;
  figures.aux_loss = totals.balance.value() * aux_of_sum(config);
  figures.z_loss = totals.z.value() * z_of_sum(config);
  const int64_t experts = config.model.moe->experts;
  for (auto layer = totals.loads.begin(); layer != totals.loads.end(); layer += experts) {
    const int64_t slots = std::accumulate(layer, layer + experts, int64_t{0});
    const int64_t busiest = *std::max_element(layer, layer + experts);
    figures.max_expert_load =
        std::max(figures.max_expert_load,
                 static_cast<double>(busiest) * static_cast<double>(experts) / static_cast<double>(slots));
  }
  return figures;
}

double balance_scale(const config::Config& config) {
  const config::Moe& moe = *config.model.moe;
  return moe.balance == config::MoeBalance::aux_loss ? moe.aux_loss_weight * aux_of_sum(config) : 0;
}

double z_scale(const config::Config& config) { return config.model.moe->z_loss_weight * z_of_sum(config); }

}  // namespace quintet::model
