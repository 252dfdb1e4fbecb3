// Tables as text (RFC 4180).
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace saturate {

// A cell of a table whose separator is the comma, in quotes if it needs them.
std::string csv_field(const std::string& text);

// Reads the lines of a table. A cell in double quotes may hold separators, line ends and, doubled,
// quotes; spaces around other cells do not count. Empty lines are skipped, as is a byte order mark.
class CsvReader {
 public:
  // The separator is the comma, semicolon or tab that is the most frequent in the first line.
  // `path` is for messages. Both must outlive this.
  CsvReader(std::string_view text, const std::string& path);

  // The next line's cells; false at the end. Fails with kData naming the line: quotes that do not
  // match, or another number of cells than in the first line.
  bool next(std::vector<std::string>& cells);

  // "PATH:LINE" of the line last read.
  std::string where() const;

 private:
  bool skip_line_end();
  void read_cell(std::string& cell);
  void read_quoted(std::string& cell);

  std::string_view left_;
  const std::string& path_;
  char separator_ = ',';
  size_t line_ = 1, read_line_ = 0;  // the next, and the last returned, from 1
  size_t columns_ = 0;               // 0 before the first line
};

}  // namespace saturate
