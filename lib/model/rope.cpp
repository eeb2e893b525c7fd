#include "lib/model/rope.h"

#include <cmath>
#include <numbers>
#include <vector>

namespace quintet::model {
namespace {

// Llama 3.1's rule: long waves are slowed by `factor`, short ones kept, those between blended smoothly.
template <typename T>
T scaled_frequency(T frequency, const config::RopeScaling& scaling) {
  const T wave_length = T{2} * std::numbers::pi_v<T> / frequency;
  const T length = static_cast<T>(scaling.original_length);
  const T low = static_cast<T>(scaling.low_freq_factor), high = static_cast<T>(scaling.high_freq_factor);
  if (wave_length < length / high) return frequency;
  const T slowed = frequency / static_cast<T>(scaling.factor);
  if (wave_length > length / low) return slowed;
  const T blend = (length / wave_length - low) / (high - low);
  return (T{1} - blend) * slowed + blend * frequency;
}

template <typename T>
std::vector<T> frequencies(const config::Model& config) {
  std::vector<T> result;
  for (int64_t i = 0; i < config.head_dim / 2; ++i) {
    const T exponent = static_cast<T>(2 * i) / static_cast<T>(config.head_dim);
    const T frequency = T{1} / std::pow(static_cast<T>(config.rope_theta), exponent);
    result.push_back(config.rope_scaling ? scaled_frequency(frequency, *config.rope_scaling) : frequency);
  }
  return result;
}

}  // namespace

RopeTable::RopeTable(device::Device& device, device::MemoryLedger& ledger, const config::Model& config, DType dtype) {
  if (config.position != config::Position::rope) return;
  const int64_t half = config.head_dim / 2;
  const int64_t elements = config.seq_length * half;
  buffer_ = device::Buffer(device, ledger, device::Owner::tables, dtype, 2 * elements);
  cosine_ = buffer_.slice(0, elements).reshaped({config.seq_length, half});
  sine_ = buffer_.slice(elements, elements).reshaped({config.seq_length, half});
  visit_compute_type(dtype, [&]<typename T>() {
    const std::vector<T> frequency = frequencies<T>(config);
    std::vector<T> values(static_cast<size_t>(2 * elements));
    size_t place = 0;
    for (int64_t position = 0; position < config.seq_length; ++position)
      for (const T f : frequency) {
        const T angle = static_cast<T>(position) * f;
        values[place] = std::cos(angle);
        values[place + static_cast<size_t>(elements)] = std::sin(angle);
        ++place;
      }
    device.copy(Tensor(values.data(), dtype, {2 * elements}), buffer_.tensor());
  });
}

}  // namespace quintet::model
