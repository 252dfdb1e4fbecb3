#include "saturate/data/error.h"

#include <utility>

#include "base/printable.h"

namespace saturate {
namespace {

std::string message(const std::string& what, const std::string& where, const std::string& remedy) {
  std::string text = what;
  if (!where.empty()) text += " (" + where + ")";
  if (!remedy.empty()) text += ". " + remedy;
  return printable(text);  // one line, even if a file name contains line breaks
}

}  // namespace

Error::Error(ErrorKind kind, std::string what, std::string where, std::string remedy,
             std::source_location thrown_at)
    : std::runtime_error(message(what, where, remedy)),
      kind_(kind),
      reason_(std::move(what)),
      where_(std::move(where)),
      remedy_(std::move(remedy)),
      thrown_at_(thrown_at) {}

void fail(ErrorKind kind, std::string what, std::string where, std::string remedy,
          std::source_location thrown_at) {
  throw Error(kind, std::move(what), std::move(where), std::move(remedy), thrown_at);
}

}  // namespace saturate
