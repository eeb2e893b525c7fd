#include "lib/pipeline/schedule_check.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>

#include <fmt/core.h>

#include "lib/base/error.h"

namespace quintet::pipeline {
namespace {

using Kind = Action::Kind;

constexpr std::array kKinds = {Kind::forward,         Kind::backward,         Kind::receive_activation,
                               Kind::send_activation, Kind::receive_gradient, Kind::send_gradient};

// Of one microbatch on one stage, the first stands before the second.
struct Order {
  Kind first, second;
  std::string_view rule;
};
constexpr std::array kOrders = {
    Order{Kind::forward, Kind::backward, "a backward needs what its forward kept"},
    Order{Kind::receive_activation, Kind::forward, "a receive is posted before the computation that needs it"},
    Order{Kind::receive_gradient, Kind::backward, "a receive is posted before the computation that needs it"},
    Order{Kind::forward, Kind::send_activation, "a send follows the computation whose output it takes"},
    Order{Kind::backward, Kind::send_gradient, "a send follows the computation whose output it takes"},
};

class Checker {
 public:
  Checker(std::span<const std::vector<Action>> lists, int64_t microbatches, std::span<const int64_t> most_in_flight)
      : lists_(lists), microbatches_(microbatches), most_in_flight_(most_in_flight) {
    QUINTET_CHECK(lists.size() == most_in_flight.size(), "{} stages, {} bounds", lists.size(), most_in_flight.size());
    for (const std::vector<Action>& list : lists)
      for (const Action& action : list) trains_ = trains_ || action.kind == Kind::backward;
  }

  std::string first_problem() {
    for (int64_t stage = 0; stage < stages(); ++stage) {
      if (std::string problem = note_places(stage); !problem.empty()) return problem;
      if (std::string problem = check_counts(stage); !problem.empty()) return problem;
      if (std::string problem = check_order(stage); !problem.empty()) return problem;
      if (std::string problem = check_in_flight(stage); !problem.empty()) return problem;
    }
    for (int64_t stage = 0; stage + 1 < stages(); ++stage) {
      std::string problem = check_messages(stage, Kind::send_activation, stage + 1, Kind::receive_activation);
      if (problem.empty()) problem = check_messages(stage + 1, Kind::send_gradient, stage, Kind::receive_gradient);
      if (!problem.empty()) return problem;
    }
    return check_progress();
  }

 private:
  // Where a stage's list holds an action: of each kind and microbatch, the places in ascending order.
  using Places = std::array<std::vector<std::vector<size_t>>, kKinds.size()>;

  int64_t stages() const { return std::ssize(lists_); }
  const std::vector<Action>& list(int64_t stage) const { return lists_[static_cast<size_t>(stage)]; }
  std::vector<size_t>& places(const Action& action) {
    return places_[static_cast<size_t>(action.kind)][static_cast<size_t>(action.microbatch)];
  }

  std::string note_places(int64_t stage) {
    for (auto& of_kind : places_) of_kind.assign(static_cast<size_t>(microbatches_), {});
    for (size_t place = 0; place < list(stage).size(); ++place) {
      const Action& action = list(stage)[place];
      if (action.microbatch < 0 || action.microbatch >= microbatches_)
        return fmt::format("stage {}: {} is not one of {} microbatches", stage, to_string(action), microbatches_);
      places(action).push_back(place);
    }
    return "";
  }

  bool belongs(int64_t stage, Kind kind) const {
    switch (kind) {
      case Kind::forward: return true;
      case Kind::backward: return trains_;
      case Kind::receive_activation: return stage > 0;
      case Kind::send_activation: return stage < stages() - 1;
      case Kind::receive_gradient: return trains_ && stage < stages() - 1;
      case Kind::send_gradient: return trains_ && stage > 0;
    }
    QUINTET_CHECK(false, "unknown kind of action");
  }

  std::string check_counts(int64_t stage) {
    for (const Kind kind : kKinds)
      for (int64_t microbatch = 0; microbatch < microbatches_; ++microbatch) {
        const Action action{kind, microbatch};
        const size_t count = places(action).size();
        if (belongs(stage, kind)) {
          if (count == 0) return fmt::format("stage {}: {} is missing", stage, to_string(action));
          if (count > 1) return fmt::format("stage {}: {} stands {} times, not once", stage, to_string(action), count);
        } else if (count > 0) {
          const bool gradient = kind == Kind::receive_gradient || kind == Kind::send_gradient;
          return fmt::format(
              "stage {}: {} has no place; {}", stage, to_string(action),
              gradient && !trains_ ? "without backwards there are no gradients" : "there is no stage at the other end");
        }
      }
    return "";
  }

  std::string out_of_order(int64_t stage, const Action& first, const Action& second, std::string_view rule) {
    if (places(first).front() < places(second).front()) return "";
    return fmt::format("stage {}: {} stands before {}; {}", stage, to_string(second), to_string(first), rule);
  }

  std::string check_order(int64_t stage) {
    for (int64_t microbatch = 0; microbatch < microbatches_; ++microbatch) {
      for (const Order& order : kOrders) {
        if (!belongs(stage, order.first) || !belongs(stage, order.second)) continue;
        std::string problem = out_of_order(stage, {order.first, microbatch}, {order.second, microbatch}, order.rule);
        if (!problem.empty()) return problem;
      }
      for (const Kind kind : {Kind::forward, Kind::backward}) {
        if (microbatch == 0 || !belongs(stage, kind)) continue;
        std::string problem = out_of_order(stage, {kind, microbatch - 1}, {kind, microbatch},
                                           "microbatches run in ascending order, so that gradients add up in it");
        if (!problem.empty()) return problem;
      }
    }
    return "";
  }

  std::string check_in_flight(int64_t stage) const {
    if (!trains_) return "";
    const int64_t bound = most_in_flight_[static_cast<size_t>(stage)];
    int64_t in_flight = 0;
    for (const Action& action : list(stage)) {
      if (action.kind == Kind::forward) ++in_flight;
      if (action.kind == Kind::backward) --in_flight;
      if (in_flight > bound)
        return fmt::format("stage {}: {} keeps {} microbatches in flight; the schedule promises at most {}", stage,
                           to_string(action), in_flight, bound);
    }
    return "";
  }

  std::vector<Action> only(int64_t stage, Kind kind) const {
    std::vector<Action> chosen;
    for (const Action& action : list(stage))
      if (action.kind == kind) chosen.push_back(action);
    return chosen;
  }

  // Both lists hold each microbatch once.
  std::string check_messages(int64_t sender, Kind send, int64_t receiver, Kind receive) const {
    if (!belongs(sender, send)) return "";
    const std::vector<Action> sent = only(sender, send);
    const std::vector<Action> received = only(receiver, receive);
    for (size_t i = 0; i < sent.size(); ++i)
      if (sent[i].microbatch != received[i].microbatch)
        return fmt::format(
            "stage {}: {} meets {} of stage {}; messages between two stages are received in the order sent", receiver,
            to_string(received[i]), to_string(sent[i]), sender);
    return "";
  }

  struct Message {
    int64_t sender;
    Action send;
  };

  // What a stage's action needs from another stage.
  std::optional<Message> needed(int64_t stage, const Action& action) const {
    if (action.kind == Kind::forward && stage > 0)
      return Message{stage - 1, Action::send_activation(action.microbatch)};
    if (action.kind == Kind::backward && stage < stages() - 1)
      return Message{stage + 1, Action::send_gradient(action.microbatch)};
    return std::nullopt;
  }

  // Runs all stages side by side, each as far as it can.
  std::string check_progress() const {
    std::vector<std::span<const Action>> done;  // of each stage
    for (const std::vector<Action>& list : lists_) done.push_back(std::span(list).first(0));
    const auto of = [&](int64_t stage) -> std::span<const Action>& { return done[static_cast<size_t>(stage)]; };
    const auto ended = [&](int64_t stage) { return of(stage).size() == list(stage).size(); };
    const auto next = [&](int64_t stage) -> const Action& { return list(stage)[of(stage).size()]; };
    const auto missing = [&](int64_t stage) {
      std::optional<Message> message = needed(stage, next(stage));
      if (message && std::count(of(message->sender).begin(), of(message->sender).end(), message->send) > 0)
        message.reset();
      return message;
    };
    for (bool moved = true; moved;) {
      moved = false;
      for (int64_t stage = 0; stage < stages(); ++stage)
        for (; !ended(stage) && !missing(stage); moved = true)
          of(stage) = std::span(list(stage)).first(of(stage).size() + 1);
    }
    std::string waits;
    for (int64_t stage = 0; stage < stages(); ++stage) {
      if (ended(stage)) continue;
      const Message message = *missing(stage);
      waits += fmt::format("{}stage {}: {} waits for {} of stage {}", waits.empty() ? "deadlock: " : "; ", stage,
                           to_string(next(stage)), to_string(message.send), message.sender);
    }
    return waits;
  }

  std::span<const std::vector<Action>> lists_;
  int64_t microbatches_;
  std::span<const int64_t> most_in_flight_;
  bool trains_ = false;
  Places places_;  // of the stage that is being checked
};

}  // namespace

std::string check_schedule(std::span<const std::vector<Action>> lists, int64_t microbatches,
                           std::span<const int64_t> most_in_flight) {
  return Checker(lists, microbatches, most_in_flight).first_problem();
}

}  // namespace quintet::pipeline
