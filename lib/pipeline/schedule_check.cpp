#include "lib/pipeline/schedule_check.h"

#include <algorithm>
#include <array>
#include <deque>
#include <optional>
#include <string_view>

#include <fmt/core.h>

#include "lib/base/error.h"
#include "lib/pipeline/transfers.h"

namespace quintet::pipeline {
namespace {

using Kind = Action::Kind;

// Of one microbatch and stage, the first stands before the second where a list has both.
struct Order {
  Kind first, second;
  std::string_view rule;
};
constexpr std::string_view kKept = "a backward needs what its forward kept";
constexpr std::string_view kPosted = "a receive is posted before the computation that needs it";
constexpr std::string_view kComputed = "a send follows the computation whose output it takes";
constexpr std::array kOrders = {
    Order{Kind::forward, Kind::backward, kKept},
    Order{Kind::forward, Kind::backward_input, kKept},
    Order{Kind::backward_input, Kind::backward_weight, "a weight part needs what its input part left"},
    Order{Kind::receive_activation, Kind::forward, kPosted},
    Order{Kind::receive_gradient, Kind::backward, kPosted},
    Order{Kind::receive_gradient, Kind::backward_input, kPosted},
    Order{Kind::forward, Kind::send_activation, kComputed},
    Order{Kind::backward, Kind::send_gradient, kComputed},
    Order{Kind::backward_input, Kind::send_gradient, kComputed},
};
constexpr std::string_view kAscending = "microbatches run in ascending order, so that gradients add up in it";
constexpr std::string_view kChannel =
    "the messages of a channel run in ascending order at both ends, so that they meet";
constexpr std::string_view kHandedOver = "a stage takes over what its neighbour on the same rank has computed";

// The actions of all ranks around a place of each list; the marked ranks' there are in brackets.
class Grid {
 public:
  explicit Grid(const ActionLists& lists) : lists_(lists), centres_(lists.size(), 0), marked_(lists.size(), false) {}

  void centre_all(size_t place) { std::fill(centres_.begin(), centres_.end(), place); }
  void mark(int64_t rank, size_t place) {
    centres_[static_cast<size_t>(rank)] = place;
    marked_[static_cast<size_t>(rank)] = true;
  }

  std::string text() const {
    constexpr size_t kAround = 5;
    std::string text;
    for (size_t rank = 0; rank < lists_.size(); ++rank) {
      const std::vector<Action>& list = lists_[rank];
      text += fmt::format("\n  rank {:<3}", rank);
      const size_t centre = centres_[rank];
      for (size_t column = 0; column <= 2 * kAround; ++column) {
        const size_t place = centre + column - kAround;  // wraps before the list's beginning
        const std::string cell = place < list.size() ? symbol(list[place]) : "";
        const bool marked = marked_[rank] && place == centre;
        text += fmt::format(" {:^9}", marked ? "[" + cell + "]" : cell);
      }
      text.erase(text.find_last_not_of(' ') + 1);
    }
    return text;
  }

 private:
  const ActionLists& lists_;
  std::vector<size_t> centres_;
  std::vector<bool> marked_;
};

class Checker {
 public:
  explicit Checker(const Plan& plan) : plan_(plan), placement_(plan.placement) {
    QUINTET_CHECK(std::ssize(plan.lists) == placement_.ranks && std::ssize(plan.most_kept) == placement_.ranks,
                  "{} lists and {} bounds for {} ranks", plan.lists.size(), plan.most_kept.size(), placement_.ranks);
    places_.resize(static_cast<size_t>(Action::kKinds * placement_.stages() * plan.microbatches));
    for (const std::vector<Action>& list : plan.lists)
      for (const Action& action : list) trains_ = trains_ || action.is_backward() || action.completes();
  }

  std::string first_problem() {
    for (int64_t rank = 0; rank < placement_.ranks; ++rank)
      if (std::string problem = note_places(rank); !problem.empty()) return problem;
    for (int64_t rank = 0; rank < placement_.ranks; ++rank) {
      for (const int64_t stage : placement_.stages_of(rank)) {
        if (std::string problem = check_counts(stage); !problem.empty()) return problem;
        if (std::string problem = check_order(stage); !problem.empty()) return problem;
      }
      if (std::string problem = check_kept(rank); !problem.empty()) return problem;
    }
    return check_progress();
  }

  int64_t messages_under_way() const {
    const auto ends = [&](int64_t under_way) {
      const std::vector<Progress> ranks = run(under_way);
      for (size_t rank = 0; rank < ranks.size(); ++rank)
        if (ranks[rank].done < plan_.lists[rank].size()) return false;
      return true;
    };
    int64_t most = 2;
    while (!ends(most)) most *= 2;
    for (int64_t least = std::max<int64_t>(2, most / 2 + 1); least < most;) {
      const int64_t middle = least + (most - least) / 2;
      if (ends(middle)) {
        most = middle;
      } else {
        least = middle + 1;
      }
    }
    return most;
  }

 private:
  // Where an action stands in the list of its stage's rank.
  struct Places {
    size_t count = 0, first = 0;
  };

  const std::vector<Action>& list(int64_t rank) const { return plan_.lists[static_cast<size_t>(rank)]; }
  size_t index_of(const Action& action) const {
    return static_cast<size_t>((static_cast<int64_t>(action.kind) * placement_.stages() + action.stage) *
                                   plan_.microbatches +
                               action.microbatch);
  }
  const Places& places(const Action& action) const { return places_[index_of(action)]; }
  bool has(const Action& action) const { return places(action).count > 0; }

  // A sentence about an action of a rank, and the lists around its place, or around `near` where it has none.
  std::string fault(int64_t rank, std::optional<size_t> place, const std::string& sentence, size_t near = 0) const {
    Grid grid(plan_.lists);
    grid.centre_all(place.value_or(near));
    if (place) grid.mark(rank, *place);
    return fmt::format("rank {}: {}{}", rank, sentence, grid.text());
  }

  std::string note_places(int64_t rank) {
    for (size_t place = 0; place < list(rank).size(); ++place) {
      const Action& action = list(rank)[place];
      if (action.microbatch < 0 || action.microbatch >= plan_.microbatches)
        return fault(rank, place,
                     fmt::format("{} is not one of {} microbatches", to_string(action), plan_.microbatches));
      if (action.stage < 0 || action.stage >= placement_.stages() || placement_.rank_of(action.stage) != rank)
        return fault(rank, place, fmt::format("{} is no stage of this rank", to_string(action)));
      Places& noted = places_[index_of(action)];
      if (noted.count++ == 0) noted.first = place;
    }
    return "";
  }

  // How often the action has to stand there.
  size_t expected(const Action& action) const {
    const auto [kind, stage, microbatch] = action;
    const bool first = stage == 0, last = stage == placement_.last_stage();
    // Once begun in parts, a backward goes on in parts.
    const bool parts =
        has({Kind::backward_input, stage, microbatch}) || has({Kind::backward_weight, stage, microbatch});
    bool belongs = false;
    switch (kind) {
      case Kind::forward: belongs = true; break;
      case Kind::backward: belongs = trains_ && !parts; break;
      case Kind::backward_input:
      case Kind::backward_weight: belongs = trains_ && parts; break;
      case Kind::receive_activation: belongs = !first && !placement_.hands_over(stage - 1); break;
      case Kind::send_activation: belongs = !last && !placement_.hands_over(stage); break;
      case Kind::receive_gradient: belongs = trains_ && !last && !placement_.hands_over(stage); break;
      case Kind::send_gradient: belongs = trains_ && !first && !placement_.hands_over(stage - 1); break;
    }
    return belongs ? 1 : 0;
  }

  std::string check_counts(int64_t stage) const {
    const int64_t rank = placement_.rank_of(stage);
    for (int64_t kind = 0; kind < Action::kKinds; ++kind)
      for (int64_t microbatch = 0; microbatch < plan_.microbatches; ++microbatch) {
        const Action action{static_cast<Kind>(kind), stage, microbatch};
        const auto [count, first] = places(action);
        if (count == expected(action)) continue;
        if (count == 0)
          return fault(rank, std::nullopt, to_string(action) + " is missing",
                       places({Kind::forward, stage, microbatch}).first);
        if (expected(action) == 1)
          return fault(rank, first, fmt::format("{} stands {} times, not once", to_string(action), count));
        const bool gradient = action.kind == Kind::receive_gradient || action.kind == Kind::send_gradient;
        std::string_view rule = "there is no stage on another rank at the other end";
        if (gradient && !trains_) rule = "without backwards there are no gradients";
        if (action.kind == Kind::backward) rule = "its parts stand there already";
        return fault(rank, first, fmt::format("{} has no place; {}", to_string(action), rule));
      }
    return "";
  }

  // Both lie on one rank.
  std::string out_of_order(const Action& first, const Action& second, std::string_view rule) const {
    if (!has(first) || !has(second) || places(first).first < places(second).first) return "";
    return fault(placement_.rank_of(second.stage), places(second).first,
                 fmt::format("{} stands before {}; {}", to_string(second), to_string(first), rule));
  }

  std::string check_order(int64_t stage) const {
    for (int64_t microbatch = 0; microbatch < plan_.microbatches; ++microbatch) {
      for (const Order& order : kOrders) {
        std::string problem =
            out_of_order({order.first, stage, microbatch}, {order.second, stage, microbatch}, order.rule);
        if (!problem.empty()) return problem;
      }
      if (std::string problem = check_handed_over(stage, microbatch); !problem.empty()) return problem;
      if (microbatch == 0) continue;
      for (int64_t kind = 0; kind < Action::kKinds; ++kind) {
        const Action action{static_cast<Kind>(kind), stage, microbatch};
        std::string problem =
            out_of_order({action.kind, stage, microbatch - 1}, action, action.computes() ? kAscending : kChannel);
        // A microbatch whose backward is whole, after one whose is not, and the other way round.
        if (problem.empty() && action.completes())
          problem = out_of_order(completion(stage, microbatch - 1), action, kAscending);
        if (!problem.empty()) return problem;
      }
    }
    return "";
  }

  // What adds the microbatch's gradients.
  Action completion(int64_t stage, int64_t microbatch) const {
    const Action parts{Kind::backward_weight, stage, microbatch};
    return has(parts) ? parts : Action{Kind::backward, stage, microbatch};
  }
  // What makes the gradient of the stage's input.
  Action input_backward(int64_t stage, int64_t microbatch) const {
    const Action parts{Kind::backward_input, stage, microbatch};
    return has(parts) ? parts : Action{Kind::backward, stage, microbatch};
  }

  std::string check_handed_over(int64_t stage, int64_t microbatch) const {
    if (stage == placement_.last_stage() || !placement_.hands_over(stage)) return "";
    const int64_t next = stage + 1;
    std::string problem =
        out_of_order({Kind::forward, stage, microbatch}, {Kind::forward, next, microbatch}, kHandedOver);
    if (problem.empty() && trains_)
      problem = out_of_order(input_backward(next, microbatch), input_backward(stage, microbatch), kHandedOver);
    return problem;
  }

  std::string check_kept(int64_t rank) const {
    if (!trains_) return "";
    const int64_t bound = plan_.most_kept[static_cast<size_t>(rank)];
    int64_t kept = 0;
    for (size_t place = 0; place < list(rank).size(); ++place) {
      const Action& action = list(rank)[place];
      if (action.kind == Kind::forward) ++kept;
      if (action.completes()) --kept;
      if (kept > bound)
        return fault(
            rank, place,
            fmt::format("{} keeps {} at once; the schedule promises at most {}", to_string(action), kept, bound));
    }
    return "";
  }

  // The send of another rank that the action waits for.
  std::optional<Action> awaited(const Action& action) const {
    const auto [kind, stage, microbatch] = action;
    if (kind == Kind::forward && stage > 0 && !placement_.hands_over(stage - 1))
      return Action{Kind::send_activation, stage - 1, microbatch};
    if (action.is_backward() && stage < placement_.last_stage() && !placement_.hands_over(stage))
      return Action{Kind::send_gradient, stage + 1, microbatch};
    return std::nullopt;
  }

  // The receive of another rank that takes the send's message.
  static Action receive_of(const Action& send) {
    const bool activation = send.kind == Kind::send_activation;
    return {activation ? Kind::receive_activation : Kind::receive_gradient, peer_stage(send), send.microbatch};
  }

  // How far a rank has come.
  struct Progress {
    size_t done = 0;                  // actions
    int64_t held = 0;                 // messages
    std::deque<Action> on_their_way;  // sends, until the rank has waited for them
    int64_t most = 0;                 // messages that there is memory for
    bool is_full() const { return held + std::ssize(on_their_way) == most; }
  };

  bool is_done(const std::vector<Progress>& ranks, const Action& action) const {
    return places(action).first < ranks[static_cast<size_t>(placement_.rank_of(action.stage))].done;
  }

  // The action of another rank that the next one of this rank waits for: the send of its input, or the receive of the
  // oldest message where it takes one more than there is memory for.
  std::optional<Action> missing(const std::vector<Progress>& ranks, int64_t rank) const {
    const Progress& own = ranks[static_cast<size_t>(rank)];
    const Action& next = list(rank)[own.done];
    if (const std::optional<Action> send = awaited(next); send && !is_done(ranks, *send)) return send;
    if (message_use(next, placement_).takes && own.is_full())
      if (const Action receive = receive_of(own.on_their_way.front()); !is_done(ranks, receive)) return receive;
    return std::nullopt;
  }

  void advance(Progress& own, const Action& action) const {
    const MessageUse use = message_use(action, placement_);
    if (use.takes && own.is_full()) own.on_their_way.pop_front();
    own.held += (use.takes ? 1 : 0) - (use.gives_back || use.sends ? 1 : 0);
    if (use.sends) own.on_their_way.push_back(action);
    ++own.done;
  }

  // Runs all ranks side by side, each as far as it can, with memory for so many messages on their way.
  std::vector<Progress> run(int64_t under_way) const {
    std::vector<Progress> ranks(plan_.lists.size());
    for (int64_t rank = 0; rank < placement_.ranks; ++rank)
      ranks[static_cast<size_t>(rank)].most = most_messages_held(list(rank), placement_) + under_way;
    for (bool moved = true; moved;) {
      moved = false;
      for (int64_t rank = 0; rank < placement_.ranks; ++rank) {
        Progress& own = ranks[static_cast<size_t>(rank)];
        for (; own.done < list(rank).size() && !missing(ranks, rank); moved = true) advance(own, list(rank)[own.done]);
      }
    }
    return ranks;
  }

  // Every message there is.
  int64_t messages() const { return 2 * placement_.stages() * plan_.microbatches; }

  std::string check_progress() const {
    const std::vector<Progress> ranks = run(messages());
    Grid grid(plan_.lists);
    std::string waits;
    for (int64_t rank = 0; rank < placement_.ranks; ++rank) {
      const size_t place = ranks[static_cast<size_t>(rank)].done;
      if (place == list(rank).size()) continue;
      grid.mark(rank, place);
      const Action send = *missing(ranks, rank);
      waits += fmt::format("{}rank {}: {} waits for {} by rank {}", waits.empty() ? "deadlock: " : "; ", rank,
                           to_string(list(rank)[place]), to_string(send), placement_.rank_of(send.stage));
    }
    return waits.empty() ? "" : waits + grid.text();
  }

  const Plan& plan_;
  const StagePlacement& placement_;
  bool trains_ = false;
  std::vector<Places> places_;  // by kind, stage and microbatch
};

}  // namespace

std::string check_plan(const Plan& plan) { return Checker(plan).first_problem(); }

int64_t messages_under_way(const Plan& plan) {
  Checker checker(plan);
  const std::string problem = checker.first_problem();
  QUINTET_CHECK(problem.empty(), "{}", problem);
  return checker.messages_under_way();
}

}  // namespace quintet::pipeline
