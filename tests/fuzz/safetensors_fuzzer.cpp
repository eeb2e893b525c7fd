// Any bytes given as a safetensors file are read or refused with an Error, never read past their end.
#include <cstddef>
#include <cstdint>
#include <span>

#include "lib/base/error.h"
#include "lib/checkpoint/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto file = std::as_bytes(std::span(data, size));
  try {
    const auto header = quintet::checkpoint::parse_safetensors_header(file, "fuzz.safetensors");
    for (const auto& [name, tensor] : header.tensors) {
      QUINTET_CHECK(tensor.begin >= 8 && tensor.begin <= tensor.end && tensor.end <= static_cast<int64_t>(size), "{}",
                    name);
      unsigned sum = 0;
      for (int64_t i = tensor.begin; i < tensor.end; ++i) sum += data[i];
      QUINTET_CHECK(sum <= 255U * static_cast<unsigned>(tensor.end - tensor.begin));
    }
  } catch (const quintet::Error&) {
    // Refused as it should be.
  }
  return 0;
}
