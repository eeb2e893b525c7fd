#include "lib/data/dataset.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include <fmt/format.h>

#include "lib/base/error.h"

namespace quintet::data {
namespace {

std::string name_of(std::span<const std::string> paths) {
  constexpr size_t kShown = 3;
  std::string name;
  for (size_t i = 0; i < std::min(paths.size(), kShown); ++i) name += (i == 0 ? "" : ", ") + paths[i];
  if (paths.size() > kShown) name += fmt::format(" and {} more", paths.size() - kShown);
  return name;
}

std::vector<Source> open_sources(const DatasetOptions& options) {
  const std::vector<Entry>& entries = options.entries;
  const bool weighted =
      std::any_of(entries.begin(), entries.end(), [](const Entry& entry) { return entry.weight.has_value(); });
  std::vector<Source> sources;
  const auto open = [&](std::span<const std::string> paths, std::optional<double> weight) {
    sources.push_back({name_of(paths), TokenRange(open_source(options.key, paths, options.reading)), weight});
  };
  if (!weighted) {
    std::vector<std::string> paths;
    for (const Entry& entry : entries) paths.push_back(entry.path);
    open(paths, std::nullopt);
    return sources;
  }
  for (size_t i = 0; i < entries.size(); ++i) {
    if (!entries[i].weight)
      fail(ExitCode::config, "{}[{}]: {} has no weight but other entries have; give every entry a weight or none",
           options.key, i, entries[i].path);
    open({&entries[i].path, 1}, entries[i].weight);
  }
  return sources;
}

SampleOrder order_of(const DatasetOptions& options, const std::vector<Source>& sources) {
  const int64_t S = options.sequence_length;
  QUINTET_CHECK(S >= 1, "sequence length {}", S);
  OrderOptions order;
  order.key = options.key;
  order.seed = options.seed;
  order.shuffle = options.shuffle;
  for (const Source& source : sources) {
    const int64_t tokens = source.tokens.token_count();
    if (window_count(tokens, S) == 0)
      fail(ExitCode::data,
           "{}: {} holds {} tokens, but one window of model.seq_length {} needs {}; give more data or a shorter "
           "sequence",
           options.key, source.name, tokens, S, S + 1);
    order.windows.push_back(window_count(tokens, S));
    if (source.weight) order.weights.push_back(*source.weight);
  }
  return SampleOrder(order);
}

}  // namespace

Dataset::Dataset(const DatasetOptions& options) : Dataset(options, open_sources(options)) {}

Dataset::Dataset(const DatasetOptions& options, std::vector<Source> sources)
    : sources_(std::move(sources)),
      sequence_length_(options.sequence_length),
      documents_(options.documents),
      order_(order_of(options, sources_)) {}

void Dataset::sample(int64_t ordinal, std::span<int32_t> tokens, std::vector<int64_t>* document_starts) {
  QUINTET_CHECK(static_cast<int64_t>(tokens.size()) == sequence_length_ + 1, "{} places for {} + 1 tokens",
                tokens.size(), sequence_length_);
  const SampleOrder::Place place = order_.at(ordinal);
  const TokenRange& source = sources_[static_cast<size_t>(place.source)].tokens;
  const int64_t begin = place.window * sequence_length_;
  source.read(begin, tokens);
  if (document_starts == nullptr) return;
  *document_starts = source.document_starts(begin + 1, begin + sequence_length_);
  for (int64_t& start : *document_starts) start -= begin;
}

int64_t Dataset::windows() const {
  int64_t total = 0;
  for (const Source& source : sources_)
    if (source.weight != 0.0) total += window_count(source.tokens.token_count(), sequence_length_);
  return total;
}

std::vector<SourceSummary> Dataset::summary() const {
  const std::vector<double> shares = order_.shares();
  std::vector<SourceSummary> result;
  for (size_t i = 0; i < sources_.size(); ++i) {
    const TokenRange& tokens = sources_[i].tokens;
    result.push_back({.name = sources_[i].name,
                      .files = static_cast<int64_t>(tokens.source().files().size()),
                      .tokens = tokens.token_count(),
                      .windows = window_count(tokens.token_count(), sequence_length_),
                      .share = shares[i]});
  }
  return result;
}

Split open_split(const DatasetOptions& training, const ValidationOptions& validation) {
  const double fraction = validation.fraction;
  if (!(fraction >= 0 && fraction < 1))
    fail(ExitCode::config, "data.validation: {} is not a fraction; give a number above 0 and below 1", fraction);
  QUINTET_CHECK(fraction == 0 || validation.entries.empty(), "validation by fraction and by entries");
  DatasetOptions held_out = training;
  held_out.key = "data.validation";
  held_out.shuffle = false;
  held_out.entries = validation.entries;
  if (fraction == 0) {
    Split split{.training = Dataset(training), .validation = std::nullopt};
    if (!validation.entries.empty()) split.validation.emplace(held_out);
    return split;
  }
  std::vector<Source> kept = open_sources(training);
  std::vector<Source> parts;
  for (Source& source : kept) {
    const int64_t T = source.tokens.token_count();
    const int64_t part = static_cast<int64_t>(std::floor(fraction * static_cast<double>(T)));
    parts.push_back(
        {fmt::format("the last {} of {}", fraction, source.name), source.tokens.part(T - part, part), source.weight});
    source.tokens = source.tokens.part(0, T - part);
  }
  return {.training = Dataset(training, std::move(kept)), .validation = Dataset(held_out, std::move(parts))};
}

}  // namespace quintet::data
