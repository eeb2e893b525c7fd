// What is declared of the keys, in words.
#include <fmt/format.h>

#include "lib/base/error.h"
#include "lib/config/declaration.h"
#include "lib/config/suggestion.h"

namespace quintet::config {
namespace {

std::string_view name_of(ResumeClass resume) {
  switch (resume) {
    case ResumeClass::fixed: return "fixed";
    case ResumeClass::noted: return "noted";
    case ResumeClass::free: return "free";
  }
  return "";
}

std::string_view meaning_of(ResumeClass resume) {
  switch (resume) {
    case ResumeClass::fixed: return "fixed: a checkpoint with another value is refused";
    case ResumeClass::noted: return "noted: the config's value wins, and the change is said";
    case ResumeClass::free: return "free: may differ from the checkpoint's";
  }
  return "";
}

std::string default_of(const Key& key) { return key.required() ? "none, it must be given" : key.default_text; }

std::string explain_key(const Key& key) {
  return fmt::format("{}\n  {}\n  value:     {}\n  default:   {}\n  on resume: {}\n", key.path, key.help,
                     legal_values(key), default_of(key), meaning_of(key.resume));
}

std::string explain_section(const Section& section) {
  std::string text = fmt::format("{}: {}\n", section.path, section.help);
  for (const Key& key : keys()) {
    if (key.path.rfind(section.path + ".", 0) != 0) continue;
    text += fmt::format("  {:<40} {}\n", key.path, key.help);
  }
  return text;
}

// Markdown would end a cell at a bar.
std::string cell(const std::string& text) {
  std::string escaped;
  for (const char c : text) escaped += c == '|' ? "\\|" : std::string(1, c);
  return escaped;
}

}  // namespace

std::string explain(std::string_view key) {
  if (const Key* found = find_key(key)) return explain_key(*found);
  if (const Section* section = find_section(key)) return explain_section(*section);
  fail(ExitCode::config, "{}: unknown key; {}", key, suggestion_for(std::string(key)));
}

std::string keys_markdown() {
  std::string text = "| Key | Default | Legal values | On resume | Meaning |\n|---|---|---|---|---|\n";
  for (const Key& key : keys()) {
    text += fmt::format("| `{}` | {} | {} | {} | {} |\n", key.path,
                        key.required() ? "required" : fmt::format("`{}`", cell(key.default_text)),
                        cell(legal_values(key)), name_of(key.resume), cell(key.help));
  }
  return text;
}

}  // namespace quintet::config
