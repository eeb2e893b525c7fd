// A mesh in words.
#pragma once

#include <string>

#include "lib/mesh/mesh.h"

namespace quintet {

// Which ranks work together, and in what, as lines of at most 120 columns for people: how ranks are numbered, the
// groups of each axis of more than one rank, those whose gradients are summed, and the pipeline's stages. Every rank is
// listed.
std::string describe_groups(const Mesh& mesh);

}  // namespace quintet
