// csv:FILE[,target=COLUMN][,ignore=A+B][,fit=FILE][,held=N][,classes=true]: the rows of a table.
// Columns are numbers or categories, as the training part has them: the file, without every N-th
// row (held), or another file (fit). That part's means, deviations and categories apply.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <set>
#include <utility>

#include "base/files.h"
#include "data/csv_format.h"
#include "data/path_list.h"
#include "data/sources.h"
#include "saturate/data/error.h"

namespace saturate {
namespace {

constexpr size_t kMaxCategories = 1000;  // of a column that is not the target
constexpr size_t kMaxTargetClasses = size_t{1} << 16;

struct CsvOptions {
  std::string target;  // empty: the last column
  std::vector<std::string> ignored;
  size_t held = 0;       // the training part is without every N-th row; 0: all
  bool classes = false;  // the target's numbers are classes
};

// A column as the training part has it.
struct TableColumn {
  std::string name;
  bool is_target = false, is_ignored = false;
  bool is_number = true;                // so far, while reading
  std::vector<std::string> categories;  // in the order of before(); not of numbers
  double mean = 0, deviation = 1;       // of numbers
  // While reading: the distinct texts, up to a limit, and sums over numbers (Welford).
  std::set<std::string> seen = {};
  double count = 0, squares = 0;
  std::string not_finite = {};  // where such a number is

  size_t most_categories() const { return is_target ? kMaxTargetClasses : kMaxCategories; }

  // Values of a sample that are computed from the column.
  size_t width() const { return is_target || is_ignored ? 0 : is_number ? 1 : categories.size(); }
};

// pandas' words for it.
bool is_missing(std::string_view cell) {
  for (const char* word : {"", "NA", "N/A", "n/a", "NaN", "nan", "NULL", "null", "None", "?"})
    if (cell == word) return true;
  return false;
}

std::optional<double> number_in(std::string_view cell) {
  if (cell.starts_with('+')) cell.remove_prefix(1);
  double value = 0;
  const auto [end, error] = std::from_chars(cell.data(), cell.data() + cell.size(), value);
  if (error == std::errc::result_out_of_range)  // infinity, or about zero
    value = std::strtod(std::string(cell).c_str(), nullptr);
  if (error == std::errc::invalid_argument || end != cell.data() + cell.size()) return {};
  return value;
}

// The order of categories: numbers by value, then texts bytewise, and so what reads as NaN.
bool before(const std::string& a, const std::string& b) {
  auto first = number_in(a), second = number_in(b);
  for (auto* number : {&first, &second})
    if (*number && std::isnan(**number)) number->reset();
  if (first && second && *first != *second) return *first < *second;
  return first.has_value() == second.has_value() ? a < b : first.has_value();
}

// Whether all of them would be numbers with points for their commas.
bool are_numbers_with_commas(const std::set<std::string>& cells) {
  size_t commas = 0;
  for (std::string cell : cells) {
    commas += size_t(std::ranges::count(cell, ','));
    std::ranges::replace(cell, ',', '.');
    if (!number_in(cell)) return false;
  }
  return commas > 0;
}

std::string read_text(Env& env, const std::string& path) {
  std::string text = text_of_file(env, path);
  if (text.starts_with("\x1f\x8b") || text.starts_with("PK\x03\x04"))
    fail(ErrorKind::kData, "the table is compressed, or a spreadsheet", path,
         "Decompress it, or save it as CSV");
  if (text.starts_with("\xff\xfe") || text.starts_with("\xfe\xff"))
    fail(ErrorKind::kData, "the table is UTF-16", path, "Save it as UTF-8");
  if (text.find('\0') != text.npos)
    fail(ErrorKind::kData, "the table has NUL bytes", path, "Give a table in UTF-8");
  return text;
}

class CsvTable {
 public:
  CsvTable(std::string_view text, const std::string& path) : reader_(text, path) {
    if (!reader_.next(names_)) fail(ErrorKind::kData, "the table is empty", path, "Give another");
    const auto is_number = [](const std::string& cell) { return number_in(cell).has_value(); };
    const bool is_row = std::ranges::any_of(names_, is_number) &&
                        std::ranges::all_of(names_, [&](const std::string& cell) {
                          return is_missing(cell) || is_number(cell);
                        });
    if (!is_row) return;
    pending_ = names_;
    for (size_t i = 0; i < names_.size(); ++i) names_[i] = std::to_string(i);
  }

  // As in the first line; numbered from 0 if that holds only numbers and missing cells.
  const std::vector<std::string>& names() const { return names_; }
  bool next(std::vector<std::string>& cells) {
    if (pending_.empty()) return reader_.next(cells);
    cells = std::exchange(pending_, {});
    return true;
  }
  std::string where() const { return reader_.where(); }

 private:
  CsvReader reader_;
  std::vector<std::string> names_, pending_;
};

size_t column_named(const std::vector<std::string>& names, const std::string& name,
                    const std::string& path) {
  for (size_t i = 0; i < names.size(); ++i)
    if (names[i] == name) return i;
  fail(ErrorKind::kUsage, "there is no column \"" + name + "\"", path, suggest(name, names));
}

std::vector<TableColumn> named_columns(const std::vector<std::string>& names,
                                       const CsvOptions& options, const std::string& path) {
  std::vector<TableColumn> columns(names.size());
  for (size_t i = 0; i < names.size(); ++i) columns[i].name = names[i];
  if (std::set(names.begin(), names.end()).size() != names.size())
    fail(ErrorKind::kData, "two columns have the same name", path, "Rename one of them");
  for (const std::string& name : options.ignored)
    columns[column_named(names, name, path)].is_ignored = true;
  TableColumn& target =
      options.target.empty() ? columns.back() : columns[column_named(names, options.target, path)];
  if (target.is_ignored)
    fail(ErrorKind::kUsage, "column \"" + target.name + "\" is the target, and ignored", path,
         "Name the target with target=COLUMN");
  target.is_target = true;
  target.is_number = !options.classes;
  return columns;
}

void add_cell(TableColumn& column, const std::string& cell, const CsvTable& table) {
  if (is_missing(cell)) return;
  if (column.seen.size() <= column.most_categories()) column.seen.insert(cell);
  const auto value = column.is_number ? number_in(cell) : std::nullopt;
  column.is_number = value.has_value();
  if (!value) return;
  if (!std::isfinite(*value)) {
    if (column.not_finite.empty()) column.not_finite = table.where();
    return;
  }
  const double before = *value - column.mean;
  column.mean += before / ++column.count;
  column.squares += before * (*value - column.mean);
}

void finish(TableColumn& column, const std::string& path) {
  if (column.is_ignored) return;
  if (column.seen.empty())
    fail(ErrorKind::kData, "column \"" + column.name + "\" has no values in the training part",
         path,
         column.name.empty() ? "Remove the separator at the end of each line, or name the column"
                             : "Remove it with ignore=" + column.name);
  if (!column.is_number && are_numbers_with_commas(column.seen))
    fail(
        ErrorKind::kData, "column \"" + column.name + "\" has numbers with commas", path,
        "Write 1.5, not 1,5, and 1000, not 1,000; or remove the column with ignore=" + column.name);
  if (column.is_number && !column.not_finite.empty())
    fail(ErrorKind::kData, "column \"" + column.name + "\" has a number that is not finite",
         column.not_finite, "Correct it, or leave the cell empty");
  if (column.is_number) {
    // The population's, as scikit-learn's StandardScaler; that of a constant column is 1.
    const double variance = column.squares / column.count;
    column.deviation = variance > 0 ? std::sqrt(variance) : 1;
  } else if (column.seen.size() > column.most_categories()) {
    fail(ErrorKind::kData,
         "column \"" + column.name + "\" has texts, more than " +
             std::to_string(column.most_categories()) + " different ones",
         path, "Correct cells that should be numbers, or remove it with ignore=" + column.name);
  } else {
    column.mean = 0;
    column.categories.assign(column.seen.begin(), column.seen.end());
    std::ranges::sort(column.categories, before);
  }
  column.seen.clear();
}

std::vector<TableColumn> fit_columns(std::string_view text, const std::string& path,
                                     const CsvOptions& options) {
  CsvTable table(text, path);
  std::vector<TableColumn> columns = named_columns(table.names(), options, path);
  std::vector<std::string> cells;
  size_t row = 0;
  for (; table.next(cells); ++row) {
    if (options.held > 0 && row % options.held == options.held / 2) continue;
    for (size_t i = 0; i < columns.size(); ++i)
      if (!columns[i].is_ignored) add_cell(columns[i], cells[i], table);
  }
  if (row == 0) fail(ErrorKind::kData, "the table has no rows", path, "Add rows below its names");
  for (TableColumn& column : columns) finish(column, path);
  return columns;
}

// A number normalised, or the index of a category; NaN if it is missing or not known.
float coded(const TableColumn& column, const std::string& cell, const CsvTable& table) {
  if (column.is_ignored || is_missing(cell)) return std::nanf("");
  if (column.is_number) {
    const auto value = number_in(cell);
    if (!value || !std::isfinite(*value))
      fail(ErrorKind::kData,
           "column \"" + column.name + "\" is of numbers, and the cell is \"" + cell + "\"",
           table.where(), "Correct it, or leave the cell empty");
    return float(column.is_target ? *value : (*value - column.mean) / column.deviation);
  }
  const auto found = std::ranges::lower_bound(column.categories, cell, before);
  const bool known = found != column.categories.end() && *found == cell;
  return known ? float(found - column.categories.begin()) : std::nanf("");
}

class CsvSource : public IndexedSource {
 public:
  CsvSource(std::string path, std::vector<TableColumn> columns, std::string_view text)
      : path_(std::move(path)), columns_(std::move(columns)) {
    CsvTable table(text, path_);
    std::vector<std::string> names;
    for (size_t i = 0; i < columns_.size(); ++i) {
      names.push_back(columns_[i].name);
      width_ += columns_[i].width();
      if (columns_[i].is_target) target_ = i;
    }
    if (table.names() != names)
      fail(ErrorKind::kData, "the table has other columns than the training part", path_,
           "Give both the same columns in the same order");
    if (width_ == 0)
      fail(ErrorKind::kData, "the table has no column but the target", path_, "Add a column");
    std::vector<std::string> cells;
    while (table.next(cells))
      for (size_t i = 0; i < columns_.size(); ++i)
        cells_.push_back(coded(columns_[i], cells[i], table));
    if (cells_.empty()) fail(ErrorKind::kData, "the table has no rows", path_, "Give another");
    const TableColumn& target = columns_[target_];
    fields_ = {{"x", ElementType::kFloat32, {int64_t(width_)}},
               {"y",
                target.is_number ? ElementType::kFloat32 : ElementType::kInt64,
                {},
                true,
                int64_t(target.categories.size())}};
  }

  size_t size() const override { return cells_.size() / columns_.size(); }
  const std::vector<std::string>& classes() const override { return columns_[target_].categories; }
  const std::vector<TensorField>& tensors() const override { return fields_; }
  uint64_t bytes(size_t) const override { return bytes_of(std::span(fields_)); }
  // How each value of x is computed.
  std::string note() const override {
    std::string text;
    for (const TableColumn& column : columns_) {
      if (column.width() == 0) continue;
      text += text.empty() ? "x is " : ", ";
      if (column.is_number)
        text += fmt::format("({} - {}) / {}", column.name, column.mean, column.deviation);
      for (size_t i = 0; i < column.categories.size(); ++i)
        text += fmt::format("{}{} = {}", i > 0 ? ", " : "", column.name, column.categories[i]);
    }
    return text;
  }
  int64_t label(size_t index) const override {
    const float value = cells_[index * columns_.size() + target_];
    return columns_[target_].is_number ? 0 : std::isnan(value) ? -1 : int64_t(value);
  }

  void read(size_t index, Sample& out) const override {
    out.name.assign(path_).append(": row ").append(std::to_string(index));
    out.encoding = SampleEncoding::kTensors;
    out.bytes.assign(size_t(bytes(index)), std::byte{0});
    std::byte* to = out.bytes.data();
    const float* const row = cells_.data() + index * columns_.size();
    if (std::isnan(row[target_]))
      fail(
          ErrorKind::kData, "the target is missing, or a class that the training part has not",
          out.name,
          "Correct it, or skip such rows with data.on_error=skip, in data pack with --skip-broken");
    for (size_t i = 0; i < columns_.size(); ++i) {
      const TableColumn& column = columns_[i];
      const float set = column.is_number ? row[i] : 1;
      if (column.width() > 0 && !std::isnan(row[i]))
        std::memcpy(to + (column.is_number ? 0 : size_t(row[i])) * sizeof set, &set, sizeof set);
      to += column.width() * sizeof set;
    }
    out.label = label(index);
    if (columns_[target_].is_number)
      std::memcpy(to, &row[target_], sizeof(float));
    else
      std::memcpy(to, &out.label, sizeof out.label);
  }

 private:
  const std::string path_;
  const std::vector<TableColumn> columns_;
  size_t target_ = 0;         // its column
  size_t width_ = 0;          // values of a sample's x
  std::vector<float> cells_;  // [rows, columns], as of coded()
  std::vector<TensorField> fields_;
};

CsvOptions take_csv_options(std::string& rest, std::string& fit) {
  CsvOptions options;
  options.target = take_option(rest, "target");
  fit = take_option(rest, "fit");
  options.ignored = take_names(rest, "ignore");
  options.held =
      take_number(rest, "held", 2, kAnyNumber, "Write held=5 if every fifth row is held out")
          .value_or(0);
  options.classes = take_word(rest, "classes", "true", "false") == "true";
  return options;
}

struct TableName {
  std::string rest;   // as for open_csv()
  std::string every;  // N of split:PART,1/N,SOURCE; empty without
};

// The source within splits, and the N of the innermost, which decides, as when it is opened.
TableName without_splits(const std::string& uri) {
  TableName table{uri, ""};
  while (table.rest.starts_with("split:")) {
    const std::string whole = table.rest;
    const size_t share = whole.find(",1/"), end = whole.find(',', share + 1);
    if (share == whole.npos || end == whole.npos) break;
    table = {whole.substr(end + 1), whole.substr(share + 3, end - share - 3)};
  }
  return table;
}

// The table that a source reads, also through a split.
std::optional<TableName> table_of(Env& env, const std::string& uri) {
  TableName table = without_splits(uri);
  const auto has = [&](const char* text) { return table.rest.find(text) != uri.npos; };
  if (!(has("csv") || has(".tsv")) || scheme_of_source(env, table.rest) != "csv") return {};
  if (table.rest.starts_with("csv:")) table.rest.erase(0, 4);
  return table;
}

}  // namespace

std::string with_training_fit(Env& env, const std::string& uri, const std::string& training) {
  const auto table = table_of(env, uri), trained = table_of(env, training);
  if (!table || (trained && table->rest == trained->rest && table->every == trained->every))
    return uri;
  const auto has = [&](const std::string& key) {
    return table->rest.find("," + key + "=") != uri.npos;
  };
  if (has("fit") || has("held")) return uri;
  if (!trained && training.find("shard") != training.npos &&
      scheme_of_source(env, without_splits(training).rest) == "shard")
    fail(ErrorKind::kUsage,
         "the training data are packed, and do not say how a table is normalised", uri,
         "Name the table that was packed: csv:FILE,fit=TRAINING_FILE");
  if (!trained) return uri;
  std::string path = trained->rest, options;
  for (const std::string key : {"target", "ignore", "classes"}) {
    const std::string value = take_option(path, key);
    if (!value.empty() && !has(key)) options += "," + key + "=" + value;
  }
  const std::string fit = take_option(path, "fit"), held = take_option(path, "held");
  const std::string& file = fit.empty() ? path : fit;
  if (!env.exists(file))
    fail(ErrorKind::kData, "the training table, whose statistics apply to " + uri + ", is missing",
         file, "Put it there, or name it: csv:FILE,fit=TRAINING_FILE");
  options += ",fit=" + file;
  if (!held.empty() || (fit.empty() && !trained->every.empty()))
    options += ",held=" + (held.empty() ? trained->every : held);
  return uri + options;
}

std::unique_ptr<Dataset> open_csv(Env& env, const std::string& rest) {
  std::string path = rest, fit;
  const CsvOptions options = take_csv_options(path, fit);
  const std::string text = read_text(env, path);
  std::vector<TableColumn> columns = fit.empty() ? fit_columns(text, path, options)
                                                 : fit_columns(read_text(env, fit), fit, options);
  return std::make_unique<CsvSource>(std::move(path), std::move(columns), text);
}

}  // namespace saturate
