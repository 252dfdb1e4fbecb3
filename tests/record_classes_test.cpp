// Results of an evaluation by class: counting, order, writing, reading and printing.
#include <ATen/core/Tensor.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "record/class_results.h"
#include "report/report.h"
#include "saturate/train_step.h"
#include "task/class_counts.h"
#include "tests/report_testing.h"

namespace saturate {
namespace {

using testing::TempDir;
using testing::write_file;

// Three classes: cat is right twice of three times, dog never, owl has no image.
ClassResults pets() {
  return class_results(std::vector<int64_t>{0, 0, 1, 3, 3, 5}, 3, {"cat", "dog", "owl"});
}

TEST(ClassResults, CountsEachClassAndTheMatrix) {
  const ClassResults results = pets();
  ASSERT_EQ(results.classes.size(), 3u);
  const ClassResult &cat = results.classes[0], &dog = results.classes[1], &owl = results.classes[2];
  EXPECT_EQ(cat.count, 3);
  EXPECT_EQ(cat.predicted, 4);
  EXPECT_EQ(cat.correct, 2);
  EXPECT_NEAR(*cat.accuracy(), 2 / 3.0, 1e-12);
  EXPECT_EQ(dog.accuracy(), 0);
  EXPECT_FALSE(owl.accuracy());
  EXPECT_EQ(owl.predicted, 1);
  ASSERT_EQ(results.confusion.size(), 4u);
  EXPECT_EQ(results.confusion[2].label, 1);
  EXPECT_EQ(results.confusion[2].prediction, 0);
  EXPECT_EQ(results.confusion[2].count, 2);
}

TEST(ClassResults, TheWorstComeFirstAndClassesWithoutImagesAreSkipped) {
  const ClassResults results = pets();
  EXPECT_EQ(worst_classes(results, 10), (std::vector<size_t>{1, 0}));
  EXPECT_EQ(worst_classes(results, 1), (std::vector<size_t>{1}));
  const auto wrong = worst_confusions(results, 10);
  ASSERT_EQ(wrong.size(), 3u);
  EXPECT_EQ(wrong[0].count, 2);
  EXPECT_EQ(worst_confusions(results, 10, 0).size(), 1u);
}

TEST(ClassResults, LabelsBeyondTheOutputsAreIgnored) {
  const auto results = class_results(std::vector<int64_t>{-1, -300, 4, 900}, 2, {"a", "b"});
  ASSERT_EQ(results.classes.size(), 2u);
  for (const auto& of : results.classes) EXPECT_EQ(of.count + of.predicted, 0);
  EXPECT_TRUE(class_results(std::vector<int64_t>{}, 0, {"a"}).classes.empty());
  EXPECT_EQ(class_results(std::vector<int64_t>{8}, 3, {"a"}).classes[2].name, "2")
      << "an output beyond the classes";
}

TEST(ClassResults, PixelsHaveIntersectionOverUnion) {
  const auto results = class_results(std::vector<ClassPixels>{{6, 8, 7}, {0, 0, 0}, {1, 4, 9}},
                                     {"sky", "sea", "car"});
  EXPECT_NEAR(*results.classes[0].iou(), 6 / 9.0, 1e-12);
  EXPECT_FALSE(results.classes[1].iou());
  EXPECT_EQ(worst_classes(results, 9), (std::vector<size_t>{2, 0}));
  const std::string text = format_class_results(results);
  EXPECT_NE(text.find("IoU"), std::string::npos);
  EXPECT_LT(text.find("car"), text.find("sky"));
  EXPECT_EQ(text.find("answers"), std::string::npos) << "no confusion matrix";
}

TEST(Answers, TheLargestLogitIsTheAnswer) {
  Answers answers;
  EXPECT_EQ(answers.cells().numel(), 0);
  answers.add(at::tensor({0.f, 1.f, 3.f, 2.f, 1.f, 0.f}).reshape({2, 3}),
              at::tensor({2, 1}).to(at::kLong));
  answers.add(at::tensor({5.f, 6.f, 7.f}).reshape({1, 3}), at::tensor({0}).to(at::kLong));
  const at::Tensor cells = answers.cells();
  ASSERT_EQ(cells.numel(), 3);
  EXPECT_EQ(answers.outputs(), 3);
  EXPECT_EQ(cells[0].item<int64_t>(), 2 * 3 + 2);
  EXPECT_EQ(cells[1].item<int64_t>(), 1 * 3 + 0);
  EXPECT_EQ(cells[2].item<int64_t>(), 0 * 3 + 2);
  answers.clear();
  EXPECT_EQ(answers.cells().numel(), 0);
}

TEST(ClassResults, TheFileIsReadBackAsItWasWritten) {
  ClassResults results = pets();
  results.step = 120;
  results.classes[2].name = "\xff\"<";  // not UTF-8
  const std::string text = class_results_json(results);
  const auto again = parse_class_results(text);
  ASSERT_TRUE(again);
  EXPECT_EQ(again->step, 120);
  EXPECT_EQ(class_results_json(*again), text);
  const auto json = nlohmann::json::parse(text);
  EXPECT_EQ(json["counted"], "images");
  EXPECT_EQ(json["classes"][0]["accuracy"], 2 / 3.0);
  EXPECT_TRUE(json["classes"][2]["accuracy"].is_null());
  EXPECT_EQ(json["confusion"][2], (std::vector<int>{1, 0, 2}));
}

TEST(ClassResults, AnyFileContentIsSafeToPrint) {
  for (const char* text :
       {"", "[]", "{}", "{\"classes\":7}", "{\"classes\":[7]}", "{\"classes\":[[]]}", "nonsense"})
    EXPECT_FALSE(parse_class_results(text)) << text;
  const auto odd = parse_class_results(
      "{\"step\":\"x\",\"classes\":[{\"name\":3,\"count\":-5},{\"count\":1e300}],\"confusion\":[[0,"
      "0,"
      "1],[0,2,1],[-1,0,1],[0,1],[0,1,-3],[1,0,1.5],[0,1,99999999999999999999],\"x\"]}");
  ASSERT_TRUE(odd);
  EXPECT_EQ(odd->classes[0].count, 0);
  EXPECT_EQ(odd->confusion.size(), 1u);
  EXPECT_FALSE(format_class_results(*odd).empty());
}

std::vector<std::string> names_of(int count) {
  std::vector<std::string> names;
  for (int i = 0; i < count; ++i) names.push_back("class" + std::to_string(i));
  return names;
}

// 10 images of each class i: i % 11 of them are predicted as the next class.
ClassResults many(int64_t count) {
  std::vector<int64_t> cells;
  for (int64_t i = 0; i < count; ++i)
    for (int64_t image = 0; image < 10; ++image)
      cells.push_back(i * count + (image < i % 11 ? (i + 1) % count : i));
  return class_results(cells, count, names_of(int(count)));
}

TEST(ClassTable, ATerminalGetsTheMatrixOfAFewClassesAndTheWorstOfMany) {
  const std::string few = format_class_results(many(10));
  EXPECT_NE(few.find("by class, worst first"), std::string::npos);
  EXPECT_NE(few.find("answers, by number"), std::string::npos);
  EXPECT_NE(few.find("class9                        10    10.00%  class0 9"), std::string::npos)
      << few;
  const std::string all = format_class_results(many(1000));
  EXPECT_NE(all.find("the worst 10 of 1000 classes"), std::string::npos);
  EXPECT_EQ(std::count(all.begin(), all.end(), '\n'), 12);
  EXPECT_NE(all.find("class10  "), std::string::npos) << "none of its images is right";
}

TEST(ClassTable, ALineFitsTheTerminalAndNamesAreEscaped) {
  ClassResults results = many(20);
  for (auto& of : results.classes) of.name = "a very long name of a class, \x9b\x32J\n" + of.name;
  const std::string text = format_class_results(results);
  size_t longest = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t end = text.find('\n', at);
    longest = std::max(
        longest, size_t(std::count_if(text.begin() + ptrdiff_t(at), text.begin() + ptrdiff_t(end),
                                      [](char c) { return (c & 0xc0) != 0x80; })));
    at = end + 1;
  }
  EXPECT_LE(longest, 80u);
  EXPECT_EQ(text.find('\x9b'), std::string::npos);
  for (auto& of : results.classes)
    of.name = "\u732b\u732b with a very long name, of kind " + of.name;
  const std::string cut = format_class_results(results);
  EXPECT_NE(cut.find("\u732b\u732b with a very \u2026aclass19"), std::string::npos)
      << "both ends remain: " << cut;
}

std::string classes_page(const ClassResults& results) {
  const TempDir dir;
  write_file(dir / "run/metrics.jsonl", "{\"kind\":\"eval\",\"step\":7,\"accuracy\":0.5}\n");
  write_file(dir / "run/classes.json", class_results_json(results));
  const RunReading run = read_run(Env::posix(), dir / "run");
  return make_report({&run, 1});
}

TEST(ReportOfClasses, AFewClassesHaveAMatrix) {
  ClassResults results = pets();
  results.classes[0].name = "<b>cat";
  const std::string page = classes_page(results);
  EXPECT_EQ(page.find("<b>cat"), std::string::npos);
  const auto classes = testing::data_of_page(page)["runs"][0]["classes"];
  EXPECT_EQ(classes["seen"], 2) << "no owl";
  EXPECT_EQ(classes["matrix"][0]["name"], "<b>cat");
  EXPECT_EQ(classes["matrix"][0]["answers"], nlohmann::json({2, 1, 0}));
}

TEST(ReportOfClasses, AThousandClassesShowTheWorstAndTheMostFrequentConfusions) {
  const std::string page = classes_page(many(1000)), small = classes_page(many(10));
  const auto classes = testing::data_of_page(page)["runs"][0]["classes"];
  EXPECT_EQ(classes["seen"], 1000);
  EXPECT_EQ(classes["worst"].size(), 24u);
  EXPECT_EQ(classes["confusions"].size(), 24u);
  EXPECT_FALSE(classes.contains("matrix"));
  EXPECT_LT(page.size(), small.size() + 20'000);
}

TEST(ReportOfClasses, ADamagedFileIsAWarning) {
  const TempDir dir;
  write_file(dir / "run/metrics.jsonl", "{\"kind\":\"eval\",\"step\":7}\n");
  write_file(dir / "run/classes.json", "{\"classes\":");
  const RunReading run = read_run(Env::posix(), dir / "run");
  ASSERT_EQ(run.warnings.size(), 1u);
  EXPECT_NE(run.warnings[0].find("classes.json"), std::string::npos);
  EXPECT_TRUE(testing::data_of_page(make_report({&run, 1}))["runs"][0]["classes"].is_null());
}

}  // namespace
}  // namespace saturate
