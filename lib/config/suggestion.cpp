#include "lib/config/suggestion.h"

#include <algorithm>
#include <array>
#include <vector>

#include <fmt/format.h>

#include "lib/config/declaration.h"

namespace quintet::config {
namespace {

// Names that other trainers give to our keys.
struct OtherName {
  std::string_view name;
  std::string_view path;
};
constexpr std::array kOtherNames = {
    OtherName{"lr", "optimizer.learning_rate"},
    OtherName{"min_lr", "schedule.min_learning_rate"},
    OtherName{"lr_decay_style", "schedule.decay"},
    OtherName{"warmup", "schedule.warmup_steps"},
    OtherName{"grad_clip", "optimizer.clip_grad_norm"},
    OtherName{"clip_grad", "optimizer.clip_grad_norm"},
    OtherName{"max_grad_norm", "optimizer.clip_grad_norm"},
    OtherName{"batch_size", "train.global_batch_size"},
    OtherName{"max_steps", "train.steps"},
    OtherName{"train_iters", "train.steps"},
    OtherName{"seq_len", "model.seq_length"},
    OtherName{"block_size", "model.seq_length"},
    OtherName{"max_position_embeddings", "model.seq_length"},
    OtherName{"num_layers", "model.layers"},
    OtherName{"n_layer", "model.layers"},
    OtherName{"num_heads", "model.heads"},
    OtherName{"n_head", "model.heads"},
    OtherName{"num_attention_heads", "model.heads"},
    OtherName{"num_key_value_heads", "model.kv_heads"},
    OtherName{"num_query_groups", "model.kv_heads"},
    OtherName{"n_embd", "model.hidden_size"},
    OtherName{"d_model", "model.hidden_size"},
    OtherName{"intermediate_size", "model.ffn_hidden_size"},
    OtherName{"num_experts", "model.moe.experts"},
    OtherName{"data_parallel", "mesh.dp"},
    OtherName{"data_parallel_size", "mesh.dp"},
    OtherName{"tensor_parallel", "mesh.tp"},
    OtherName{"tensor_parallel_size", "mesh.tp"},
    OtherName{"tensor_model_parallel_size", "mesh.tp"},
    OtherName{"pipeline_parallel", "mesh.pp"},
    OtherName{"pipeline_parallel_size", "mesh.pp"},
    OtherName{"pipeline_model_parallel_size", "mesh.pp"},
    OtherName{"expert_parallel", "mesh.ep"},
    OtherName{"expert_parallel_size", "mesh.ep"},
    OtherName{"expert_model_parallel_size", "mesh.ep"},
    OtherName{"context_parallel", "mesh.cp"},
    OtherName{"context_parallel_size", "mesh.cp"},
    OtherName{"save_interval", "checkpoint.every"},
    OtherName{"log_interval", "logging.every"},
    OtherName{"eval_interval", "train.eval_every"},
};

// Longer words are no typing errors of ours, and would cost time.
constexpr size_t kLongestWord = 64;

// Insertions, deletions, changes and swaps of neighbours that lead from a to b (Damerau 1964, restricted form).
size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::vector<size_t>> table(a.size() + 1, std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) table[i][0] = i;
  for (size_t j = 0; j <= b.size(); ++j) table[0][j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t change = table[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      table[i][j] = std::min({table[i - 1][j] + 1, table[i][j - 1] + 1, change});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        table[i][j] = std::min(table[i][j], table[i - 2][j - 2] + 1);
      }
    }
  }
  return table[a.size()][b.size()];
}

size_t tolerance(std::string_view word) { return std::max<size_t>(1, word.size() / 3); }

// Lower case, and underscores for hyphens and blanks.
std::string normalised(std::string_view word) {
  std::string result(word);
  for (char& c : result) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c + ('a' - 'A'));
    if (c == '-' || c == ' ') c = '_';
  }
  return result;
}

std::vector<std::string_view> all_paths() {
  std::vector<std::string_view> paths;
  for (const Key& key : keys()) paths.push_back(key.path);
  for (const Section& section : sections()) paths.push_back(section.path);
  return paths;
}

std::vector<std::string_view> children_of(std::string_view section) {
  std::vector<std::string_view> children;
  for (const std::string_view path : all_paths()) {
    if (section_part(path) == section) children.push_back(name_part(path));
  }
  return children;
}

// Paths that end in this name, those of the same section first.
std::vector<std::string_view> paths_named(std::string_view section, std::string_view name) {
  std::vector<std::string_view> found;
  for (const std::string_view path : all_paths()) {
    if (name_part(path) == name) found.push_back(path);
  }
  const auto sibling =
      std::find_if(found.begin(), found.end(), [&](auto path) { return section_part(path) == section; });
  if (sibling != found.end()) return {*sibling};
  return found;
}

// The path whose last word is nearest to `name`; one in the same section wins over an equally near one elsewhere.
std::optional<std::string_view> nearest_path(std::string_view section, std::string_view name) {
  std::optional<std::string_view> best;
  size_t best_cost = 2 * tolerance(name) + 1;
  for (const std::string_view path : all_paths()) {
    const size_t distance = edit_distance(name, name_part(path));
    if (distance > tolerance(name_part(path))) continue;
    const size_t cost = 2 * distance + (section_part(path) == section ? 0 : 1);
    if (cost < best_cost) {
      best = path;
      best_cost = cost;
    }
  }
  return best;
}

}  // namespace

std::optional<std::string_view> nearest(std::string_view word, std::span<const std::string_view> candidates) {
  if (word.size() > kLongestWord) return std::nullopt;
  std::optional<std::string_view> best;
  size_t best_distance = tolerance(word) + 1;
  for (const std::string_view candidate : candidates) {
    const size_t distance = edit_distance(normalised(word), candidate);
    if (distance < best_distance) {
      best = candidate;
      best_distance = distance;
    }
  }
  return best;
}

std::string suggestion_for(const std::string& path) {
  const std::string_view section = section_part(path);
  const std::string name = normalised(name_part(path));
  if (name.size() <= kLongestWord) {
    const std::vector<std::string_view> same = paths_named(section, name);
    if (!same.empty()) return fmt::format("did you mean {}?", either(same));
    for (const OtherName& other : kOtherNames) {
      if (other.name == name) return fmt::format("did you mean {}?", other.path);
    }
    if (const auto near = nearest_path(section, name)) return fmt::format("did you mean {}?", *near);
  }
  const std::vector<std::string_view> children = children_of(section);
  if (section.empty() || children.empty()) return fmt::format("choose one of the sections {}", either(children_of("")));
  return fmt::format("below {} choose {}", section, either(children));
}

}  // namespace quintet::config
