// Any text is a config or an Error that says why not; a config that loads is written and read back equal.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "lib/base/error.h"
#include "lib/config/load.h"

namespace {

using quintet::config::Config;
using quintet::config::load_from_string;

// The first line may hold an override, after "#=".
std::vector<std::string> overrides_in(const std::string& text) {
  if (text.rfind("#=", 0) != 0) return {};
  return {text.substr(2, text.find('\n') - 2)};
}

void check_round_trip(const Config& config) {
  const std::string text = quintet::config::to_yaml(config);
  try {
    if (load_from_string(text, "written.yaml", {}, 0) == config) return;
    std::fprintf(stderr, "read back differently:\n%s", text.c_str());
  } catch (const quintet::Error& error) {
    std::fprintf(stderr, "%s\nof what was written:\n%s", error.what(), text.c_str());
  }
  std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  const std::string text(reinterpret_cast<const char*>(bytes), size);
  try {
    check_round_trip(load_from_string(text, "fuzz.yaml", overrides_in(text), 0));
  } catch (const quintet::Error&) {
  }
  return 0;
}
