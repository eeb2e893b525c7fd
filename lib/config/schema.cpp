// The declarations as a JSON Schema, which editors read to complete and check config files.
#include <cmath>

#include <nlohmann/json.hpp>

#include "lib/base/error.h"
#include "lib/config/declaration.h"

namespace quintet::config {
namespace {

using Json = nlohmann::ordered_json;

Json of_type(const char* type) { return {{"type", type}}; }

void add_range(Json& schema, const Rule& rule) {
  if (std::isfinite(rule.minimum)) schema[rule.above_minimum ? "exclusiveMinimum" : "minimum"] = rule.minimum;
  if (std::isfinite(rule.maximum)) schema[rule.below_maximum ? "exclusiveMaximum" : "maximum"] = rule.maximum;
}

Json ranged(const char* type, const Rule& rule) {
  Json schema = of_type(type);
  add_range(schema, rule);
  return schema;
}

Json list_of(Json items) { return {{"type", "array"}, {"items", std::move(items)}}; }

Json any_of(std::initializer_list<Json> schemas) { return {{"anyOf", Json(schemas)}}; }

Json sources() {
  const Json entry = {{"type", "object"},
                      {"properties", {{"path", of_type("string")}, {"weight", ranged("number", at_least(0))}}},
                      {"required", {"path"}},
                      {"additionalProperties", false}};
  Json list = list_of(any_of({of_type("string"), entry}));
  list["minItems"] = 1;
  return any_of({of_type("string"), list});
}

Json enumeration(std::span<const std::string_view> choices) {
  Json names = Json::array();
  for (const std::string_view choice : choices) names.push_back(std::string(choice));
  return {{"enum", names}};
}

Json pair_of(Json items) {
  Json list = list_of(std::move(items));
  list["minItems"] = 2;
  list["maxItems"] = 2;
  return list;
}

Json axes() {
  Json list = list_of({{"enum", {"dp", "tp", "pp", "ep", "cp"}}});
  list["minItems"] = kAxisCount;
  list["maxItems"] = kAxisCount;
  list["uniqueItems"] = true;
  return list;
}

Json value_schema(const Key& key) {
  switch (key.kind) {
    case Kind::boolean: return of_type("boolean");
    case Kind::integer: return ranged("integer", key.rule);
    case Kind::number: return ranged("number", key.rule);
    case Kind::text: return of_type("string");
    case Kind::choice: return enumeration(key.choices);
    case Kind::integers: return list_of(ranged("integer", key.rule));
    case Kind::numbers: return pair_of(ranged("number", key.rule));
    case Kind::axes: return axes();
    case Kind::sources: return sources();
    case Kind::validation: return any_of({ranged("number", between(0, 1)), sources()});
  }
  return {};
}

// A literal default as JSON.
Json default_json(const Key& key) {
  if (key.default_text == "null") return nullptr;
  if (key.kind == Kind::text || key.kind == Kind::choice || key.default_text == key.rule.word) return key.default_text;
  if (key.kind == Kind::axes) {
    Json names = Json::array();
    for (const char* name : {"tp", "cp", "ep", "dp", "pp"}) names.push_back(name);
    return names;
  }
  return Json::parse(key.default_text);
}

Json key_schema(const Key& key) {
  Json schema = value_schema(key);
  if (key.rule.word == "null") {
    schema = any_of({schema, of_type("null")});
  } else if (!key.rule.word.empty()) {
    schema = any_of({schema, {{"const", std::string(key.rule.word)}}});
  }
  schema["description"] = key.derive ? key.help + "; default: " + key.default_text : key.help;
  if (!key.required() && !key.derive) schema["default"] = default_json(key);
  schema["x-resume"] = key.resume == ResumeClass::fixed ? "fixed" : key.resume == ResumeClass::noted ? "noted" : "free";
  return schema;
}

Json object(std::string_view description) {
  Json schema = of_type("object");
  if (!description.empty()) schema["description"] = std::string(description);
  schema["properties"] = Json::object();
  schema["additionalProperties"] = false;
  return schema;
}

// The properties of the section at `path`; "" is the whole.
Json section_schema(std::string_view path, std::string_view description) {
  Json schema = object(description);
  for (const Section& section : sections()) {
    if (section_part(section.path) != path) continue;
    Json inner = section_schema(section.path, section.help);
    if (section.optional()) inner["type"] = {"object", "null"};
    schema["properties"][std::string(name_part(section.path))] = std::move(inner);
  }
  Json required = Json::array();
  for (const Key& key : keys()) {
    if (section_part(key.path) != path) continue;
    schema["properties"][std::string(name_part(key.path))] = key_schema(key);
    // An included file or an override may give what this file leaves out, but in a section that is whole or absent.
    const Section* section = optional_section_of(key);
    if (key.required() && section != nullptr) required.push_back(std::string(name_part(key.path)));
  }
  if (!required.empty()) schema["required"] = required;
  return schema;
}

}  // namespace

std::string schema_json() {
  Json schema = {{"$schema", "https://json-schema.org/draft/2020-12/schema"}, {"title", "Quintet config"}};
  schema.update(section_schema("", ""));
  Json include = list_of(of_type("string"));
  include["description"] = "files that are read first; later ones win, and this one wins over all";
  schema["properties"]["include"] = include;
  return schema.dump(2) + "\n";
}

}  // namespace quintet::config
