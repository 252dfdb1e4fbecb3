// Reads the values of an untrusted JSON object, which are empty if the key is missing or has
// another type; and writes values as JSON.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "saturate/data/pixel.h"
#include "saturate/ledger.h"

namespace saturate {

// Whether arrays and objects of a JSON text are nested deeper than that.
inline bool is_nested_deeper(std::string_view text, int depth) {
  bool is_quoted = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (is_quoted && c == '\\')
      ++i;  // and what follows
    else if (c == '"')
      is_quoted = !is_quoted;
    else if (!is_quoted && (c == '[' || c == '{') && --depth < 0)
      return true;
    else if (!is_quoted && (c == ']' || c == '}'))
      ++depth;
  }
  return false;
}

// Discarded if the text is not valid, or nested deeper than any file of a run: copying such a value
// and dump() are recursive, and would overflow the stack.
template <class Json = nlohmann::json>
Json parsed_json(const std::string& text) {
  constexpr int kMostNested = 64;
  if (is_nested_deeper(text, kMostNested)) return Json(Json::value_t::discarded);
  return Json::parse(text, nullptr, /*allow_exceptions=*/false);
}

// An integer for a square, else [height, width].
template <class Json>
void to_json(Json& value, const ImageSize& size) {
  if (size.is_square())
    value = size.height;
  else
    value = Json::array({size.height, size.width});
}
template <class Json>
void from_json(const Json& value, ImageSize& size) {
  if (value.is_array())
    size = {value.at(0).template get<int>(), value.at(1).template get<int>()};
  else
    size = value.template get<int>();
}

inline std::string text_at(const nlohmann::json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

inline std::optional<double> number_at(const nlohmann::json& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end() || !found->is_number()) return std::nullopt;
  return found->get<double>();
}

// Up to 2^53 in magnitude, so that sums and differences of a few do not overflow.
inline std::optional<int64_t> integer_at(const nlohmann::json& object, const char* key) {
  constexpr double kMost = 9007199254740992.0;
  const auto value = number_at(object, key);
  if (!value || !(*value >= -kMost && *value <= kMost)) return std::nullopt;
  return int64_t(*value);
}

// An empty array or object if there is none.
inline const nlohmann::json& array_at(const nlohmann::json& object, const char* key) {
  static const nlohmann::json kEmpty = nlohmann::json::array();
  const auto found = object.find(key);
  return found != object.end() && found->is_array() ? *found : kEmpty;
}
inline const nlohmann::json& object_at(const nlohmann::json& object, const char* key) {
  static const nlohmann::json kEmpty = nlohmann::json::object();
  const auto found = object.find(key);
  return found != object.end() && found->is_object() ? *found : kEmpty;
}

// Phases of a newer version count as kOther.
inline std::optional<PhaseTimes> phases_at(const nlohmann::json& object,
                                           const char* key = "phases") {
  const auto found = object.find(key);
  if (found == object.end() || !found->is_object()) return std::nullopt;
  const auto phase_of = [](const std::string& name) {
    for (int i = 0; i < kPhaseCount; ++i)
      if (phase_name(Phase(i)) == name) return size_t(i);
    return size_t(Phase::kOther);
  };
  PhaseTimes times;
  for (const auto& [name, seconds] : found->items())
    if (seconds.is_number()) times.seconds[phase_of(name)] += seconds.get<double>();
  return times;
}

template <class Value>
nlohmann::ordered_json or_null(const std::optional<Value>& value) {
  return value ? nlohmann::ordered_json(*value) : nlohmann::ordered_json();
}

inline nlohmann::ordered_json phases_json(const PhaseTimes& times) {
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  for (int i = 0; i < kPhaseCount; ++i) json[std::string(phase_name(Phase(i)))] = times[Phase(i)];
  return json;
}

// The text of a file. Names of classes and samples may not be UTF-8.
inline std::string json_text(const nlohmann::ordered_json& json, int indent = 2) {
  return json.dump(indent, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace saturate
