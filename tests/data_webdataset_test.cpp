// tar: with WebDataset pairs, compared with webdataset's own reader.
#include <gtest/gtest.h>

#include "data/tar_format.h"
#include "data/tar_labels.h"
#include "tests/format_testing.h"

namespace saturate {
namespace {

using testing::env;
using testing::error_of;
using testing::format_golden;
using testing::TempDir;
using testing::write_file;

std::string tar_of(const std::vector<std::pair<std::string, std::string>>& members) {
  std::string text;
  for (const auto& [name, payload] : members) {
    text += testing::to_text(make_tar_header(name, payload.size())) + payload;
    text.resize(size_t(tar_padded(text.size())));
  }
  return text + std::string(1024, '\0');
}

class WebDataset : public ::testing::Test {
 protected:
  std::unique_ptr<Dataset> open(const std::vector<std::pair<std::string, std::string>>& members) {
    write_file(dir / "t.tar", tar_of(members));
    return open_dataset(env(), "tar:" + (dir / "t.tar"));
  }
  void expect_error(const std::vector<std::pair<std::string, std::string>>& members,
                    const std::string& reason, const std::string& where) {
    const Error error = error_of([&] { open(members); });
    EXPECT_EQ(error.kind(), ErrorKind::kData);
    EXPECT_NE(error.reason().find(reason), std::string::npos) << error.what();
    EXPECT_NE(error.where().find(where), std::string::npos) << error.what();
  }
  static std::vector<std::string> labels_of(const Dataset& dataset) {
    std::vector<std::string> labels;
    Sample sample;
    for (size_t i = 0; i < dataset.size(); ++i) {
      dataset.read(i, sample);
      labels.push_back(dataset.classes()[size_t(sample.label)]);
    }
    return labels;
  }
  TempDir dir;
};

TEST_F(WebDataset, ReadsTheSameAsWebdataset) {
  const std::string path = dir / "names.tar";
  write_file(path, testing::gunzip(format_golden("wds-names.tar.gz")));
  testing::expect_samples(*open_dataset(env(), "tar:" + path), "wds-names", path + ":");
}

TEST_F(WebDataset, NumbersAreTheLabels) {
  const std::string path = dir / "numbers.tar";
  write_file(path, testing::gunzip(format_golden("wds-numbers.tar.gz")));
  const auto dataset = open_dataset(env(), "tar:" + path);
  const auto expected = testing::expected_samples("wds-numbers");
  ASSERT_EQ(dataset->size(), expected.size());  // seg.png is not a separate image
  EXPECT_EQ(dataset->classes().size(), 12u);
  EXPECT_EQ(dataset->classes()[3], "03");
  Sample sample;
  for (size_t i = 0; i < expected.size(); ++i) {
    dataset->read(i, sample);
    EXPECT_EQ(std::to_string(sample.label), expected[i].class_name);
    EXPECT_EQ(testing::hash_bytes(sample.bytes), expected[i].hash);
    EXPECT_EQ(sample.name, path + ":" + expected[i].name);
  }
}

TEST_F(WebDataset, ShardsInARangeShareTheirClasses) {
  write_file(dir / "s-000.tar", tar_of({{"a.jpg", "1"}, {"a.cls", "dog"}}));
  write_file(dir / "s-001.tar", tar_of({{"a.jpg", "2"}, {"a.cls", "cat"}}));
  const auto dataset = open_dataset(env(), "tar:" + (dir / "s-{000..001}.tar"));
  EXPECT_EQ(dataset->classes(), (std::vector<std::string>{"cat", "dog"}));
  EXPECT_EQ(labels_of(*dataset), (std::vector<std::string>{"dog", "cat"}));
  const Error error = error_of([&] { open_dataset(env(), "tar:" + (dir / "s-{000..002}.tar")); });
  EXPECT_EQ(error.kind(), ErrorKind::kData);
  EXPECT_EQ(error.where(), dir / "s-002.tar");
}

TEST_F(WebDataset, ManyArchivesThatAreListedTogetherKeepTheirOrder) {
  constexpr int kArchives = 40;  // of five threads, which list 20 at a time
  const auto archive = [&](int i) { return dir / ("m-" + std::to_string(100 + i) + ".tar"); };
  const std::string uri = "tar:" + (dir / "m-{100..139}.tar");
  for (int i = 0; i < kArchives; ++i) {
    const std::string number = std::to_string(i);
    write_file(archive(i), tar_of({{"a.jpg", "image " + number},
                                   {"a.json", "{\"x\": 1, \"label\": " + number + "}"},
                                   {"a.txt", "beside it"}}));
  }
  const auto dataset = open_dataset(env(), uri);
  ASSERT_EQ(dataset->size(), size_t(kArchives));
  EXPECT_EQ(dataset->classes().size(), size_t(kArchives));
  Sample sample;
  for (int i = 0; i < kArchives; ++i) {
    dataset->read(size_t(i), sample);
    EXPECT_EQ(sample.label, i);
    EXPECT_EQ(sample.name, archive(i) + ":a.jpg");
    EXPECT_EQ(testing::to_text(sample.bytes), "image " + std::to_string(i));
  }
  write_file(archive(31), tar_of({{"a.jpg", "1"}, {"a.cls", ""}}));
  EXPECT_EQ(error_of([&] { open_dataset(env(), uri); }).where(), archive(31) + ":a");
}

// Its key is "", as before the first member of an archive; the images before it have other keys.
TEST_F(WebDataset, ALabelFileWithoutAKeyBelongsToNoImageInALaterArchiveToo) {
  write_file(dir / "0.tar",
             tar_of({{"a.jpg", "1"}, {"a.cls", "0"}, {"b.jpg", "2"}, {"b.cls", "1"}}));
  write_file(dir / "1.tar", tar_of({{".cls", "1"}, {"c.jpg", "3"}, {"c.cls", "0"}}));
  const auto dataset = open_dataset(env(), "tar:" + (dir / "{0..1}.tar"));
  EXPECT_EQ(labels_of(*dataset), (std::vector<std::string>{"0", "1", "0"}));
}

TEST_F(WebDataset, LayoutsAreDetected) {
  // Either order, any case, text with a line end; a mask with a longer ending is not an image.
  const auto pairs = open({{"x/a.cls", " dog\n"},
                           {"x/a.mask.png", "m"},
                           {"x/a.jpg", "1"},
                           {"x/b.JPEG", "2"},
                           {"x/b.CLS", "cat"}});
  EXPECT_EQ(labels_of(*pairs), (std::vector<std::string>{"dog", "cat"}));
  // Files beside the images that are not labels: the layout is class folders.
  const auto folders = open({{"cat/a.v2.jpg", "1"},
                             {"cat/a.json", "{\"author\": 3}"},
                             {"dog/b.jpg", "2"},
                             {"dog/b.json", "not JSON"},
                             {"dog/index.json", "{\"label\": 3}"},
                             {"style.cls", std::string(5000, 'x')}});
  EXPECT_EQ(labels_of(*folders), (std::vector<std::string>{"cat", "dog"}));
}

TEST_F(WebDataset, JsonLabelsAreNumbersOrNames) {
  const auto names = open({{"a.jpg", "1"}, {"a.json", "{\"label\": \"dog\", \"x\": [1]}"}});
  EXPECT_EQ(names->classes(), std::vector<std::string>{"dog"});
  const auto numbers = open({{"a.jpg", "1"}, {"a.json", "{\"label\": 2}"}});
  EXPECT_EQ(numbers->classes(), (std::vector<std::string>{"0", "1", "2"}));
  // .cls is preferred to .json.
  const auto both = open({{"a.cls", "cat"}, {"a.jpg", "1"}, {"a.json", "{\"label\": \"dog\"}"}});
  EXPECT_EQ(both->classes(), std::vector<std::string>{"cat"});
  // One name among numbers makes all of them names.
  const auto mixed = open({{"a.jpg", "1"}, {"a.cls", "10"}, {"b.jpg", "2"}, {"b.cls", "x"}});
  EXPECT_EQ(mixed->classes(), (std::vector<std::string>{"10", "x"}));
}

// Else each image would get its folder as class.
TEST_F(WebDataset, AJsonThatMayHideTheLabelIsNamed) {
  const std::string not_json = R"({"label": 3, "similarity": NaN})",
                    large = R"({"label": 3, "x": ")" + std::string(1 << 20, 'x') + "\"}";
  expect_error({{"00/a.jpg", "1"}, {"00/a.json", not_json}}, "not valid JSON", "t.tar:00/a.json");
  expect_error({{"00/a.jpg", "1"}, {"00/a.json", large}}, "larger than 1 MiB", "t.tar:00/a.json");
  for (const std::string& text : {not_json, large})
    EXPECT_EQ(labels_of(*open({{"a.jpg", "1"}, {"a.cls", "cat"}, {"a.json", text}})),
              std::vector<std::string>{"cat"});
  PairGroup group;  // as of an archive that is far away
  group.start("a", 0);
  group.add_label("json", reduced_json(not_json));
  EXPECT_EQ(error_of([&] { group.label("far.tar:a"); }).where(), "far.tar:a.json");
  group.add_label("json", reduced_json(R"({"label": 3, "x": 4})"));
  EXPECT_EQ(group.label("far.tar:a"), "3");
}

// As of tar -r and -u; tar -x would take the last ones.
TEST_F(WebDataset, MembersThatWereAddedAgainAreRefused) {
  const std::string label = "the image's label is in the archive twice";
  expect_error({{"a.jpg", "1"}, {"a.cls", "1"}, {"b.jpg", "2"}, {"b.cls", "2"}, {"a.cls", "7"}},
               label, "t.tar:a.jpg");
  expect_error({{"a.jpg", "1"},
                {"a.json", R"({"label": 1})"},
                {"b.jpg", "2"},
                {"b.cls", "2"},
                {"a.json", R"({"label": 7})"}},
               label, "t.tar:a.jpg");
  expect_error({{"cat/1.jpg", "1"}, {"dog/1.jpg", "2"}, {"cat/1.jpg", "3"}},
               "the image is in the archive twice", "t.tar:cat/1.jpg");
}

// Two archives joined by cat are read as two archives: a key ends with its archive.
TEST_F(WebDataset, ArchivesJoinedByCatAreReadAsTwo) {
  write_file(dir / "joined.tar", tar_of({{"a.jpg", "1"}, {"a.cls", "dog"}}) +
                                     tar_of({{"a.jpg", "2"}, {"a.cls", "cat"}}) +
                                     tar_of({{"b.cls", "cat"}, {"b.jpg", "3"}}));
  const auto dataset = open_dataset(env(), "tar:" + (dir / "joined.tar"));
  EXPECT_EQ(labels_of(*dataset), (std::vector<std::string>{"dog", "cat", "cat"}));
}

TEST_F(WebDataset, ANegativeNumberIsNotAClass) {
  for (const char* label : {"-1", "-5", "-5\n", "-0.5"}) {
    expect_error({{"a.jpg", "1"}, {"a.cls", label}}, "is not a class number", "t.tar:a");
    expect_error({{"b.jpg", "1"}, {"b.cls", "cat"}, {"a.jpg", "1"}, {"a.cls", label}},
                 "is not a class number", "t.tar:a");
  }
  expect_error({{"a.jpg", "1"}, {"a.json", "{\"label\": -1}"}}, "is not a class number", "t.tar:a");
  EXPECT_EQ(open({{"a.jpg", "1"}, {"a.cls", "-"}})->classes(), std::vector<std::string>{"-"});
}

TEST_F(WebDataset, BadPairsAreErrors) {
  expect_error({{"a.jpg", "1"}, {"a.cls", "1"}, {"b.jpg", "2"}}, "no label", "t.tar:b.jpg");
  // A key's files must be consecutive: else all images had the class "train".
  expect_error(
      {{"train/a.jpg", "1"}, {"train/b.jpg", "2"}, {"train/a.cls", "1"}, {"train/b.cls", "1"}},
      "not next to it", "t.tar:train/a.jpg");
  expect_error({{"a.jpg", "1"}, {"a.cls", " \n"}}, "empty", "t.tar:a");
  expect_error({{"a.jpg", "1"}, {"a.cls", std::string(2000, 'x')}}, "2000 bytes", "t.tar:a");
  expect_error({{"a.jpg", "1"}, {"a.cls", "4294967296"}}, "too large", "t.tar");
  expect_error({{"a.jpg", "1"}, {"a.cls", "99999999999999999999"}}, "too large", "t.tar");
  expect_error({{"a.jpg", "1"}, {"a.png", "2"}, {"a.cls", "1"}}, "two images", "t.tar:a");
}

TEST(SplitName, EqualsWebdatasets) {
  const auto split = [](std::string_view name) {
    const SplitName s = split_name(name);
    return std::vector<std::string>{std::string(s.key), std::string(s.base), std::string(s.ending)};
  };
  using Parts = std::vector<std::string>;
  EXPECT_EQ(split("a/b.seg.png"), (Parts{"a/b", "b.seg.png", "seg.png"}));
  EXPECT_EQ(split("a.b/c"), (Parts{"a.b/c", "c", ""}));
  EXPECT_EQ(split("x.jpg"), (Parts{"x", "x.jpg", "jpg"}));
  EXPECT_EQ(split("d/.hidden"), (Parts{"d/", ".hidden", "hidden"}));
  EXPECT_EQ(split(""), (Parts{"", "", ""}));
}

}  // namespace
}  // namespace saturate
