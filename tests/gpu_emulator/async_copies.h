// The cp.async copies of one thread, which happen as late as its waits allow.
#pragma once

#include <cstddef>
#include <cstring>
#include <deque>
#include <vector>

namespace quintet::gpu_emulator {

class AsyncCopies {
 public:
  // 16 bytes; a null source means zeros.
  void start(void* to, const void* from) { open_.push_back({to, from}); }
  void commit() {
    groups_.push_back(std::move(open_));
    open_.clear();
  }
  void wait(int pending) {
    while (static_cast<int>(groups_.size()) > pending) {
      for (const Copy& copy : groups_.front()) {
        if (copy.from != nullptr) {
          std::memcpy(copy.to, copy.from, 16);
        } else {
          std::memset(copy.to, 0, 16);
        }
      }
      groups_.pop_front();
    }
  }

 private:
  struct Copy {
    void* to;
    const void* from;
  };
  std::vector<Copy> open_;
  std::deque<std::vector<Copy>> groups_;
};

}  // namespace quintet::gpu_emulator
