#include "lib/device/memory.h"

#include <algorithm>
#include <utility>

#include <fmt/core.h>

#include "lib/base/error.h"
#include "lib/base/integers.h"

namespace quintet::device {
namespace {

constexpr int64_t kAlignment = 64;
// Steps by which arenas grow: a sixteenth of what they hold, within these bounds. The upper one is a huge page, to
// whose multiples devices round anyway.
constexpr int64_t kSmallestStep = int64_t{1} << 16, kLargestStep = int64_t{1} << 21;

// What a piece takes: at least one cache line, so that even an empty tensor has an address.
int64_t piece_bytes(int64_t bytes) { return round_up(std::max<int64_t>(bytes, 1), kAlignment); }

void* take(Device& device, MemoryLedger& ledger, Owner owner, int64_t bytes) {
  void* memory = device.allocate(bytes);
  if (memory == nullptr) ledger.out_of_memory(owner, bytes);
  ledger.hold(bytes);
  return memory;
}

}  // namespace

std::string_view name_of(Owner owner) {
  switch (owner) {
    case Owner::weights: return "weights";
    case Owner::gradients: return "gradients";
    case Owner::moments: return "moments";
    case Owner::master_weights: return "master_weights";
    case Owner::gathered_units: return "gathered_units";
    case Owner::gradient_units: return "gradient_units";
    case Owner::activations: return "activations";
    case Owner::expert_buffers: return "expert_buffers";
    case Owner::logits: return "logits";
    case Owner::communication: return "communication";
    case Owner::tables: return "tables";
    case Owner::workspace: return "workspace";
  }
  QUINTET_CHECK(false, "unknown owner");
}

std::string mebibytes(int64_t bytes) { return fmt::format("{:.1f} MiB", static_cast<double>(bytes) / 1048576.0); }

std::string describe(const BytesByOwner& bytes) {
  std::string text;
  for (const Owner owner : kOwners)
    if (bytes[owner] != 0)
      text += fmt::format("{}{} {}", text.empty() ? "" : ", ", name_of(owner), mebibytes(bytes[owner]));
  return text.empty() ? "nothing" : text;
}

void MemoryLedger::add(Owner owner, int64_t bytes) {
  int64_t& owned = by_owner_[owner];
  owned += bytes;
  bytes_ += bytes;
  QUINTET_CHECK(owned >= 0, "{} gave back {} bytes more than it took", name_of(owner), -owned);
  peak_ = std::max(peak_, bytes_);
  peak_by_owner_[owner] = std::max(peak_by_owner_[owner], owned);
}

void MemoryLedger::hold(int64_t bytes) {
  held_ += bytes;
  QUINTET_CHECK(held_ >= 0, "{} bytes more were released than taken", -held_);
  peak_held_ = std::max(peak_held_, held_);
}

void MemoryLedger::out_of_memory(Owner owner, int64_t bytes) const {
  const std::string advice = advice_ ? advice_(owner) : "a smaller model";
  fail(ExitCode::config, "memory: {} asks for {} more than there is; the rank holds {}: {}; choose {}", name_of(owner),
       mebibytes(bytes), mebibytes(held_), describe(by_owner_), advice);
}

Buffer::Buffer(Device& device, MemoryLedger& ledger, Owner owner, DType dtype, int64_t elements)
    : ledger_(&ledger), owner_(owner) {
  QUINTET_CHECK(elements >= 0, "{} elements", elements);
  const int64_t bytes = piece_bytes(elements * size_of(dtype));
  tensor_ = Tensor(take(device, ledger, owner, bytes), dtype, {elements});
  device_ = &device;
  ledger.add(owner_, bytes);
}

Buffer::~Buffer() { release(); }

Buffer::Buffer(Buffer&& other) noexcept
    : device_(std::exchange(other.device_, nullptr)),
      ledger_(std::exchange(other.ledger_, nullptr)),
      owner_(other.owner_),
      tensor_(std::exchange(other.tensor_, Tensor())) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  if (this != &other) {
    release();
    device_ = std::exchange(other.device_, nullptr);
    ledger_ = std::exchange(other.ledger_, nullptr);
    owner_ = other.owner_;
    tensor_ = std::exchange(other.tensor_, Tensor());
  }
  return *this;
}

void Buffer::release() {
  if (device_ == nullptr) return;
  const int64_t bytes = piece_bytes(tensor_.bytes());
  device_->release(tensor_.data(), bytes);
  ledger_->add(owner_, -bytes);
  ledger_->hold(-bytes);
  device_ = nullptr;
}

Arena::Arena(Device& device, MemoryLedger& ledger, Owner owner, int64_t expected)
    : device_(device), ledger_(ledger), owner_(owner), expected_(expected) {}

Arena::~Arena() {
  for (const Owner owner : kOwners) ledger_.add(owner, -position_.used_by_owner[owner]);
  release_blocks();
}

Tensor Arena::allocate(DType dtype, Shape shape) {
  const int64_t bytes = piece_bytes(shape.elements() * size_of(dtype));
  while (position_.block < blocks_.size() && position_.offset + bytes > blocks_[position_.block].bytes) {
    ++position_.block;
    position_.offset = 0;
  }
  if (position_.block == blocks_.size()) grow(bytes);
  void* data = static_cast<std::byte*>(blocks_[position_.block].memory) + position_.offset;
  position_.offset += bytes;
  position_.used += bytes;
  position_.used_by_owner[owner_] += bytes;
  expected_ = std::max(expected_, position_.used);
  ledger_.add(owner_, bytes);
  return {data, dtype, shape};
}

void Arena::grow(int64_t bytes) {
  const int64_t step = std::clamp(round_up(held_ / 16, kAlignment), kSmallestStep, kLargestStep);
  const bool is_known = blocks_.empty() && expected_ >= bytes;
  int64_t size = is_known ? expected_ : round_up(bytes, step);
  if (size > kLargestStep) size = round_up(size, kLargestStep);
  blocks_.push_back({take(device_, ledger_, owner_, size), size});
  held_ += size;
}

void Arena::release_to(const Mark& mark) {
  QUINTET_CHECK(mark.used <= position_.used, "a mark at {} bytes of {} is released when {} are in use", mark.used,
                name_of(owner_), position_.used);
  for (const Owner owner : kOwners)
    if (const int64_t back = position_.used_by_owner[owner] - mark.used_by_owner[owner]; back != 0)
      ledger_.add(owner, -back);
  position_ = mark;
  if (position_.used != 0) return;
  position_ = {};
  if (blocks_.size() > 1) release_blocks();
}

void Arena::release_blocks() {
  for (const Block& block : blocks_) device_.release(block.memory, block.bytes);
  ledger_.hold(-held_);
  blocks_.clear();
  held_ = 0;
}

}  // namespace quintet::device
