#include "lib/comm/mpi_transport.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstring>
#include <thread>

#include <sched.h>

#include "lib/base/integers.h"

namespace quintet::comm {
namespace {

constexpr int64_t kPieceBytes = int64_t{1} << 20;
constexpr int64_t kSmallStagingBytes = int64_t{64} << 10;
constexpr int64_t kSendWindow = 4, kReceiveWindow = 4, kStagedWindow = 2;  // pieces of a message under way

constexpr int kLaneBits = 7, kChannelBits = 10;
constexpr int kReportTag = 127, kVerdictTag = 126;  // lanes that no group uses, sequence 0
static_assert(kPointToPointLane + kLanes <= kVerdictTag && kReportTag < 1 << kLaneBits);
constexpr int kHaltCode = -1, kAllStoppedCode = -2;  // notices that are no causes

using Clock = std::chrono::steady_clock;

int64_t pieces_in(int64_t bytes) { return ceil_div(bytes, kPieceBytes); }
int64_t piece_bytes(int64_t bytes, int64_t piece) { return std::min(kPieceBytes, bytes - piece * kPieceBytes); }

void check_mpi(int code, const char* call) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  MPI_Error_string(code, text, &length);
  fail(ExitCode::communication, "{} failed: {}", call, std::string(text, static_cast<size_t>(length)));
}

void check_size(const MPI_Status& status, int64_t expected) {
  int bytes = 0;
  check_mpi(MPI_Get_count(&status, MPI_BYTE, &bytes), "MPI_Get_count");
  QUINTET_CHECK(bytes == expected, "rank {} sent {} bytes where {} are expected", status.MPI_SOURCE, bytes, expected);
}

bool test(MPI_Request& request) {
  int done = 0;
  check_mpi(MPI_Test(&request, &done, MPI_STATUS_IGNORE), "MPI_Test");
  return done != 0;
}

}  // namespace

struct MpiTransport::Notice {
  int code = 0;
  char message[16 * 1024 - sizeof(int)] = {};

  Notice() = default;
  explicit Notice(const Cause& cause) : code(cause.code) {
    std::memcpy(message, cause.message.data(), std::min(cause.message.size(), sizeof(message) - 1));
  }
  int bytes() const { return static_cast<int>(sizeof(code) + std::strlen(message) + 1); }
};

class MpiOutgoing : public Outgoing, public MpiStream {
 public:
  MpiOutgoing(MpiTransport& transport, int64_t peer, Tag tag, std::span<const std::byte> data)
      : transport_(transport), peer_(peer), tag_(tag), data_(data) {
    for (int64_t i = 0; i < kSendWindow; ++i) post_next();
  }
  ~MpiOutgoing() override {
    if (gone_ < posted_) transport_.detach(this);
  }

  bool done() override { return gone_ == pieces_in(size()); }
  void completed(int64_t) override {
    ++gone_;
    post_next();
  }

 private:
  int64_t size() const { return static_cast<int64_t>(data_.size()); }
  void post_next() {
    if (posted_ == pieces_in(size())) return;
    const int64_t piece = posted_++;
    transport_.post_send(peer_, tag_, data_.data() + piece * kPieceBytes, piece_bytes(size(), piece), this, piece);
  }

  MpiTransport& transport_;
  int64_t peer_;
  Tag tag_;
  std::span<const std::byte> data_;
  int64_t posted_ = 0, gone_ = 0;
};

class MpiDispatched : public Outgoing {
 public:
  bool done() override { return true; }
};

class MpiIncoming : public Incoming, public MpiStream {
 public:
  // Without destination pieces come into staging memory.
  MpiIncoming(MpiTransport& transport, int64_t peer, Tag tag, int64_t bytes, std::byte* destination)
      : transport_(transport), peer_(peer), tag_(tag), bytes_(bytes), destination_(destination) {
    if (destination_ == nullptr) {
      staging_.resize(static_cast<size_t>(std::min(kStagedWindow, pieces_in(bytes_))));
      for (auto& slot : staging_) slot.memory = transport_.take_staging(bytes_);
    }
    const int64_t window = destination_ == nullptr ? kStagedWindow : kReceiveWindow;
    for (int64_t i = 0; i < window; ++i) post_next();
  }
  ~MpiIncoming() override {
    if (arrived_ < posted_) {
      transport_.detach(this);
      for (auto& slot : staging_) (void)slot.memory.release();  // MPI may still write there; the process ends soon
    }
    for (auto& slot : staging_)
      if (slot.memory) transport_.give_staging(std::move(slot.memory), bytes_);
  }

  bool ready() override {
    if (destination_ != nullptr) return arrived_ == pieces_in(bytes_);
    return front_ == pieces_in(bytes_) || slot_of(front_).full;
  }
  std::span<const std::byte> open() override {
    return {slot_of(front_).memory.get(), static_cast<size_t>(piece_bytes(bytes_, front_))};
  }
  void close() override {
    slot_of(front_).full = false;
    ++front_;
    post_next();
  }
  void completed(int64_t piece) override {
    ++arrived_;
    if (destination_ != nullptr) {
      post_next();
    } else {
      slot_of(piece).full = true;
    }
  }

 private:
  struct Slot {
    std::unique_ptr<std::byte[]> memory;
    bool full = false;
  };
  Slot& slot_of(int64_t piece) { return staging_[static_cast<size_t>(piece) % staging_.size()]; }
  void post_next() {
    if (posted_ == pieces_in(bytes_)) return;
    const int64_t piece = posted_++;
    std::byte* const memory =
        destination_ != nullptr ? destination_ + piece * kPieceBytes : slot_of(piece).memory.get();
    transport_.post_receive(peer_, tag_, memory, piece_bytes(bytes_, piece), this, piece);
  }

  MpiTransport& transport_;
  int64_t peer_;
  Tag tag_;
  int64_t bytes_;
  std::byte* destination_;
  std::vector<Slot> staging_;
  int64_t posted_ = 0, arrived_ = 0, front_ = 0;
};

MpiTransport::MpiTransport(bool crowded) : crowded_(crowded) {
  check_mpi(MPI_Comm_dup(MPI_COMM_WORLD, &communicator_), "MPI_Comm_dup");
  check_mpi(MPI_Comm_set_errhandler(communicator_, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  check_mpi(MPI_Comm_rank(communicator_, &rank_), "MPI_Comm_rank");
  check_mpi(MPI_Comm_size(communicator_, &size_), "MPI_Comm_size");
  void* upper_bound = nullptr;
  int found = 0;
  check_mpi(MPI_Comm_get_attr(communicator_, MPI_TAG_UB, &upper_bound, &found), "MPI_Comm_get_attr");
  const int64_t largest_tag = found != 0 ? *static_cast<int*>(upper_bound) : 32767;
  // Of the bits that lanes leave, channels take half, but no more than they need.
  const int bits = narrow<int>(std::bit_width(static_cast<uint64_t>(largest_tag) + 1)) - 1 - kLaneBits;
  const int channel_bits = std::min(bits / 2, kChannelBits);
  channels_ = int64_t{1} << channel_bits;
  sequences_ = int64_t{1} << (bits - channel_bits);
  listen();
}

MpiTransport::~MpiTransport() {
  MPI_Waitall(static_cast<int>(requests_.size()), requests_.data(), MPI_STATUSES_IGNORE);  // small messages
  if (hearing_ != MPI_REQUEST_NULL) {
    MPI_Cancel(&hearing_);
    MPI_Wait(&hearing_, MPI_STATUS_IGNORE);
  }
  MPI_Comm_free(&communicator_);
}

int MpiTransport::wire_tag(Tag tag) const {
  if (tag.channel >= channels_)
    fail(ExitCode::communication,
         "this MPI tells {} channels of messages apart, not {}: fewer pipeline stages need fewer", channels_,
         tag.channel + 1);
  return narrow<int>(((tag.sequence % sequences_ * channels_ + tag.channel) << kLaneBits) | tag.lane);
}

void MpiTransport::post_send(int64_t peer, Tag tag, const std::byte* data, int64_t bytes, MpiStream* stream,
                             int64_t piece) {
  MPI_Request request = MPI_REQUEST_NULL;
  check_mpi(MPI_Isend(data, narrow<int>(bytes), MPI_BYTE, narrow<int>(peer), wire_tag(tag), communicator_, &request),
            "MPI_Isend");
  requests_.push_back(request);
  pending_.push_back({stream, piece, false, bytes});
}

void MpiTransport::post_receive(int64_t peer, Tag tag, std::byte* data, int64_t bytes, MpiStream* stream,
                                int64_t piece) {
  MPI_Request request = MPI_REQUEST_NULL;
  check_mpi(MPI_Irecv(data, narrow<int>(bytes), MPI_BYTE, narrow<int>(peer), wire_tag(tag), communicator_, &request),
            "MPI_Irecv");
  requests_.push_back(request);
  pending_.push_back({stream, piece, true, bytes});
}

void MpiTransport::detach(MpiStream* stream) {
  for (size_t i = 0; i < pending_.size(); ++i) {
    if (pending_[i].stream != stream) continue;
    pending_[i].stream = nullptr;
    if (pending_[i].receive) MPI_Cancel(&requests_[i]);
  }
}

std::unique_ptr<Outgoing> MpiTransport::send(int64_t peer, Tag tag, std::span<const std::byte> data, Strand&) {
  if (static_cast<int64_t>(data.size()) > kEagerBytes) return std::make_unique<MpiOutgoing>(*this, peer, tag, data);
  auto copy = std::make_unique<std::byte[]>(data.size());
  std::memcpy(copy.get(), data.data(), data.size());
  post_send(peer, tag, copy.get(), static_cast<int64_t>(data.size()), nullptr, 0);
  pending_.back().copy = std::move(copy);
  return std::make_unique<MpiDispatched>();
}

std::unique_ptr<Incoming> MpiTransport::receive_into(int64_t peer, Tag tag, std::span<std::byte> destination, Strand&) {
  return std::make_unique<MpiIncoming>(*this, peer, tag, static_cast<int64_t>(destination.size()), destination.data());
}

std::unique_ptr<Incoming> MpiTransport::receive(int64_t peer, Tag tag, int64_t bytes, Strand&) {
  return std::make_unique<MpiIncoming>(*this, peer, tag, bytes, nullptr);
}

void MpiTransport::test_streams() {
  if (requests_.empty()) return;
  indices_.resize(requests_.size());
  statuses_.resize(requests_.size());
  int count = 0;
  check_mpi(
      MPI_Testsome(static_cast<int>(requests_.size()), requests_.data(), &count, indices_.data(), statuses_.data()),
      "MPI_Testsome");
  if (count == MPI_UNDEFINED || count == 0) return;
  for (int i = 0; i < count; ++i) {
    const Pending& done = pending_[static_cast<size_t>(indices_[static_cast<size_t>(i)])];
    moved();
    if (done.stream == nullptr) continue;
    if (done.receive) check_size(statuses_[static_cast<size_t>(i)], done.bytes);
    done.stream->completed(done.piece);  // may post more: `done` is gone afterwards
  }
  size_t kept = 0;
  for (size_t i = 0; i < requests_.size(); ++i) {
    if (requests_[i] == MPI_REQUEST_NULL) continue;
    requests_[kept] = requests_[i];
    if (kept != i) pending_[kept] = std::move(pending_[i]);
    ++kept;
  }
  requests_.resize(kept);
  pending_.resize(kept);
}

void MpiTransport::progress() {
  test_streams();
  hear();
  if (verdict_) throw Aborted(verdict_->message);
  if (halting_) throw Aborted("another rank failed");
}

void MpiTransport::nap(uint64_t, int64_t rounds) {
  // With a core for each rank an answer is near: spin. Otherwise hand the core to the rank that is waited for, and
  // sleep once that has not helped for a while.
  constexpr int64_t kSpins = 2000, kYields = 200;
  if (!crowded_) {
    if (rounds < kSpins) return;
    rounds -= kSpins;
  }
  if (rounds < kYields) {
    sched_yield();
    return;
  }
  const int64_t microseconds = std::min<int64_t>(1000, 20 + (rounds - kYields) * 10);
  std::this_thread::sleep_for(std::chrono::microseconds(microseconds));
}

std::unique_ptr<std::byte[]> MpiTransport::take_staging(int64_t bytes) {
  const bool small = bytes <= kSmallStagingBytes;
  auto& pool = small ? small_staging_ : large_staging_;
  if (pool.empty()) {
    return std::unique_ptr<std::byte[]>(new std::byte[static_cast<size_t>(small ? kSmallStagingBytes : kPieceBytes)]);
  }
  auto staging = std::move(pool.back());
  pool.pop_back();
  return staging;
}

void MpiTransport::give_staging(std::unique_ptr<std::byte[]> staging, int64_t bytes) {
  (bytes <= kSmallStagingBytes ? small_staging_ : large_staging_).push_back(std::move(staging));
}

// Rank 0 listens for reports, the others for its verdict.
void MpiTransport::listen() {
  heard_ = std::make_unique<Notice>();
  check_mpi(MPI_Irecv(heard_.get(), sizeof(Notice), MPI_BYTE, rank_ == 0 ? MPI_ANY_SOURCE : 0,
                      rank_ == 0 ? kReportTag : kVerdictTag, communicator_, &hearing_),
            "MPI_Irecv");
}

void MpiTransport::hear() {
  while (test(hearing_)) {
    const Cause said{heard_->code, heard_->message};
    listen();
    if (said.code == kHaltCode) {
      if (rank_ == 0) ++others_stopped_;
      begin_halting();
      note_stopped();
    } else if (said.code == kAllStoppedCode) {
      all_stopped_ = true;
    } else if (rank_ == 0) {
      decide(said);
    } else {
      verdict_ = said;
    }
  }
}

void MpiTransport::tell(int peer, const Cause& cause) {
  told_.push_back(std::make_unique<Notice>(cause));
  telling_.push_back(MPI_REQUEST_NULL);
  check_mpi(MPI_Isend(told_.back().get(), told_.back()->bytes(), MPI_BYTE, peer, rank_ == 0 ? kVerdictTag : kReportTag,
                      communicator_, &telling_.back()),
            "MPI_Isend");
}

void MpiTransport::tell_all(const Cause& cause) {
  for (int peer = 1; peer < size_; ++peer) tell(peer, cause);
}

void MpiTransport::stop() {
  if (stopped_) return;
  stopped_ = true;
  if (rank_ != 0) {
    tell(0, {kHaltCode, ""});
    return;
  }
  begin_halting();
  note_stopped();
}

void MpiTransport::begin_halting() {
  if (rank_ == 0 && !halting_) tell_all({kHaltCode, ""});
  halting_ = true;
}

void MpiTransport::note_stopped() {
  if (rank_ != 0 || all_stopped_ || !stopped_ || others_stopped_ < size_ - 1) return;
  all_stopped_ = true;
  tell_all({kAllStoppedCode, ""});
}

void MpiTransport::decide(const Cause& cause) {
  if (verdict_) return;
  verdict_ = cause;
  print(cause);
  tell_all(cause);
}

bool MpiTransport::any_pending(bool receives) const {
  return std::any_of(pending_.begin(), pending_.end(),
                     [&](const Pending& pending) { return pending.receive == receives && !pending.copy; });
}

void MpiTransport::halt() noexcept {
  try {
    // Receives that had begun end first, the others are cancelled: then this rank reads nobody's memory.
    const auto deadline = Clock::now() + std::chrono::seconds(2);
    int64_t rounds = 0;
    for (; any_pending(true) && Clock::now() < deadline; nap(0, rounds++)) test_streams();
    stop();
    for (; any_pending(false) && !all_stopped_ && Clock::now() < deadline; nap(0, rounds++)) {
      test_streams();
      hear();
    }
  } catch (...) {
    // What MPI refuses now no longer matters.
  }
}

Cause MpiTransport::agree_on(const std::optional<Cause>& own) {
  const Cause unknown{static_cast<int>(ExitCode::communication), "a rank ended without a cause"};
  const auto deadline = Clock::now() + std::chrono::seconds(5);
  const auto told = [&] { return std::all_of(telling_.begin(), telling_.end(), test); };
  stop();
  hear();
  if (own && rank_ == 0) decide(*own);
  if (own && rank_ != 0 && !verdict_) tell(0, *own);
  // Rank 0 stays until all have stopped, so that the launcher does not take its end for theirs.
  for (int64_t rounds = 0; Clock::now() < deadline; nap(0, rounds++)) {
    hear();
    if (verdict_ && (rank_ != 0 || all_stopped_) && told()) return *verdict_;
  }
  if (rank_ == 0) {
    decide(own.value_or(unknown));
    told();
  }
  if (verdict_) return *verdict_;
  // Rank 0 is silent. The lowest rank that knows a cause speaks for all: its end makes the launcher end the others.
  std::this_thread::sleep_for(std::chrono::seconds(5) * std::min<int64_t>(rank_ - 1, 4));
  if (own) print(*own);
  return own.value_or(unknown);
}

}  // namespace quintet::comm
