#include "lib/base/error.h"

namespace quintet {
namespace {
thread_local std::string current_rank_label;
}  // namespace

void set_rank_label(std::string label) { current_rank_label = std::move(label); }
const std::string& rank_label() { return current_rank_label; }

namespace detail {
void check_failed(const char* expression, const char* file, int line, const std::string& detail) {
  const std::string& rank = rank_label();
  throw CheckFailure(fmt::format("{}:{}: check failed: {}{}{}{}{}", file, line, expression, detail.empty() ? "" : ": ",
                                 detail, rank.empty() ? "" : " on ", rank));
}
}  // namespace detail
}  // namespace quintet
