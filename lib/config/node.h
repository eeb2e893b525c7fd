// YAML text as a tree that remembers where everything stood. Unlike yaml-cpp's own tree it keeps duplicate keys apart
// and knows quoted from plain scalars.
#pragma once

#include <string>
#include <vector>

#include "lib/config/problems.h"

namespace quintet::config {

enum class NodeKind { null, scalar, list, map };

struct NodeEntry;

struct Node {
  NodeKind kind = NodeKind::null;
  Place place;
  std::string text;     // of a scalar
  bool quoted = false;  // a scalar in quotes or a block scalar: always a string
  bool empty = false;   // a null of which nothing is written, as in "mesh:"
  std::vector<Node> items;
  std::vector<NodeEntry> entries;
};

struct NodeEntry {
  std::string name;
  Place place;
  Node value;
};

// Parses one document. Syntax errors, duplicate keys, keys that are no scalars, aliases, tags and second documents are
// reported; false after one that leaves no usable tree.
bool parse_yaml(const std::string& text, int source, Problems& problems, Node& root);

// How a value is shown in messages: short, on one line, quoted as it was.
std::string shown(const Node& node);

}  // namespace quintet::config
