// Random numbers keyed by identity, so that rank, mesh and call order never enter: Philox4x32-10 (Salmon et al.
// 2011, "Parallel random numbers: as easy as 1, 2, 3"), key = seed, counter = (index, stream).
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace quintet {

using PhiloxBlock = std::array<uint32_t, 4>;

// The 128 bits at place `index` of stream `stream` under `seed`.
constexpr PhiloxBlock philox(uint64_t seed, uint64_t index, uint64_t stream) {
  uint32_t key0 = static_cast<uint32_t>(seed), key1 = static_cast<uint32_t>(seed >> 32);
  PhiloxBlock c = {static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32), static_cast<uint32_t>(stream),
                   static_cast<uint32_t>(stream >> 32)};
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = uint64_t{0xD2511F53U} * c[0];
    const uint64_t product1 = uint64_t{0xCD9E8D57U} * c[2];
    c = {static_cast<uint32_t>(product1 >> 32) ^ c[1] ^ key0, static_cast<uint32_t>(product1),
         static_cast<uint32_t>(product0 >> 32) ^ c[3] ^ key1, static_cast<uint32_t>(product0)};
    key0 += 0x9E3779B9U;
    key1 += 0xBB67AE85U;
  }
  return c;
}

// The stream of a purpose ("init", "dropout", "shuffle") and a global name: FNV-1a over both with a zero between.
constexpr uint64_t stream_of(std::string_view purpose, std::string_view name) {
  uint64_t hash = 0xcbf29ce484222325ULL;
  const auto mix = [&hash](unsigned char byte) { hash = (hash ^ byte) * 0x100000001b3ULL; };
  for (const char c : purpose) mix(static_cast<unsigned char>(c));
  mix(0);
  for (const char c : name) mix(static_cast<unsigned char>(c));
  return hash;
}

// A standard normal value for element `index` (Box-Muller in fp64, cosine branch; 53-bit uniforms).
double normal(uint64_t seed, uint64_t index, uint64_t stream);

}  // namespace quintet
