// Posted operations: made by a group, moved on by polling, waited for by their owner.
#pragma once

#include <memory>
#include <string>
#include <utility>

namespace quintet::comm {

class Communicator;
class Strand;

// The state of one posted operation.
class Operation {
 public:
  Operation() = default;
  // What is done on `strand` may happen later than the host's part.
  explicit Operation(std::shared_ptr<Strand> strand) : strand_(std::move(strand)) {}
  virtual ~Operation() = default;
  Operation(const Operation&) = delete;
  Operation& operator=(const Operation&) = delete;

  // Moves it on without blocking; whether the host has nothing left to do for it.
  virtual bool poll() = 0;
  // Whether its owner need not wait any longer: join() makes the owner's device wait for what has not happened.
  virtual bool joinable() { return poll(); }
  virtual void join();
  // Whether nothing is left to join.
  bool joined() const;
  // Whether it has happened, on a device as well.
  bool happened();
  // Whether it moves on without the transport's hearing of it.
  virtual bool silent();
  // Gives it up unfinished, for unwinding: from then on no peer reads its operands and nothing is written to them.
  virtual void withdraw() = 0;
  // "all-reduce of gradients of bucket 3 (33554432 bytes) over dp; waits for rank 5 (dp 1)": for watchdog reports.
  virtual std::string describe() const = 0;

 private:
  std::shared_ptr<Strand> strand_;  // null: there is none
};

// A claim on a posted operation. Every handle is waited for; an empty one is done. Where an exception destroys the last
// copy, the operation is withdrawn: let handles die before the operands. On a device nothing else destroys it before
// the operation is done.
class Handle {
 public:
  Handle() = default;
  Handle(Communicator& communicator, std::shared_ptr<Operation> operation)
      : communicator_(&communicator), operation_(std::move(operation)) {}

  // An operation on a device's memory is done once all that the device is told from now on happens after it.
  bool done() const;
  // Blocks until done, moving on every operation of this rank meanwhile. Throws Error(communication) when the world is
  // aborting or the watchdog's time is over.
  void wait();
  // Until it has happened, on a device as well.
  void host_wait();

 private:
  Communicator* communicator_ = nullptr;
  std::shared_ptr<Operation> operation_;
};

}  // namespace quintet::comm
