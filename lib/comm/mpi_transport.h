// Ranks as processes: messages are non-blocking MPI sends and receives in pieces, several of which are under way at a
// time, so that memory for pieces in transit stays small and is used again and again.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <mpi.h>

#include "lib/comm/failure.h"
#include "lib/comm/transport.h"

namespace quintet::comm {

// A message on its way; the transport tells it of each piece that has come or gone.
class MpiStream {
 public:
  virtual ~MpiStream() = default;
  virtual void completed(int64_t piece) = 0;
};

class MpiTransport : public Transport {
 public:
  // Works on a duplicate of MPI_COMM_WORLD. `crowded`: more ranks than cores, so that waits must not spin.
  explicit MpiTransport(bool crowded);
  ~MpiTransport() override;

  std::unique_ptr<Outgoing> send(int64_t peer, Tag tag, std::span<const std::byte> data, Strand&) override;
  std::unique_ptr<Incoming> receive_into(int64_t peer, Tag tag, std::span<std::byte> destination, Strand&) override;
  std::unique_ptr<Incoming> receive(int64_t peer, Tag tag, int64_t bytes, Strand&) override;
  void progress() override;
  uint64_t events() override { return 0; }
  void nap(uint64_t seen_events, int64_t rounds) override;
  void halt() noexcept override;

  // This rank has unwound, for a cause of its own or because others end: agrees with them on what all end with. Rank 0
  // decides for the first cause that it hears of and prints it; a rank that hears nothing for five seconds prints its
  // own.
  Cause agree_on(const std::optional<Cause>& own);

 private:
  friend class MpiOutgoing;
  friend class MpiIncoming;

  struct Notice;  // a cause on the wire

  int wire_tag(Tag tag) const;
  void post_send(int64_t peer, Tag tag, const std::byte* data, int64_t bytes, MpiStream* stream, int64_t piece);
  void post_receive(int64_t peer, Tag tag, std::byte* data, int64_t bytes, MpiStream* stream, int64_t piece);
  // Forgets a stream that dies with pieces under way.
  void detach(MpiStream* stream);
  void test_streams();

  bool any_pending(bool receives) const;

  // The end of a world. A rank that stops tells rank 0, which has all others stop; when all have, nobody reads
  // another's memory any more, and rank 0 says that, too. Causes go to rank 0, one verdict comes back.
  void listen();
  void hear();
  void tell(int peer, const Cause& cause);
  void tell_all(const Cause& cause);
  void stop();
  void begin_halting();
  void note_stopped();
  void decide(const Cause& cause);

  std::unique_ptr<std::byte[]> take_staging(int64_t bytes);
  void give_staging(std::unique_ptr<std::byte[]> staging, int64_t bytes);

  struct Pending {
    MpiStream* stream;
    int64_t piece;
    bool receive;
    int64_t bytes;
    std::unique_ptr<std::byte[]> copy = nullptr;  // of a small message, which no stream waits for
  };
  MPI_Comm communicator_ = MPI_COMM_NULL;
  int rank_ = 0, size_ = 1;
  int64_t channels_ = 1, sequences_ = 1;  // how many the range of MPI tags tells apart
  bool crowded_;
  std::vector<MPI_Request> requests_;
  std::vector<Pending> pending_;  // of requests_
  std::vector<int> indices_;      // scratch of MPI_Testsome
  std::vector<MPI_Status> statuses_;
  std::vector<std::unique_ptr<std::byte[]>> small_staging_, large_staging_;

  std::unique_ptr<Notice> heard_;  // being received
  MPI_Request hearing_ = MPI_REQUEST_NULL;
  std::vector<std::unique_ptr<Notice>> told_;
  std::vector<MPI_Request> telling_;
  bool halting_ = false;    // all ranks are to stop
  bool stopped_ = false;    // this one has
  int others_stopped_ = 0;  // known to rank 0
  bool all_stopped_ = false;
  std::optional<Cause> verdict_;
};

}  // namespace quintet::comm
