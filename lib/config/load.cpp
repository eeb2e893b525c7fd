#include "lib/config/load.h"

#include <algorithm>

#include <fmt/format.h>

#include "lib/base/error.h"
#include "lib/config/declaration.h"
#include "lib/config/review.h"

namespace quintet::config {
namespace {

// Where a missing key of the section should have stood: at its head in a file, else at the start of the first file.
Place place_of_missing(const Key& key, const Given& given, const Problems& problems) {
  for (std::string_view path = section_part(key.path); !path.empty(); path = section_part(path)) {
    const auto section = given.sections.find(path);
    if (section != given.sections.end() && !problems.is_override(section->second.source)) return section->second;
  }
  return {};
}

void set_key(const Key& key, const Given& given, Problems& problems, Review& review) {
  const auto value = given.values.find(key.path);
  if (value != given.values.end()) {
    if (!key.read(key, value->second, problems, review.config)) review.mark_unsound(key.path);
  } else if (key.required()) {
    review.mark_unsound(key.path);
    if (given.complete) {
      problems.add(place_of_missing(key, given, problems), key.path,
                   fmt::format("missing; expected {} ({})", legal_values(key), key.help));
    }
  } else if (!key.derive) {
    QUINTET_CHECK(key.read(key, key.default_node, problems, review.config), "default of {}", key.path);
  }
}

void derive_key(const Key& key, const Given& given, Review& review) {
  if (!key.derive || given.values.count(key.path) != 0) return;
  for (const std::string& dependency : dependencies(key)) {
    if (!review.sound({dependency})) {
      review.mark_unsound(key.path);
      return;
    }
  }
  key.derive(review.config);
}

// What auto stands for, where that is known by now.
void resolve_auto(Review& review, int64_t world_size) {
  Config& config = review.config;
  if (config.model.vocab_size == 0 && config.data.tokenizer == "bytes") config.model.vocab_size = kByteIds;
  Mesh& mesh = config.mesh;
  if (mesh.dp == 0) {
    mesh.dp = 1;
    for (const int64_t size : {mesh.tp, mesh.pp, mesh.ep, mesh.cp}) world_size /= std::max<int64_t>(1, size);
    mesh.dp = std::max<int64_t>(1, world_size);
  }
}

Config resolve(const Given& given, Problems& problems, int64_t world_size) {
  Review review(given, problems);
  for (const Section& section : sections()) {
    if (section.optional() && given.sections.count(section.path) != 0) section.create(review.config);
  }
  for (const Key& key : keys()) {
    if (is_present(key, review.config)) set_key(key, given, problems, review);
  }
  for (const Key& key : keys()) {
    if (is_present(key, review.config)) derive_key(key, given, review);
  }
  resolve_auto(review, world_size);
  check_rules(review, world_size);
  refuse_unbuilt(review);
  problems.throw_if_any();
  return review.config;
}

}  // namespace

Config load(const std::string& path, std::span<const std::string> overrides, int64_t world_size) {
  Problems problems;
  const Given given = gather_file(path, overrides, problems);
  return resolve(given, problems, world_size);
}

Config load_from_string(const std::string& text, const std::string& name, std::span<const std::string> overrides,
                        int64_t world_size) {
  Problems problems;
  const Given given = gather_text(text, name, overrides, problems);
  return resolve(given, problems, world_size);
}

}  // namespace quintet::config
