// A report's tables of settings: the recipe, and the machine.
#include <fmt/format.h>

#include <algorithm>

#include "report/page_text.h"
#include "report/report_parts.h"
#include "saturate/data/recipe.h"

namespace saturate {
namespace {

struct Column {
  std::string title;
  const NamedTexts* values;
};

const std::string* find(const NamedTexts& values, const std::string& key) {
  for (const auto& [name, value] : values)
    if (name == key) return &value;
  return nullptr;
}

// The keys of all columns: those of `order` first and in its order.
std::vector<std::string> keys_of(const std::vector<Column>& columns,
                                 std::vector<std::string> order) {
  std::vector<std::string> keys;
  for (const auto& column : columns)
    for (const auto& [name, value] : *column.values)
      if (std::find(order.begin(), order.end(), name) == order.end()) order.push_back(name);
  for (const auto& key : order)
    if (std::any_of(columns.begin(), columns.end(),
                    [&](const Column& column) { return find(*column.values, key); }))
      keys.push_back(key);
  return keys;
}

bool differs(const std::vector<Column>& columns, const std::string& key) {
  const std::string* first = find(*columns.front().values, key);
  return std::any_of(columns.begin(), columns.end(), [&](const Column& column) {
    const std::string* other = find(*column.values, key);
    return !first != !other || (first && *first != *other);
  });
}

// `title`: the column's, which a narrow page shows beside the value.
std::string cell(const std::string& title, const std::string* value) {
  const bool known = value && !value->empty();
  return fmt::format("<td class=\"{}\" data-of=\"{}\">{}</td>", known ? "data" : "soft",
                     escape_html(title),
                     known   ? escape_html(*value)
                     : value ? "empty"
                             : "not there");
}

// `mark`: tints rows that differ, and labels them.
std::string table(const char* label, const std::vector<Column>& columns,
                  const std::vector<std::string>& keys, bool mark) {
  std::string head = "<th scope=\"col\">Key</th>", body;
  for (const auto& column : columns)
    head += "<th scope=\"col\">" + escape_html(column.title) + "</th>";
  for (const auto& key : keys) {
    const bool marked = mark && differs(columns, key);
    body += marked ? "<tr class=\"differs\">" : "<tr>";
    body += "<th scope=\"row\" class=\"data\">" + escape_html(key) +
            (marked ? " <span title=\"differs\" aria-label=\"differs\">≠</span>" : "") + "</th>";
    for (const auto& column : columns) body += cell(column.title, find(*column.values, key));
    body += "</tr>\n";
  }
  return fmt::format(
             "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"{}\">\n<table "
             "class=\"keys\">"
             "<thead><tr>",
             label) +
         head + "</tr></thead><tbody>\n" + body + "</tbody></table></div>\n";
}

std::vector<std::string> only_different(const std::vector<Column>& columns,
                                        const std::vector<std::string>& keys) {
  std::vector<std::string> different;
  for (const auto& key : keys)
    if (differs(columns, key)) different.push_back(key);
  return different;
}

}  // namespace

std::string recipe_section(const std::vector<ShownRun>& runs) {
  std::vector<Column> columns;
  for (const auto& run : runs)
    if (!run.reading->recipe.empty()) columns.push_back({run.name, &run.reading->recipe});
  if (columns.empty()) return "";
  const bool single = runs.size() == 1;
  const NamedTexts defaults = flatten_recipe(to_toml(Recipe{}), "defaults");
  if (single) columns.push_back({"default", &defaults});

  std::vector<std::string> order;
  for (const auto& option : recipe_options()) order.push_back(option.key);
  const std::vector<std::string> keys = keys_of(columns, order);
  const std::vector<std::string> different = only_different(columns, keys);
  std::string html =
      fmt::format("<p>{} of {} keys differ{}.</p>\n", different.size(), keys.size(),
                  single ? " from their defaults, those counted that the run resolved itself" : "");
  if (!different.empty()) html += table("Keys that differ", columns, different, false);
  return html + fmt::format("<details><summary>All {} keys</summary>\n", keys.size()) +
         table("All keys of the recipe", columns, keys, true) + "</details>\n";
}

std::string host_section(const std::vector<ShownRun>& runs) {
  std::vector<Column> columns;
  for (const auto& run : runs)
    if (!run.reading->host.empty()) columns.push_back({run.name, &run.reading->host});
  if (columns.empty()) return "";
  return table("Hardware and versions", columns, keys_of(columns, {}), columns.size() > 1);
}

}  // namespace saturate
