// Text from data that is printed on a terminal, or given to a shell.
#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <string>
#include <utility>

#include "base/printable.h"

namespace saturate {
namespace {

TEST(TerminalText, TerminalControlsAreEscapedByteByByte) {
  EXPECT_EQ(printable("cat\x9b"
                      "2J"),
            "cat\\x9b"
            "2J")
      << "an 8-bit terminal's CSI";
  EXPECT_EQ(printable("\x85\x90\x9d"), "\\x85\\x90\\x9d");
  EXPECT_EQ(printable_lines("a\tb\n\x1b[2J\u0085\x9b"), "a\tb\n\\x1b[2J\\xc2\\x85\\x9b");
  EXPECT_EQ(printable("a\u202eb\u2066c\u2069"), "a\\xe2\\x80\\xaeb\\xe2\\x81\\xa6c\\xe2\\x81\\xa9");
  EXPECT_EQ(printable("\u200e\u200f\u061c\u2028"),
            "\\xe2\\x80\\x8e\\xe2\\x80\\x8f\\xd8\\x9c\\xe2\\x80\\xa8");
}

// U+96DB is e9 9b 9b.
TEST(TerminalText, QueriesOfUrlsAreNotShown) {
  EXPECT_EQ(printable("no https://h/a?sig=x (tar:http://h:1/b?y,http://c?z). Why?"),
            "no https://h/a (tar:http://h:1/b,http://c). Why?");
  EXPECT_EQ(printable("s3://b/a?x file?y"), "s3://b/a?x file?y");
  EXPECT_EQ(without_queries("source = \"tar:https://h/a?sig=x\"\nb = 1\n"),
            "source = \"tar:https://h/a\"\nb = 1\n");
  EXPECT_EQ(shell_word("http://h/a?b=1"), "'http://h/a?b=1'") << "is to be run";
  EXPECT_EQ(printable("data tar:https://h/a?x: 100 images; https://h/b?y; more"),
            "data tar:https://h/a: 100 images; https://h/b; more");
  EXPECT_EQ(printable("npy:https://h/a?x,target=y,/b&c"), "npy:https://h/a,target=y")
      << "commas may be part of a query";
}

TEST(TerminalText, SignaturesAndUserInformationAreNotShown) {
  for (const auto& [text, shown] : std::initializer_list<std::pair<const char*, const char*>>{
           {"s3://b/a?X-Amz-Date=1&X-Amz-Signature=x (s3://b/c?sig=x)", "s3://b/a (s3://b/c)"},
           {"htp:/h/a?Signature=x", "htp:/h/a"},
           {"https://h/a?Policy=x,y&Signature=z,s3://b/c", "https://h/a,s3://b/c"},
           {"https://h/a?x=1,sig=z", "https://h/a"},
           {"s3://KEY:SEC/RET@b/a", "s3://b/a"},
           {"s3://KEY:SEC/RET", "s3://KEY"},
           {"(http://user:password@h:80/a)", "(http://h:80/a)"},
           {"http://user:pass?word@h", "http://h"},
           {"tcp://[::1]:80 http://h:80/a@b s3://b/a@b:c a?b&c", nullptr},
           {",a, http://h/,,b", nullptr}})
    EXPECT_EQ(printable(text), shown ? shown : text);
}

TEST(TerminalText, AContinuationByteIsNotAControl) {
  const std::string text = "\u96db caf\u00e9 \U0001f6d1 \xe0\xa4\xb9";
  EXPECT_EQ(printable(text), text);
  EXPECT_EQ(printable("\xe9\x9b"), "\xe9\\x9b") << "truncated";
  EXPECT_EQ(printable("\xe9\x9bx"), "\xe9\\x9bx");
  EXPECT_EQ(printable("\xc1\x9b"), "\xc1\\x9b") << "an overlong encoding";
  EXPECT_EQ(printable("\xe0\x82\x9b"), "\xe0\\x82\\x9b");
  EXPECT_EQ(printable("\xf8\x9b\x9b\x9b\x9b"), "\xf8\\x9b\\x9b\\x9b\\x9b") << "not UTF-8";
}

TEST(TerminalText, UnfinishedCharactersAreHeldBack) {
  for (const std::string whole : {"", "a", "caf\u00e9", "\u96db", "\U0001f6d1"}) {
    EXPECT_EQ(whole_characters(whole), whole.size());
    EXPECT_EQ(whole_characters(whole + "\xc3"), whole.size());
    EXPECT_EQ(whole_characters(whole + "\xe9\x9b"), whole.size());
    EXPECT_EQ(whole_characters(whole + "\xf0\x9f\x9b"), whole.size());
    EXPECT_EQ(whole_characters(whole + "\xc3\xc3"), whole.size() + 1) << "never a character";
    EXPECT_EQ(whole_characters(whole + "\x9b\x9b\x9b\x9b"), whole.size() + 4);
    EXPECT_EQ(whole_characters(whole + "\xff"), whole.size() + 1);
  }
}

// The word as bash reads it.
std::string read_by_bash(const std::string& word) {
  const std::string script =
      "bash -c \"$(cat <<'END_OF_SCRIPT'\nprintf %s " + word + "\nEND_OF_SCRIPT\n)\"";
  std::FILE* const pipe = popen(script.c_str(), "r");
  std::array<char, 256> bytes{};
  const size_t size = std::fread(bytes.data(), 1, bytes.size(), pipe);
  pclose(pipe);
  return {bytes.data(), size};
}

TEST(ShellWord, PlainPathsAreUnchanged) {
  for (const char* plain : {"runs/demo-1", "folder:photos/train", "/tmp/a_b.c,d=e:f@g+h%i"})
    EXPECT_EQ(shell_word(plain), plain);
  EXPECT_EQ(shell_word(""), "''");
  EXPECT_EQ(shell_word("my photos"), "'my photos'");
  EXPECT_EQ(shell_word("it's"), "'it'\\''s'");
}

TEST(ShellWord, BashReadsBackAQuotedWord) {
  for (const std::string text :
       {"x;$(touch pwned)", "`id`", "a'b\"c", "$HOME", "-rf", "*", "~", "a\\b", "two\nlines",
        "\x9b\x31m", "\u202egpj", "tab\there", "it's \x1b[2J", "{1..3}", "a&b|c>d", "!x", "#x"}) {
    const std::string word = shell_word(text);
    EXPECT_EQ(read_by_bash(word), text) << word;
    EXPECT_EQ(printable(word), word) << "safe on the terminal too";
  }
}

}  // namespace
}  // namespace saturate
