// Posted operations: made by a group, moved on by polling, waited for by their owner.
#pragma once

#include <memory>
#include <string>

namespace quintet::comm {

class Communicator;

// The state of one posted operation. poll() moves it on without blocking and says whether it is done.
class Operation {
 public:
  virtual ~Operation() = default;
  virtual bool poll() = 0;
  // Whether its owner need not wait any longer: it is done, or join() makes the owner's device wait in the host's
  // place.
  virtual bool joinable() { return poll(); }
  virtual void join() {}
  // Whether it moves on without the transport's hearing of it.
  virtual bool silent() const { return false; }
  // Gives it up unfinished, for unwinding: from then on no peer reads its operands and nothing is written to them.
  virtual void withdraw() = 0;
  // "all-reduce of gradients of bucket 3 (33554432 bytes) over dp; waits for rank 5 (dp 1)": for watchdog reports.
  virtual std::string describe() const = 0;
};

// A claim on a posted operation. Every handle is waited for; an empty one is done. Where an exception destroys the last
// copy, the operation is withdrawn: let handles die before the operands.
class Handle {
 public:
  Handle() = default;
  Handle(Communicator& communicator, std::shared_ptr<Operation> operation)
      : communicator_(&communicator), operation_(std::move(operation)) {}

  bool done() const;
  // Blocks until done, moving on every operation of this rank meanwhile. Throws Error(communication) when the world is
  // aborting or the watchdog's time is over. An operation on a device's memory is done once all that the device is told
  // from now on happens after it.
  void wait();
  // Until it has happened, on a device as well.
  void host_wait();

 private:
  Communicator* communicator_ = nullptr;
  std::shared_ptr<Operation> operation_;
};

}  // namespace quintet::comm
