// Escaping text for a page.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>

#include "report/report.h"

namespace saturate {
namespace {

TEST(PageText, JsonIsSafeInsideAScript) {
  const std::string hostile = "</script><!--&\xe2\x80\xa8\xe2\x80\xa9\xff";
  const std::string text = script_json({{"name", hostile}});
  for (const char c : text) EXPECT_TRUE(c >= ' ' && c < 0x7f) << text;
  EXPECT_EQ(text.find_first_of("<>&"), std::string::npos) << text;
  EXPECT_EQ(nlohmann::json::parse(text)["name"],
            "</script><!--&\xe2\x80\xa8\xe2\x80\xa9\xef\xbf\xbd");
}

TEST(PageText, InsertedTextIsNotExpandedAgain) {
  EXPECT_EQ(fill_page("<{{a}}|{{b}}>", {{"a", "{{b}}"}, {"b", "2"}}), "<{{b}}|2>");
}

TEST(PageText, NonFiniteNumbersAreNull) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  EXPECT_EQ(script_json({{"a", std::nan("")}, {"b", kInfinity}, {"c", 0.1}}),
            R"({"a":null,"b":null,"c":0.1})");
}

}  // namespace
}  // namespace saturate
