#include "store/xml.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/text.h"
#include "saturate/data/error.h"

namespace saturate {
namespace {

constexpr size_t kMostDepth = 8, kMostName = 64;

constexpr std::array<std::pair<std::string_view, char>, 5> kEntities = {
    {{"amp", '&'}, {"lt", '<'}, {"gt", '>'}, {"quot", '"'}, {"apos", '\''}}};

bool is_space(char c) {
  return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

bool is_name(char c) {
  return is_letter_or_digit(c) || c == '_' || c == '-' || c == '.' || c == ':';
}

void append_utf8(uint32_t code, std::string& out) {
  if (code < 0x80) {
    out += char(code);
    return;
  }
  const int more = code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
  constexpr uint32_t kFirst[] = {0, 0xc0, 0xe0, 0xf0};
  out += char(kFirst[more] | code >> (6 * more));
  for (int i = more - 1; i >= 0; --i) out += char(0x80 | (code >> (6 * i) & 0x3f));
}

class XmlParser {
 public:
  using Text = std::function<void(std::string_view, std::string&)>;
  XmlParser(std::string_view xml, const std::string& where, const Text& text)
      : xml_(xml), where_(where), text_(text) {}

  void parse() {
    skip_space();  // of a store that keeps the connection while it works
    if (xml_.substr(at_).starts_with("<?xml")) {
      const size_t end = xml_.find("?>", at_);
      if (end == std::string_view::npos || end - at_ > 200) refuse();
      at_ = end + 2;
    }
    skip_space();
    open();
    while (!values_.empty()) {
      if (at_ >= xml_.size()) refuse();
      if (xml_[at_] != '<')
        take_text();
      else if (xml_.substr(at_, 2) == "</")
        close();
      else
        open();
    }
    skip_space();
    if (at_ != xml_.size()) refuse();
  }

 private:
  [[noreturn]] void refuse() const {
    fail(ErrorKind::kRun,
         "the reply's XML is malformed or truncated at byte " + std::to_string(at_), where_,
         "Check the endpoint: it must be that of an S3 service");
  }

  void skip_space() {
    while (at_ < xml_.size() && is_space(xml_[at_])) ++at_;
  }

  void expect(char c) {
    if (at_ >= xml_.size() || xml_[at_] != c) refuse();
    ++at_;
  }

  std::string_view take_name() {
    const size_t begin = at_;
    while (at_ < xml_.size() && is_name(xml_[at_])) ++at_;
    if (at_ == begin || at_ - begin > kMostName) refuse();
    return xml_.substr(begin, at_ - begin);
  }

  void open() {
    expect('<');
    const std::string_view name = take_name();
    if (values_.size() == kMostDepth) refuse();
    lengths_.push_back(path_.size());
    if (!path_.empty()) path_ += '/';
    path_ += name;
    values_.emplace_back();
    for (skip_space(); at_ < xml_.size() && is_name(xml_[at_]); skip_space()) skip_attribute();
    const bool is_empty = at_ < xml_.size() && xml_[at_] == '/';
    if (is_empty) ++at_;
    expect('>');
    if (is_empty) end_element();
  }

  void skip_attribute() {
    take_name();
    expect('=');
    if (at_ >= xml_.size() || (xml_[at_] != '"' && xml_[at_] != '\'')) refuse();
    const size_t end = xml_.find(xml_[at_], at_ + 1);
    if (end == std::string_view::npos) refuse();
    at_ = end + 1;
  }

  void close() {
    at_ += 2;
    const std::string_view name = take_name();
    const size_t before = lengths_.back();
    if (std::string_view(path_).substr(before == 0 ? 0 : before + 1) != name) refuse();
    skip_space();
    expect('>');
    end_element();
  }

  void end_element() {
    text_(path_, values_.back());
    path_.resize(lengths_.back());
    lengths_.pop_back();
    values_.pop_back();
  }

  void take_text() {
    if (values_.empty()) refuse();
    std::string& value = values_.back();
    while (at_ < xml_.size() && xml_[at_] != '<') {
      if (xml_[at_] == '&')
        take_reference(value);
      else
        value += xml_[at_++];
    }
  }

  void take_reference(std::string& value) {
    const size_t end = xml_.find(';', at_);
    if (end == std::string_view::npos || end - at_ > 10) refuse();
    std::string_view name = xml_.substr(at_ + 1, end - at_ - 1);
    if (!name.starts_with('#')) {
      const auto found =
          std::ranges::find(kEntities, name, &decltype(kEntities)::value_type::first);
      if (found == kEntities.end()) refuse();
      value += found->second;
    } else {
      name.remove_prefix(1);
      const int base = name.starts_with('x') ? 16 : 10;
      if (base == 16) name.remove_prefix(1);
      const uint32_t code = parsed_number<uint32_t>(name, base).value_or(0);
      const bool is_surrogate = code >= 0xd800 && code < 0xe000;
      if (code == 0 || code > 0x10ffff || is_surrogate) refuse();
      append_utf8(code, value);
    }
    at_ = end + 1;
  }

  const std::string_view xml_;
  const std::string& where_;
  const Text& text_;
  size_t at_ = 0;
  std::string path_;
  std::vector<size_t> lengths_;      // of path_ before each open element
  std::vector<std::string> values_;  // of the open elements
};

}  // namespace

void read_xml(std::string_view xml, const std::string& where,
              const std::function<void(std::string_view path, std::string& value)>& text) {
  XmlParser(xml, where, text).parse();
}

std::string xml_value(std::string_view xml, const std::string& path, const std::string& where) {
  std::string found;
  read_xml(xml, where, [&](std::string_view at, std::string& value) {
    if (at.substr(at.find('/') + 1) == path) found = std::move(value);
  });
  return found;
}

std::string xml_escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    const auto found = std::ranges::find(kEntities, c, &decltype(kEntities)::value_type::second);
    if (found == kEntities.end())
      out += c;
    else
      out.append("&").append(found->first).append(";");
  }
  return out;
}

}  // namespace saturate
