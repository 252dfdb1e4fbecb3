#include "data/csv_format.h"

#include <algorithm>

#include "base/text.h"
#include "saturate/data/error.h"

namespace saturate {

std::string csv_field(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char c : text) quoted += c == '"' ? std::string("\"\"") : std::string(1, c);
  return quoted + '"';
}

namespace {

// LF, CRLF and CR.
size_t line_ends_in(std::string_view text) {
  size_t count = 0;
  for (size_t i = 0; i < text.size(); ++i)
    count += size_t(text[i] == '\r' || (text[i] == '\n' && (i == 0 || text[i - 1] != '\r')));
  return count;
}

}  // namespace

CsvReader::CsvReader(std::string_view text, const std::string& path) : left_(text), path_(path) {
  if (left_.starts_with("\xef\xbb\xbf")) left_.remove_prefix(3);
  const std::string_view first = left_.substr(0, left_.find_first_of("\r\n"));
  const auto count = [&](char mark) {
    bool quoted = false;
    return std::ranges::count_if(first, [&](char c) {
      quoted ^= c == '"';
      return c == mark && !quoted;
    });
  };
  for (const char mark : {';', '\t'})
    if (count(mark) > count(separator_)) separator_ = mark;
}

std::string CsvReader::where() const {
  return path_ + ":" + std::to_string(read_line_);
}

// LF, CRLF or CR.
bool CsvReader::skip_line_end() {
  if (left_.empty() || (left_.front() != '\n' && left_.front() != '\r')) return false;
  left_.remove_prefix(left_.starts_with("\r\n") ? 2 : 1);
  ++line_;
  return true;
}

void CsvReader::read_quoted(std::string& cell) {
  left_.remove_prefix(1);
  for (;;) {
    const size_t end = left_.find('"');
    if (end == std::string_view::npos)
      fail(ErrorKind::kData, "a quoted cell does not end", where(), "Close it with \"");
    line_ += line_ends_in(left_.substr(0, end));
    cell += left_.substr(0, end);
    left_.remove_prefix(end + 1);
    if (!left_.starts_with('"')) break;
    cell += '"';
    left_.remove_prefix(1);
  }
}

void CsvReader::read_cell(std::string& cell) {
  cell.clear();
  size_t spaces = 0;
  while (spaces < left_.size() && left_[spaces] == ' ') ++spaces;
  const bool quoted = spaces < left_.size() && left_[spaces] == '"';
  if (quoted) {
    left_.remove_prefix(spaces);
    read_quoted(cell);
  }
  const char ends[] = {separator_, '\r', '\n', '\0'};
  std::string_view rest = left_.substr(0, left_.find_first_of(std::string_view(ends, 3)));
  left_.remove_prefix(rest.size());
  rest = trimmed(rest, " \t");
  if (!quoted)
    cell = rest;
  else if (!rest.empty())
    fail(ErrorKind::kData, "a cell continues after its closing quote", where(),
         "Write quotes inside a cell twice");
}

bool CsvReader::next(std::vector<std::string>& cells) {
  while (skip_line_end()) {
  }
  if (left_.empty()) return false;
  read_line_ = line_;
  size_t count = 0;
  for (bool more = true; more; ++count) {
    if (count == cells.size()) cells.emplace_back();
    read_cell(cells[count]);
    more = left_.starts_with(separator_);
    if (more) left_.remove_prefix(1);
  }
  skip_line_end();
  cells.resize(count);
  if (columns_ == 0) columns_ = count;
  if (count != columns_)
    fail(ErrorKind::kData,
         "the line has " + std::to_string(count) + " cells, and the first has " +
             std::to_string(columns_),
         where(), "Correct it; cells that contain the separator need quotes");
  return true;
}

}  // namespace saturate
