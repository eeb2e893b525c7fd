#include "lib/device/memory.h"

#include <algorithm>
#include <utility>

#include "lib/base/integers.h"

namespace quintet::device {
namespace {

constexpr int64_t kAlignment = 64;
constexpr int64_t kSmallestBlock = int64_t{1} << 20;

// What a piece takes: at least one cache line, so that even an empty tensor has an address.
int64_t piece_bytes(int64_t bytes) { return round_up(std::max<int64_t>(bytes, 1), kAlignment); }

}  // namespace

void MemoryLedger::add(const std::string& owner, int64_t bytes) {
  int64_t& owned = by_owner_[owner];
  owned += bytes;
  bytes_ += bytes;
  QUINTET_CHECK(owned >= 0, "{} gave back {} bytes more than it took", owner, -owned);
  peak_ = std::max(peak_, bytes_);
  int64_t& peak = peak_by_owner_[owner];
  peak = std::max(peak, owned);
}

Buffer::Buffer(Device& device, MemoryLedger& ledger, std::string owner, DType dtype, int64_t elements)
    : device_(&device), ledger_(&ledger), owner_(std::move(owner)) {
  QUINTET_CHECK(elements >= 0, "{} elements", elements);
  const int64_t bytes = piece_bytes(elements * size_of(dtype));
  tensor_ = Tensor(device.allocate(bytes), dtype, {elements});
  ledger.add(owner_, bytes);
}

Buffer::~Buffer() { release(); }

Buffer::Buffer(Buffer&& other) noexcept
    : device_(std::exchange(other.device_, nullptr)),
      ledger_(std::exchange(other.ledger_, nullptr)),
      owner_(std::move(other.owner_)),
      tensor_(std::exchange(other.tensor_, Tensor())) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  if (this != &other) {
    release();
    device_ = std::exchange(other.device_, nullptr);
    ledger_ = std::exchange(other.ledger_, nullptr);
    owner_ = std::move(other.owner_);
    tensor_ = std::exchange(other.tensor_, Tensor());
  }
  return *this;
}

void Buffer::release() {
  if (device_ == nullptr) return;
  const int64_t bytes = piece_bytes(tensor_.bytes());
  device_->release(tensor_.data(), bytes);
  ledger_->add(owner_, -bytes);
  device_ = nullptr;
}

Arena::Arena(Device& device, MemoryLedger& ledger, std::string owner)
    : device_(device), ledger_(ledger), owner_(std::move(owner)) {}

Arena::~Arena() {
  ledger_.add(owner_, -position_.used);
  for (const Block& block : blocks_) device_.release(block.memory, block.bytes);
}

Tensor Arena::allocate(DType dtype, Shape shape) {
  const int64_t bytes = piece_bytes(shape.elements() * size_of(dtype));
  while (position_.block < blocks_.size() && position_.offset + bytes > blocks_[position_.block].bytes) {
    ++position_.block;
    position_.offset = 0;
  }
  if (position_.block == blocks_.size()) {
    // The first block is as large as everything that was ever needed at once; later ones double.
    const int64_t wanted = blocks_.empty() ? peak_ : 2 * blocks_.back().bytes;
    const int64_t size = std::max({kSmallestBlock, wanted, bytes});
    blocks_.push_back({device_.allocate(size), size});
  }
  void* data = static_cast<std::byte*>(blocks_[position_.block].memory) + position_.offset;
  position_.offset += bytes;
  position_.used += bytes;
  peak_ = std::max(peak_, position_.used);
  ledger_.add(owner_, bytes);
  return {data, dtype, shape};
}

void Arena::release_to(Mark mark) {
  QUINTET_CHECK(mark.used <= position_.used, "{}: a mark at {} bytes is released when {} are in use", owner_, mark.used,
                position_.used);
  ledger_.add(owner_, mark.used - position_.used);
  position_ = mark;
  if (position_.used != 0) return;
  position_ = {};
  if (blocks_.size() > 1) {
    for (const Block& block : blocks_) device_.release(block.memory, block.bytes);
    blocks_.clear();
  }
}

}  // namespace quintet::device
