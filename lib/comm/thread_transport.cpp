#include "lib/comm/thread_transport.h"

#include <chrono>
#include <cstring>
#include <thread>

namespace quintet::comm {

Letter::Letter(int64_t from, std::span<const std::byte> data, std::shared_ptr<const device::Fence> written)
    : from_(from), data_(data), written_(std::move(written)) {
  if (written_ || static_cast<int64_t>(data.size()) > kEagerBytes) return;
  copy_ = std::make_unique<std::byte[]>(data.size());
  std::memcpy(copy_.get(), data.data(), data.size());
  data_ = {copy_.get(), data.size()};
}

bool Letter::begin_read() {
  State expected = State::lent;
  return state_.compare_exchange_strong(expected, State::reading, std::memory_order_acq_rel);
}

void Letter::end_read(bool consumed, std::shared_ptr<const device::Fence> read) {
  read_ = std::move(read);
  state_.store(consumed ? State::consumed : State::lent, std::memory_order_release);
}

void Letter::take_back() {
  for (;;) {
    State expected = State::lent;
    if (state_.compare_exchange_strong(expected, State::taken_back, std::memory_order_acq_rel)) return;
    if (expected != State::reading) return;
    std::this_thread::sleep_for(std::chrono::microseconds(50));  // only when a failing rank unwinds
  }
}

ThreadWorld::ThreadWorld(int64_t ranks) {
  for (int64_t rank = 0; rank < ranks; ++rank) mailboxes_.push_back(std::make_unique<Mailbox>());
}

void ThreadWorld::abort(const Cause& cause) {
  {
    const std::lock_guard lock(cause_mutex_);
    if (!cause_) cause_ = cause;
  }
  aborted_.store(true, std::memory_order_release);
  for (const auto& mailbox : mailboxes_) {
    {
      const std::lock_guard lock(mailbox->mutex);
      ++mailbox->events;
    }
    mailbox->changed.notify_all();
  }
}

std::optional<Cause> ThreadWorld::cause() const {
  const std::lock_guard lock(cause_mutex_);
  return cause_;
}

class ThreadOutgoing : public Outgoing {
 public:
  ThreadOutgoing(ThreadTransport& transport, std::shared_ptr<Letter> letter, Strand& strand)
      : transport_(transport), letter_(std::move(letter)), strand_(strand) {}
  ~ThreadOutgoing() override {
    if (letter_) letter_->take_back();
  }

  bool done() override {
    if (!letter_) return true;
    if (!letter_->consumed()) {
      const std::lock_guard lock(transport_.own_mailbox().mutex);
      if (!letter_->consumed()) {
        letter_->awaited = true;
        return false;
      }
    }
    if (letter_->read()) strand_.wait_for(letter_->read());
    letter_.reset();
    transport_.moved();
    return true;
  }

 private:
  ThreadTransport& transport_;
  std::shared_ptr<Letter> letter_;  // empty: done, or never needed
  Strand& strand_;
};

class ThreadIncoming : public Incoming {
 public:
  ThreadIncoming(ThreadTransport& transport, int64_t peer, Tag tag, int64_t bytes, std::byte* destination,
                 Strand& strand)
      : transport_(transport), key_{peer, tag}, bytes_(bytes), destination_(destination), strand_(strand) {}
  ~ThreadIncoming() override {
    if (open_) letter_->end_read(false);
  }

  bool ready() override {
    if (letter_ || closed_) return true;
    if (!fetch()) return false;
    QUINTET_CHECK(static_cast<int64_t>(letter_->data().size()) == bytes_, "rank {} sent {} bytes where {} are expected",
                  key_.from, letter_->data().size(), bytes_);
    QUINTET_CHECK(strand_.on_device() == (letter_->written() != nullptr),
                  "a message between a device's memory and the host's");
    transport_.moved();
    if (destination_ != nullptr) {
      strand_.copy(open(), destination_);
      close();
    }
    return true;
  }

  std::span<const std::byte> open() override {
    if (!letter_->begin_read()) throw Aborted(fmt::format("rank {} took a message back", key_.from));
    open_ = true;
    if (letter_->written()) strand_.wait_for(letter_->written());
    return letter_->data();
  }

  void close() override {
    open_ = false;
    closed_ = true;
    if (letter_->copied()) {
      letter_.reset();
      return;
    }
    ThreadWorld::Mailbox& sender = transport_.mailbox(key_.from);
    std::shared_ptr<const device::Fence> read = strand_.fence();
    bool awaited = false;
    {
      const std::lock_guard lock(sender.mutex);
      letter_->end_read(true, std::move(read));
      awaited = letter_->awaited;
      if (awaited) ++sender.events;
    }
    if (awaited) sender.changed.notify_one();
    letter_.reset();
  }

 private:
  // Takes the letter out of the mailbox, or marks that it is waited for.
  bool fetch() {
    ThreadWorld::Mailbox& own = transport_.own_mailbox();
    const std::lock_guard lock(own.mutex);
    ThreadWorld::Slot& slot = own.slots[key_];
    if (!slot.letter) {
      slot.wanted = true;
      return false;
    }
    letter_ = std::move(slot.letter);
    own.slots.erase(key_);
    return true;
  }

  ThreadTransport& transport_;
  ThreadWorld::Key key_;
  int64_t bytes_;
  std::byte* destination_;
  Strand& strand_;
  std::shared_ptr<Letter> letter_;
  bool open_ = false, closed_ = false;
};

std::unique_ptr<Outgoing> ThreadTransport::send(int64_t peer, Tag tag, std::span<const std::byte> data,
                                                Strand& strand) {
  auto letter = std::make_shared<Letter>(rank_, data, strand.fence());
  ThreadWorld::Mailbox& receiver = mailbox(peer);
  bool wanted = false;
  {
    const std::lock_guard lock(receiver.mutex);
    ThreadWorld::Slot& slot = receiver.slots[{rank_, tag}];
    slot.letter = letter;
    wanted = slot.wanted;
    if (wanted) ++receiver.events;
  }
  if (wanted) receiver.changed.notify_one();
  if (letter->copied()) letter.reset();
  return std::make_unique<ThreadOutgoing>(*this, std::move(letter), strand);
}

std::unique_ptr<Incoming> ThreadTransport::receive_into(int64_t peer, Tag tag, std::span<std::byte> destination,
                                                        Strand& strand) {
  return std::make_unique<ThreadIncoming>(*this, peer, tag, static_cast<int64_t>(destination.size()),
                                          destination.data(), strand);
}

std::unique_ptr<Incoming> ThreadTransport::receive(int64_t peer, Tag tag, int64_t bytes, Strand& strand) {
  return std::make_unique<ThreadIncoming>(*this, peer, tag, bytes, nullptr, strand);
}

void ThreadTransport::progress() {
  if (!world_->aborted()) return;
  const std::optional<Cause> cause = world_->cause();
  throw Aborted(cause ? cause->message : "");
}

uint64_t ThreadTransport::events() {
  const std::lock_guard lock(own_mailbox().mutex);
  return own_mailbox().events;
}

void ThreadTransport::nap(uint64_t seen_events, int64_t) {
  // The time limit only lets the caller look at its watchdog.
  ThreadWorld::Mailbox& own = own_mailbox();
  std::unique_lock lock(own.mutex);
  own.changed.wait_for(lock, std::chrono::milliseconds(100), [&] { return own.events != seen_events; });
}

}  // namespace quintet::comm
