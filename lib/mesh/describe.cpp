#include "lib/mesh/describe.h"

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <vector>

#include <fmt/format.h>

namespace quintet {
namespace {

constexpr size_t kColumns = 120;
constexpr std::string_view kIndent = "    ";

std::string_view purpose_of(Axis axis) {
  switch (axis) {
    case Axis::dp: return "data parallel: ranks that hold the same weights and read different samples";
    case Axis::tp: return "tensor parallel: ranks that split each layer";
    case Axis::pp: return "pipeline parallel: ranks that hold successive layers, in this order";
    case Axis::ep: return "expert parallel: ranks that share out the experts and read different samples";
    case Axis::cp: return "context parallel: ranks that split each sequence";
  }
  return "";
}

// Those of `axes` that more than one rank lies along.
AxisSet populated(const Mesh& mesh, AxisSet axes) {
  for (const Axis axis : kAxes)
    if (mesh.size(axis) == 1) axes = axes.without(axis);
  return axes;
}

std::vector<std::vector<int64_t>> groups_along(const Mesh& mesh, AxisSet axes) {
  std::vector<std::vector<int64_t>> groups;
  for (int64_t rank = 0; rank < mesh.world_size(); ++rank) {
    std::vector<int64_t> group = mesh.group_of(rank, axes);
    if (group.front() == rank) groups.push_back(std::move(group));
  }
  return groups;
}

// "[0 4 8]", each number in `width` columns.
std::string in_brackets(const std::vector<int64_t>& group, size_t width) {
  std::string text;
  for (const int64_t rank : group) text += fmt::format("{}{:>{}}", text.empty() ? "[" : " ", rank, width);
  return text + "]";
}

// A group's text in indented lines, broken between its numbers, which stay below each other.
void append_broken(std::string& out, const std::string& text, size_t number_width) {
  const size_t room = kColumns - kIndent.size() - 1;  // one for the closing bracket
  // What stands before a number, a bracket or a space, is of its line.
  const size_t line = room / (number_width + 1) * (number_width + 1);
  for (size_t begin = 0; begin + 1 < text.size(); begin += line) {
    const bool last = text.size() - begin <= line + 1;
    out += fmt::format("{}{}\n", kIndent, text.substr(begin, last ? line + 1 : line));
  }
}

// On one line if they fit; else below the heading in columns, a group broken only where a line is too short for it.
std::string listed(const std::string& heading, const std::vector<std::vector<int64_t>>& groups, int64_t world_size) {
  std::string line = heading + ":";
  for (const auto& group : groups) line += " " + in_brackets(group, 1);
  if (line.size() <= kColumns) return line + "\n";

  const size_t width = std::to_string(world_size - 1).size();
  std::string out = heading + ":\n";
  line.clear();
  for (const auto& group : groups) {
    const std::string text = in_brackets(group, width);
    if (!line.empty() && line.size() + 1 + text.size() > kColumns) {
      out += line + "\n";
      line.clear();
    }
    if (kIndent.size() + text.size() > kColumns) {
      append_broken(out, text, width);
    } else {
      line += (line.empty() ? std::string(kIndent) : " ") + text;
    }
  }
  return line.empty() ? out : out + line + "\n";
}

std::string numbering(const Mesh& mesh) {
  std::string sizes, order;
  for (const Axis axis : kAxes)
    if (mesh.size(axis) > 1)
      sizes += fmt::format("{}{} {}", sizes.empty() ? "" : " x ", name_of(axis), mesh.size(axis));
  for (const Axis axis : mesh.order())
    if (mesh.size(axis) > 1) order += fmt::format("{}{}", order.empty() ? "" : ", then ", name_of(axis));
  return fmt::format("{} ranks: {}; numbered along {}\n", mesh.world_size(), sizes, order);
}

}  // namespace

std::string describe_groups(const Mesh& mesh) {
  if (mesh.world_size() == 1) return "1 rank: no groups\n";
  std::string text = numbering(mesh);
  for (const Axis axis : kAxes) {
    if (mesh.size(axis) == 1) continue;
    text +=
        listed(fmt::format("{}  {}", name_of(axis), purpose_of(axis)), groups_along(mesh, {axis}), mesh.world_size());
  }
  const AxisSet data = populated(mesh, {Axis::dp, Axis::ep, Axis::cp});
  if (std::count_if(kAxes.begin(), kAxes.end(), [&](Axis axis) { return data.contains(axis); }) > 1) {
    const std::string experts =
        data.contains(Axis::ep) ? fmt::format(" (experts' over {} alone)", name_of(data.without(Axis::ep))) : "";
    text += listed(fmt::format("{}  ranks over which gradients are summed{}", name_of(data), experts),
                   groups_along(mesh, data), mesh.world_size());
  }
  if (mesh.size(Axis::pp) > 1) {
    const auto stages = groups_along(mesh, AxisSet::all().without(Axis::pp));
    for (size_t stage = 0; stage < stages.size(); ++stage)
      text += listed(fmt::format("stage {} of the pipeline", stage), {stages[stage]}, mesh.world_size());
  }
  return text;
}

}  // namespace quintet
