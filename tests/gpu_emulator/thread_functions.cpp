// What a kernel's thread calls: barriers, votes, matches, integer atomics.
#include "tests/gpu_emulator/block.h"

namespace quintet::gpu_emulator {
namespace {

// f(lane) for each lane of the mask.
template <typename Function>
void for_lanes(uint32_t mask, Function&& f) {
  for (uint32_t lane = 0; lane < 32; ++lane) {
    if ((mask >> lane & 1U) != 0) f(lane);
  }
}

}  // namespace

void wait_for_block(const char* file, int line) { current_block()->wait_for_block(file, line); }

void meet(const char* operation, uint32_t mask, const void* in, void* out, MeetingFunction function, const char* file,
          int line) {
  current_block()->meet(operation, mask, in, out, function, file, line);
}

void wait_for_warp(uint32_t mask, const char* file, int line) {
  const auto synchronise = [](uint32_t, const void* const*, void* const*) { current_block()->warp_synchronised(); };
  meet("__syncwarp", mask & current_block()->lanes(current_block()->warp()), nullptr, nullptr, synchronise, file, line);
}

uint32_t lane_of_thread() { return current_block()->thread() % 32; }
uint32_t lanes_of_warp() { return current_block()->lanes(current_block()->warp()); }
void fault(const char* what) { current_block()->fault(what); }

uint32_t ballot(const char* operation, uint32_t mask, bool predicate, const char* file, int line) {
  uint32_t result = 0;
  const auto vote = [](uint32_t lanes, const void* const* in, void* const* out) {
    uint32_t votes = 0;
    for_lanes(lanes, [&](uint32_t lane) { votes |= *static_cast<const bool*>(in[lane]) ? 1U << lane : 0U; });
    for_lanes(lanes, [&](uint32_t lane) { *static_cast<uint32_t*>(out[lane]) = votes; });
  };
  meet(operation, mask, &predicate, &result, vote, file, line);
  return result;
}

uint32_t match_any(uint32_t mask, uint64_t value, const char* file, int line) {
  uint32_t result = 0;
  const auto match = [](uint32_t lanes, const void* const* in, void* const* out) {
    for_lanes(lanes, [&](uint32_t lane) {
      uint32_t equal = 0;
      for_lanes(lanes, [&](uint32_t other) {
        const bool same = *static_cast<const uint64_t*>(in[lane]) == *static_cast<const uint64_t*>(in[other]);
        equal |= same ? 1U << other : 0U;
      });
      *static_cast<uint32_t*>(out[lane]) = equal;
    });
  };
  meet("__match_any_sync", mask, &value, &result, match, file, line);
  return result;
}

template <typename T>
T update_atomically(Update update, T* address, T value, T compare) {
  current_block()->access(address, sizeof(T), true, sizeof(T), true);
  // Blocks of other streams may run on other threads of the host.
  T seen = __atomic_load_n(address, __ATOMIC_RELAXED);
  while (true) {
    T next = value;
    switch (update) {
      case Update::add: next = seen + value; break;
      case Update::bits_or: next = seen | value; break;
      case Update::minimum: next = seen < value ? seen : value; break;
      case Update::maximum: next = seen < value ? value : seen; break;
      case Update::exchange: break;
      case Update::compare_exchange: next = seen == compare ? value : seen; break;
    }
    if (__atomic_compare_exchange_n(address, &seen, next, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) return seen;
  }
}
template int update_atomically(Update, int*, int, int);
template unsigned update_atomically(Update, unsigned*, unsigned, unsigned);
template unsigned long long update_atomically(Update, unsigned long long*, unsigned long long, unsigned long long);

}  // namespace quintet::gpu_emulator
