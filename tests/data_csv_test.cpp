#include <gtest/gtest.h>

#include <cmath>

#include "data/export.h"
#include "saturate/data/input.h"
#include "tests/array_testing.h"

namespace saturate {
namespace {

using testing::env;
using testing::error_of;
using testing::TempDir;
using testing::values_of;
using testing::write_file;

struct Row {
  std::vector<float> x;
  float y = 0;
  int64_t label = 0;
};

Row row_of(const Dataset& dataset, size_t index) {
  Sample sample;
  dataset.read(index, sample);
  const TensorField &x = dataset.tensors()[0], &y = dataset.tensors()[1];
  Row row{values_of<float>(sample.bytes, size_t(x.shape[0])), 0, sample.label};
  if (y.type == ElementType::kFloat32) row.y = values_of<float>(sample.bytes, 1, x.bytes())[0];
  return row;
}

TEST(CsvSource, NumbersAreNormalisedAndCategoriesFound) {
  const TempDir dir;
  write_file(dir / "a.csv",
             "\xef\xbb\xbf"
             "area,\"town, or \"\"city\"\"\",price\r\n"
             "10,b,100\r\n"
             " 20 ,\"a\nc\",200.5\r\n"
             "\r\n"
             "30,b,-3e2\r\n"
             ",NA,+7\r\n");
  const auto dataset = open_dataset(env(), dir / "a.csv");
  ASSERT_EQ(dataset->size(), 4u);
  EXPECT_EQ(dataset->tensors(),
            (std::vector<TensorField>{{"x", ElementType::kFloat32, {3}, false, 0},
                                      {"y", ElementType::kFloat32, {}, true, 0}}));
  EXPECT_TRUE(dataset->classes().empty());
  const float one = float(10 / std::sqrt(200.0 / 3));  // one step of 10, in deviations
  EXPECT_EQ(row_of(*dataset, 0).x, (std::vector<float>{-one, 0, 1}));
  EXPECT_EQ(row_of(*dataset, 1).x, (std::vector<float>{0, 1, 0}));
  EXPECT_EQ(row_of(*dataset, 2).x, (std::vector<float>{one, 0, 1}));
  EXPECT_EQ(row_of(*dataset, 3).x, (std::vector<float>{0, 0, 0})) << "missing";
  EXPECT_EQ(row_of(*dataset, 1).y, 200.5f);
  EXPECT_EQ(row_of(*dataset, 2).y, -300.f);
  EXPECT_EQ(row_of(*dataset, 3).y, 7.f);
}

TEST(CsvSource, ATargetOfTextsOrOfNamedClassesIsAClass) {
  const TempDir dir;
  write_file(dir / "a.csv", "kind;size;id\nno;1;x1\nyes;2;x2\nno;3;x3\n");
  const auto texts = open_dataset(env(), "csv:" + (dir / "a.csv") + ",target=kind,ignore=id");
  EXPECT_EQ(texts->classes(), (std::vector<std::string>{"no", "yes"}));
  EXPECT_EQ(texts->tensors()[1].type, ElementType::kInt64);
  EXPECT_EQ(row_of(*texts, 1).label, 1);
  EXPECT_EQ(row_of(*texts, 2).label, 0);
  const auto numbers =
      open_dataset(env(), "csv:" + (dir / "a.csv") + ",target=size,classes=true,ignore=id");
  EXPECT_EQ(error_of([&] {
              open_dataset(env(), "csv:" + (dir / "a.csv") + ",target=id,ignore=id");
            }).kind(),
            ErrorKind::kUsage);
  EXPECT_EQ(numbers->classes().size(), 3u);
}

// NAN and INF are codes of airports; a NaN has no place in an order of numbers.
TEST(CsvSource, CategoriesThatReadAsNanAreKnown) {
  const TempDir dir;
  write_file(dir / "a.csv", "code,y\nx,1\nNAN,2\nINF,3\n5,4\nNan,5\n");
  const auto dataset = open_dataset(env(), dir / "a.csv");
  // In the order 5, INF, NAN, Nan, x.
  EXPECT_EQ(row_of(*dataset, 0).x, (std::vector<float>{0, 0, 0, 0, 1}));
  EXPECT_EQ(row_of(*dataset, 1).x, (std::vector<float>{0, 0, 1, 0, 0}));
  EXPECT_EQ(row_of(*dataset, 2).x, (std::vector<float>{0, 1, 0, 0, 0}));
  EXPECT_EQ(row_of(*dataset, 3).x, (std::vector<float>{1, 0, 0, 0, 0}));
  EXPECT_EQ(row_of(*dataset, 4).x, (std::vector<float>{0, 0, 0, 1, 0}));
}

TEST(CsvSource, ANumberThatIsNotFiniteIsNamed) {
  const TempDir dir;
  write_file(dir / "a.csv", "v,y\n1,2\ninf,3\n");
  const Error error = error_of([&] { open_dataset(env(), "csv:" + (dir / "a.csv")); });
  EXPECT_EQ(error.kind(), ErrorKind::kData);
  EXPECT_NE(std::string(error.what()).find("\"v\" has a number that is not finite"),
            std::string::npos)
      << error.what();
  EXPECT_NE(std::string(error.what()).find("a.csv:3"), std::string::npos) << error.what();
  write_file(dir / "b.csv", "v,y\ninf,2\nb,3\n");  // a word among words
  EXPECT_EQ(open_dataset(env(), "csv:" + (dir / "b.csv"))->tensors()[0].shape,
            (std::vector<int64_t>{2}));
}

TEST(CsvSource, TheHeldOutRowsHaveTheTrainingPartsStatistics) {
  const TempDir dir;
  // Row 1 of each three is held out: its values and its category are not known in training.
  write_file(dir / "a.csv", "v,c,y\n0,a,1\n100,z,2\n2,b,3\n0,a,4\n900,a,5\n2,b,6\n");
  const std::string uri = "csv:" + (dir / "a.csv");
  const auto train = open_dataset(env(), "split:train,1/3," + uri),
             held = open_dataset(env(), "split:held,1/3," + (dir / "a.csv"));
  ASSERT_EQ(train->size(), 4u);
  ASSERT_EQ(held->size(), 2u);
  EXPECT_EQ(row_of(*train, 0).x, (std::vector<float>{-1, 1, 0}));
  EXPECT_EQ(row_of(*train, 1).x, (std::vector<float>{1, 0, 1}));
  EXPECT_EQ(row_of(*held, 0).x, (std::vector<float>{99, 0, 0})) << "an unknown category";
  EXPECT_EQ(row_of(*held, 1).x, (std::vector<float>{899, 1, 0}));
  EXPECT_EQ(row_of(*held, 0).y, 2.f);
  write_file(dir / "b.csv", "v,c,y\n7,b,8\n");
  const auto other =
      open_dataset(env(), "csv:" + (dir / "b.csv") + ",held=3,fit=" + (dir / "a.csv"));
  EXPECT_EQ(row_of(*other, 0).x, (std::vector<float>{6, 0, 1}));
}

// As an evaluation opens it.
TEST(CsvSource, AnotherTableHasTheTrainingTablesStatistics) {
  const TempDir dir;
  write_file(dir / "a.csv", "id,c,v,y\n1,a,0,1\n2,z,100,2\n3,b,2,3\n4,a,0,4\n5,a,900,5\n6,b,2,6\n");
  write_file(dir / "b.csv", "id,c,v,y\n7,b,7,8\n8,z,3,9\n");
  const std::string b = "csv:" + (dir / "b.csv");
  DataOptions options;
  const auto first = [&](const std::string& training, const std::string& uri) {
    options.source = training;
    return row_of(*open_input(env(), uri, options), 0).x;
  };
  const std::string a = "split:train,1/3,csv:" + (dir / "a.csv") + ",ignore=id";
  EXPECT_EQ(first(a, b), (std::vector<float>{0, 1, 6})) << "of the rows to train on";
  EXPECT_EQ(first(a, dir / "b.csv"), (std::vector<float>{0, 1, 6}));
  EXPECT_EQ(first(a, "split:held,1/2," + b), (std::vector<float>{0, 0, 2}));
  EXPECT_EQ(first(a, b + ",fit=" + (dir / "b.csv") + ",ignore=id"), (std::vector<float>{1, 0, 1}));
  EXPECT_EQ(first("csv:" + (dir / "b.csv") + ",ignore=id,held=3,fit=" + (dir / "a.csv"),
                  "split:train,1/2," + b),
            (std::vector<float>{0, 1, 6}));
  EXPECT_EQ(first("split:train,1/5," + a, b), (std::vector<float>{0, 1, 6})) << "nested";
  EXPECT_EQ(first("synth:", b).size(), 4u) << "no table";
  EXPECT_EQ(first(b + ",ignore=id", b + ",ignore=id"), (std::vector<float>{1, 0, 1}));
  write_file(dir / "c.csv", "id,v,c,y\n7,7,b,8\n");
  const auto problem = [&](const std::string& training) {
    return error_of([&] { first(training, "csv:" + (dir / "c.csv")); }).reason();
  };
  EXPECT_EQ(problem(a), "the table has other columns than the training part");
  EXPECT_NE(problem("csv:" + (dir / "none.csv")).find("the training table"), std::string::npos);
  PackOptions pack;
  pack.out = "shard:" + (dir / "a.shard");
  pack_dataset(env(), *open_dataset(env(), dir / "a.csv"), pack);
  EXPECT_EQ(problem(dir / "a.shard"),
            "the training data are packed, and do not say how a table is normalised");
}

TEST(CsvSource, ATableWithoutNamesIsNumbered) {
  const TempDir dir;
  write_file(dir / "a.csv", "1\t2\t3\n4\t5\t6");
  const auto dataset = open_dataset(env(), "csv:" + (dir / "a.csv") + ",target=0");
  ASSERT_EQ(dataset->size(), 2u);
  EXPECT_EQ(row_of(*dataset, 1).y, 4.f);
  EXPECT_EQ(row_of(*dataset, 1).x, (std::vector<float>{1, 1}));
  write_file(dir / "a.csv", "1,,3\n4,5,6\n");
  EXPECT_EQ(open_dataset(env(), dir / "a.csv")->size(), 2u)
      << "a cell is missing in the first line";
  write_file(dir / "a.csv", "\"a; b; \"\"c\"\"; d\",y\n4,5\n");
  EXPECT_EQ(open_dataset(env(), dir / "a.csv")->size(), 1u) << "marks in quotes separate nothing";
  write_file(dir / "a.csv", ",?\n4,5\n");
  EXPECT_EQ(open_dataset(env(), dir / "a.csv")->size(), 1u) << "no number: names";
}

TEST(CsvSource, ClassesThatAreNumbersAreInTheirOrder) {
  const TempDir dir;
  write_file(dir / "a.csv", "x,y\n1,10\n2,9\n3,-1\n4,b\n5,a\n");
  const auto dataset = open_dataset(env(), dir / "a.csv");
  EXPECT_EQ(dataset->classes(), (std::vector<std::string>{"-1", "9", "10", "a", "b"}));
  for (size_t i = 0; i < 5; ++i)
    EXPECT_EQ(row_of(*dataset, i).label, (std::vector<int64_t>{2, 1, 0, 4, 3}[i])) << i;
}

TEST(CsvSource, LineEndsOfAnyKindCountAlsoInQuotes) {
  const TempDir dir;
  for (const std::string end : {"\n", "\r\n", "\r"}) {
    write_file(dir / "a.csv", "a,b" + end + "\"x" + end + "\"\"" + end + "\",1" + end + "3" + end);
    const Error error = error_of([&] { open_dataset(env(), "csv:" + (dir / "a.csv")); });
    EXPECT_EQ(error.reason(), "the line has 1 cells, and the first has 2");
    EXPECT_EQ(error.where(), (dir / "a.csv") + ":5");
  }
}

TEST(CsvSource, BrokenTablesAreRefusedAndBrokenTargetsNamed) {
  const TempDir dir;
  std::string many = "id,y\n";
  for (int i = 0; i < 1001; ++i) many += "k" + std::to_string(i) + ",1\n";
  const struct {
    std::string text, reason;
  } kCases[] = {
      {"", "the table is empty"},
      {"a,b\n", "the table has no rows"},
      {"a,b\n1e400,2\n", "column \"a\" has a number that is not finite"},
      {"a,b\n1,2\n3\n", "the line has 1 cells, and the first has 2"},
      {"a,b\n1,\"2\n3,4\n", "a quoted cell does not end"},
      {"a,b\n1,\"2\"3\n", "continues after its closing quote"},
      {"a,a\n1,2\n", "the same name"},
      {"a\n1\n", "no column but the target"},
      {"a,b\n,1\n", "column \"a\" has no values"},
      {"a,b,\n1,2,\n", "column \"\" has no values"},
      {"a;b\n1,5;2\n-2,25;3\n", "column \"a\" has numbers with commas"},
      {"a;b\n1;1,5\n2;2\n", "column \"b\" has numbers with commas"},
      {many, "column \"id\" has texts"},
      {"PK\x03\x04", "a spreadsheet"},
      {std::string("\xff\xfe"
                   "a\0,\0b\0",
                   8),
       "the table is UTF-16"},
      {std::string("a,b\n1\0,2\n", 9), "the table has NUL bytes"},
  };
  for (const auto& [text, reason] : kCases) {
    write_file(dir / "a.csv", text);
    const Error error = error_of([&] { open_dataset(env(), "csv:" + (dir / "a.csv")); });
    EXPECT_EQ(error.kind(), ErrorKind::kData) << reason;
    EXPECT_NE(error.reason().find(reason), std::string::npos) << error.reason();
    EXPECT_EQ(error.where().find(dir / "a.csv"), 0u);
  }
  write_file(dir / "a.csv", "a,b\n1,2\n3,\n5,6\n");
  const auto dataset = open_dataset(env(), dir / "a.csv");
  const Error missing = error_of([&] { row_of(*dataset, 1); });
  EXPECT_EQ(missing.kind(), ErrorKind::kData);
  EXPECT_NE(missing.where().find("row 1"), std::string::npos);
  write_file(dir / "b.csv", "a,b\nx,2\n");
  const Error text =
      error_of([&] { open_dataset(env(), "csv:" + (dir / "b.csv") + ",fit=" + (dir / "a.csv")); });
  EXPECT_NE(text.reason().find("the cell is \"x\""), std::string::npos);
  EXPECT_EQ(text.where(), (dir / "b.csv") + ":2");
  const Error unknown =
      error_of([&] { open_dataset(env(), "csv:" + (dir / "a.csv") + ",target=bb"); });
  EXPECT_NE(unknown.remedy().find("\"b\""), std::string::npos);
}

}  // namespace
}  // namespace saturate
