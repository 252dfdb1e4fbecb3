// The parsers of stores' replies, and SHA-256.
#include <gtest/gtest.h>

#include <map>

#include "saturate/data/error.h"
#include "store/bucket_list.h"
#include "store/credential_exchange.h"
#include "store/sha256.h"
#include "store/xml.h"
#include "tests/store_testing.h"

namespace saturate {
namespace {

using testing::error_of;

std::string shown(std::string_view xml) {
  std::string all;
  read_xml(xml, "test", [&](std::string_view path, std::string& value) {
    all += std::string(path) + "=" + value + ";";
  });
  return all;
}

TEST(StoreXml, ElementsAndTheirTextInOrder) {
  EXPECT_EQ(shown("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<a xmlns='http://x/'><b>1</b><b/><c "
                  "d=\"&gt;\"><b>2 </b></c></a>\n"),
            "a/b=1;a/b=;a/c/b=2 ;a/c=;a=;");
  EXPECT_EQ(shown("<a>&lt;&amp;&gt;&quot;&apos;&#65;&#xe4;&#x20ac;&#128512;</a>"),
            "a=<&>\"'A\u00e4\u20ac\U0001f600;");
  EXPECT_EQ(shown(" \n <?xml version=\"1.0\"?> <a/>"), "a=;") << "sent while a store is busy";
  EXPECT_EQ(xml_value("<a><b>1</b></a>", "b", "test"), "1");
  EXPECT_EQ(xml_value("<a><b>1</b></a>", "c", "test"), "");
  EXPECT_EQ(shown("<a>" + xml_escaped("<&>\"'x") + "</a>"), "a=<&>\"'x;");
}

TEST(StoreXml, AnythingElseIsAnError) {
  const std::string deep = "<a><a><a><a><a><a><a><a><a></a></a></a></a></a></a></a></a></a>";
  for (const std::string xml : {"",
                                "x",
                                "<",
                                "<a",
                                "<a>",
                                "<a></b>",
                                "<a></a",
                                "<a></a>x",
                                "<a></a><b></b>",
                                "</a>",
                                "<a><b></a></b>",
                                "<a>&bad;</a>",
                                "<a>&#0;</a>",
                                "<a>&#xd800;</a>",
                                "<a>&#x110000;</a>",
                                "<a>&lt</a>",
                                "<a>&</a>",
                                "<a b></a>",
                                "<a b=c></a>",
                                "<a b=\"c></a>",
                                "<!DOCTYPE a><a></a>",
                                "<a><!-- --></a>",
                                "<a><![CDATA[x]]></a>",
                                "<?xml",
                                "< a></a>",
                                "<a><?php?></a>"})
    EXPECT_EQ(error_of([&] { shown(xml); }).kind(), ErrorKind::kRun) << xml;
  EXPECT_EQ(error_of([&] { shown(deep); }).kind(), ErrorKind::kRun);
  EXPECT_EQ(error_of([&] { shown("<" + std::string(65, 'a') + "/>"); }).kind(), ErrorKind::kRun);
}

// Each prefix of a good document is an error, and no mutation does more than fail.
TEST(StoreXml, TruncatedAndMutatedDocuments) {
  const std::string good =
      "<?xml version=\"1.0\"?><ListBucketResult><IsTruncated>true</IsTruncated>"
      "<NextContinuationToken>t&amp;</NextContinuationToken><EncodingType>url</EncodingType>"
      "<Contents><Key>a%20b</Key><ETag>&quot;e&quot;</ETag><Size>12</Size></Contents>"
      "</ListBucketResult>";
  const ListPage page = parse_list_page(good, "test");
  ASSERT_EQ(page.objects.size(), 1u);
  EXPECT_EQ(page.objects[0].key, "a b");
  EXPECT_EQ(page.objects[0].etag, "\"e\"");
  EXPECT_EQ(page.objects[0].size, 12u);
  EXPECT_EQ(page.next, "t&");
  for (size_t size = 0; size < good.size(); ++size)
    EXPECT_EQ(error_of([&] { parse_list_page(good.substr(0, size), "test"); }).kind(),
              ErrorKind::kRun);
  RandomStream random(1, 0, 0, RandomUse::kSynthetic);
  for (int i = 0; i < 3'000; ++i) {
    std::string bad = good;
    for (int j = 0; j < 3; ++j) bad[random.below(bad.size())] = char(random.next_u32());
    try {
      parse_list_page(bad, "test");
    } catch (const Error&) {
    }
  }
}

TEST(StoreXml, ListsThatContradictThemselvesAreErrors) {
  for (const char* xml :
       {"<Error><Code>X</Code></Error>",
        "<ListBucketResult><IsTruncated>true</IsTruncated></ListBucketResult>",
        "<ListBucketResult><Contents><Key>a</Key></Contents></ListBucketResult>",
        "<ListBucketResult><Contents><Key>a</Key><Size>-1</Size></Contents></ListBucketResult>",
        "<ListBucketResult><Contents><Key>a</Key><Size>99999999999999999999</Size></Contents>"
        "</ListBucketResult>",
        "<ListBucketResult><EncodingType>url</EncodingType><Contents><Key>a%2</Key><Size>1</Size>"
        "</Contents></ListBucketResult>",
        "<ListBucketResult><EncodingType>url</EncodingType><Contents><Key>a%zz</Key><Size>1</Size>"
        "</Contents></ListBucketResult>"})
    EXPECT_EQ(error_of([&] { parse_list_page(xml, "test"); }).kind(), ErrorKind::kRun) << xml;
}

// From FIPS 180-4's examples, and Python's hashlib for the lengths around a block.
TEST(StoreSha256, KnownHashes) {
  const auto hash = [](const std::string& text) {
    return sha256_hex(std::as_bytes(std::span(text)));
  };
  EXPECT_EQ(hash(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(hash("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(hash("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(hash(std::string(1'000'000, 'a')),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
  EXPECT_EQ(hash(std::string(55, 'x')),
            "d5e285683cd4efc02d021a5c62014694958901005d6f71e89e0989fac77e4072");
  EXPECT_EQ(hash(std::string(56, 'x')),
            "04c26261370ee7541549d16dee320c723e3fd14671e66a099afe0a377c16888e");
  EXPECT_EQ(hash(std::string(63, 'x')),
            "75220b47218278e656f2013bb8f0c455a25eaf01e86c64924e9d48d89776d6f2");
  EXPECT_EQ(hash(std::string(64, 'x')),
            "7ce100971f64e7001e8fe5a51973ecdfe1ced42befe7ee8d5fd6219506b5393c");
  EXPECT_EQ(hash(std::string(65, 'x')),
            "9537c5fdf120482f7d58d25e9ed583f52c02b4e304ea814db1633ad565aed7e9");
  EXPECT_EQ(hash(std::string(119, 'x')),
            "000b48d4edf0fa7bee3c6236ecd2785baa5db4eeb8bb54341b029e0d9fa5fb0c");
  EXPECT_EQ(hash(std::string(120, 'x')),
            "13f05a0b594787f5ecd315edc96141bd3243203d1b7d4f0836f37308b276ba98");
}

TEST(StoreCredentials, TimesOfExpiry) {
  EXPECT_EQ(parse_utc("1970-01-01T00:00:01Z"), 1'000'000'000);
  EXPECT_EQ(parse_utc("2026-02-28T12:00:00.123Z"), 1'772'280'000'000'000'000);
  // As `aws configure export-credentials` prints them.
  EXPECT_EQ(parse_utc("2026-02-28T12:00:00+00:00"), 1'772'280'000'000'000'000);
  EXPECT_EQ(parse_utc("2026-02-28T14:30:00+02:30"), 1'772'280'000'000'000'000);
  EXPECT_EQ(parse_utc("2026-02-28T04:00:00.123456-08:00"), 1'772'280'000'000'000'000);
  EXPECT_GT(parse_utc("9999-12-31T23:59:59Z"), 9'000'000'000'000'000'000) << "the latest";
  for (const char* text :
       {"", "x", "2026-02-28T12:00:00", "2026-02-28 12:00:00Z", "2026-02-28T12:00",
        "2026-02-28T12:00:00.5", "2026-02-28T12:00:00.", "2026-02-28T12:00:00+00",
        "2026-02-28T12:00:00+00:00Z", "2026-02-28T12:00:00 00:00", "2026-02-28T12:00:00ZZ"})
    EXPECT_EQ(parse_utc(text), 0) << text;
}

}  // namespace
}  // namespace saturate
