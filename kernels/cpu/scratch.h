#pragma once

#include <cstddef>
#include <cstdint>
#include <new>

namespace quintet::kernels::cpu {

// Scratch of a thread, kept from call to call.
template <typename T>
class Scratch {
 public:
  Scratch() = default;
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  ~Scratch() { release(); }

  // At least `count` elements, aligned to cache lines, with any contents.
  T* get(int64_t count) {
    if (count > capacity_) {
      release();
      capacity_ = 0;
      data_ = static_cast<T*>(::operator new(static_cast<size_t>(count) * sizeof(T), kAlignment));
      capacity_ = count;
    }
    return data_;
  }

 private:
  static constexpr std::align_val_t kAlignment{64};
  void release() { ::operator delete(data_, kAlignment); }
  T* data_ = nullptr;
  int64_t capacity_ = 0;
};

}  // namespace quintet::kernels::cpu
