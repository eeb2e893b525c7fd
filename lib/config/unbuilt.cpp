// Legal values that this build cannot run yet, refused by name. A line goes when its feature lands.
#include <array>
#include <string_view>

#include "lib/config/declaration.h"
#include "lib/config/review.h"

namespace quintet::config {
namespace {

struct Unbuilt {
  std::string_view key;
  bool (*asked)(const Config&);
  std::string_view works;  // what can be chosen now
};

constexpr std::array kUnbuilt = {
    Unbuilt{"train.max_seconds", [](const Config& c) { return c.train.max_seconds > 0; }, "0"},
    Unbuilt{"data.format",
            [](const Config& c) { return c.data.format != DataFormat::automatic && c.data.format != DataFormat::text; },
            "auto or text"},
    Unbuilt{"data.order", [](const Config& c) { return c.data.order == DataOrder::megatron; }, "quintet"},
    Unbuilt{"data.tokenizer", [](const Config& c) { return c.data.tokenizer != "bytes"; }, "bytes"},
    Unbuilt{"checkpoint.every", [](const Config& c) { return c.checkpoint.every > 0; }, "0"},
    Unbuilt{"checkpoint.resume",
            [](const Config& c) { return c.checkpoint.resume != "auto" && c.checkpoint.resume != "never"; },
            "auto or never"},
    Unbuilt{"checkpoint.init_from", [](const Config& c) { return c.checkpoint.init_from.has_value(); }, "null"},
    Unbuilt{"logging.trace_steps", [](const Config& c) { return !c.logging.trace_steps.empty(); }, "[]"},
    Unbuilt{"fault.check_replicas_every", [](const Config& c) { return c.fault.check_replicas_every > 0; }, "0"},
};

}  // namespace

void refuse_unbuilt(Review& review) {
  for (const Unbuilt& unbuilt : kUnbuilt) {
    if (!review.sound({unbuilt.key}) || !unbuilt.asked(review.config)) continue;
    const Key* key = find_key(unbuilt.key);
    const std::string value = key == nullptr ? "" : key->write(review.config) + " ";
    review.problem({unbuilt.key}, "{}is not built yet; what works now: {}", value, unbuilt.works);
  }
}

}  // namespace quintet::config
