// Text and figures as a page has them.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "report/page_text.h"

namespace saturate {
namespace {

TEST(PageText, HtmlIsEscaped) {
  EXPECT_EQ(escape_html("<b a='1' c=\"2\">&"), "&lt;b a=&#39;1&#39; c=&quot;2&quot;&gt;&amp;");
  EXPECT_EQ(escape_html("gr\xc3\xbcn"), "gr\xc3\xbcn");
  EXPECT_EQ(escape_html("a\xff\n\x7f"), "a\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd");
}

TEST(PageText, JsonCanStandInAScript) {
  const std::string hostile = "</script><!--&\xe2\x80\xa8\xe2\x80\xa9\xff";
  const std::string text = script_json({{"name", hostile}});
  for (const char c : text) EXPECT_TRUE(c >= ' ' && c < 0x7f) << text;
  EXPECT_EQ(text.find_first_of("<>&"), std::string::npos) << text;
  EXPECT_EQ(nlohmann::json::parse(text)["name"],
            "</script><!--&\xe2\x80\xa8\xe2\x80\xa9\xef\xbf\xbd");
}

TEST(PageText, TextPutIntoAPageIsNotLookedAtAgain) {
  EXPECT_EQ(fill_page("<{{a}}|{{b}}>", {{"a", "{{b}}"}, {"b", "2"}}), "<{{b}}|2>");
}

TEST(PageText, FiguresReadWell) {
  const std::string gap = "\u202f";
  EXPECT_EQ(percent_text(0.89694), "89.69" + gap + "%");
  EXPECT_EQ(percent_text(std::nullopt), "n/a");
  EXPECT_EQ(count_text(1234567), "1,234,567");
  EXPECT_EQ(count_text(999), "999");
  EXPECT_EQ(time_text(59.6), "1" + gap + "min 00" + gap + "s");
  EXPECT_EQ(time_text(3599.6), "1" + gap + "h 00" + gap + "min");
  EXPECT_EQ(rate_text(1234.6), "1,235" + gap + "images/s");
  EXPECT_EQ(memory_text(int64_t{3} << 29), "1.50" + gap + "GiB");
}

}  // namespace
}  // namespace saturate
