// synth-text:, and the entropy of its chain.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <map>

#include "data/markov_text.h"
#include "saturate/data/dataset.h"
#include "saturate/data/error.h"
#include "tests/data_testing.h"

namespace saturate {
namespace {

using testing::error_of;
using testing::TempDir;
using testing::write_file;

std::vector<int64_t> values_of(const Dataset& dataset, size_t index) {
  Sample sample;
  dataset.read(index, sample);
  std::vector<int64_t> values(sample.bytes.size() / sizeof(int64_t));
  std::memcpy(values.data(), sample.bytes.data(), sample.bytes.size());
  return values;
}

TEST(MarkovText, ItsEntropyIsThatAfterManySymbols) {
  const size_t n = 7;
  const MarkovText text(n, 3);
  std::vector<double> pairs(n * n, 1.0 / (n * n));  // P(a, b) at a * n + b
  double entropy = 0;
  for (int symbols = 0; symbols < 1000; ++symbols) {
    std::vector<double> next(n * n);
    entropy = 0;
    for (size_t i = 0; i < n * n * n; ++i) {
      const double p = text.probability(int(i / n / n), int(i / n % n), int(i % n));
      next[i % (n * n)] += pairs[i / n] * p;
      entropy -= pairs[i / n] * p * std::log(p);
    }
    pairs = next;
  }
  EXPECT_NEAR(text.entropy_rate(), entropy, 1e-10);
}

// The entropy of the last symbol of those counted, given the others.
template <size_t Length>
double counted_entropy(const std::map<std::array<int64_t, Length>, double>& counts) {
  std::map<std::array<int64_t, Length - 1>, double> before;
  double all = 0, entropy = 0;
  const auto context = [](const auto& symbols) {
    std::array<int64_t, Length - 1> first;
    std::copy_n(symbols.begin(), Length - 1, first.begin());
    return first;
  };
  for (const auto& [symbols, count] : counts) before[context(symbols)] += count, all += count;
  for (const auto& [symbols, count] : counts)
    entropy -= count / all * std::log(count / before[context(symbols)]);
  return entropy;
}

TEST(MarkovText, EntropiesAreThoseOfCountedSymbols) {
  const MarkovText text(5, 1);
  const auto dataset = open_dataset(Env::posix(), "synth-text:symbols=5,seed=1,context=500");
  std::map<std::array<int64_t, 3>, double> triples;
  std::map<std::array<int64_t, 2>, double> pairs, first_pairs;
  for (size_t i = 0; i < 4000; ++i) {
    const auto values = values_of(*dataset, i);
    ++first_pairs[{values[0], values[1]}];
    for (size_t at = 0; at + 2 < 500; ++at) {
      ++pairs[{values[at], values[at + 1]}];
      ++triples[{values[at], values[at + 1], values[at + 2]}];
    }
  }
  EXPECT_NEAR(counted_entropy(triples), text.entropy_rate(), 0.004);
  EXPECT_NEAR(counted_entropy(pairs), text.least_loss(1), 0.004);
  EXPECT_NEAR(counted_entropy(first_pairs), text.least_loss(1), 0.05) << "not stationary";
  EXPECT_GT(text.least_loss(1), 1.2 * text.entropy_rate()) << "two symbols say more than one";
}

TEST(MarkovText, TheLeastLossIsTheMeanOverTheSymbolsOfAText) {
  const MarkovText text(5, 1);
  EXPECT_NEAR(text.least_loss(4), (text.least_loss(1) + 3 * text.entropy_rate()) / 4, 1e-12);
  EXPECT_NEAR(text.least_loss(1'000'000), text.entropy_rate(), 1e-5);
}

TEST(SynthText, ASampleIsATextAndTheSymbolsThatFollow) {
  const auto dataset = open_dataset(Env::posix(), "synth-text:context=6,count=30,symbols=9,seed=2");
  EXPECT_EQ(dataset->size(), 30u);
  ASSERT_EQ(dataset->tensors().size(), 2u);
  EXPECT_EQ(dataset->tensors()[0].shape, std::vector<int64_t>{6});
  EXPECT_EQ(dataset->tensors()[1].values, 9);
  EXPECT_TRUE(dataset->tensors()[1].is_target);
  const auto test = open_dataset(Env::posix(), "synth-text:context=6,symbols=9,seed=2,split=test");
  size_t equal = 0;
  for (size_t i = 0; i < 30; ++i) {
    const auto values = values_of(*dataset, i);
    ASSERT_EQ(values.size(), 12u);
    for (size_t at = 0; at < 5; ++at) EXPECT_EQ(values[6 + at], values[at + 1]);
    for (const int64_t value : values) EXPECT_TRUE(value >= 0 && value < 9);
    EXPECT_EQ(values_of(*dataset, i), values);
    equal += values_of(*test, i) == values;
  }
  EXPECT_EQ(equal, 0u);
}

TEST(SynthText, ItsNoteHasTheEntropy) {
  const MarkovText text(64, 0);
  char expected[160];
  std::snprintf(expected, sizeof expected,
                "entropy %.4f nats a symbol; the least loss for texts of this length is %.4f, "
                "perplexity %.4f",
                text.entropy_rate(), text.least_loss(128), std::exp(text.least_loss(128)));
  EXPECT_EQ(open_dataset(Env::posix(), "synth-text:")->note(), expected);
  EXPECT_EQ(open_dataset(Env::posix(), "split:held,1/5,synth-text:")->note(), expected);
}

TEST(SynthText, ImpossibleOptionsAreUsageErrors) {
  for (const char* options : {"symbols=1", "symbols=65", "context=0", "count=x", "split=val",
                              "sybmols=3", "seed=-1", "seed"}) {
    const Error error =
        error_of([&] { open_dataset(Env::posix(), std::string("synth-text:") + options); });
    EXPECT_EQ(error.kind(), ErrorKind::kUsage) << options;
    EXPECT_EQ(error.where(), std::string("synth-text:") + options);
  }
  const Error unknown = error_of([] { open_dataset(Env::posix(), "synth-text:sybmols=3"); });
  EXPECT_EQ(unknown.remedy(), "Did you mean \"symbols\"?");
}

TEST(TokensSource, BytesAreTokensOfAVocabularyOf256) {
  const TempDir dir;
  write_file(dir / "t.txt", "saturate\xff");
  const auto dataset =
      open_dataset(Env::posix(), "tokens:" + (dir / "t.txt") + ",context=4,type=uint8");
  EXPECT_EQ(dataset->size(), 2u);
  EXPECT_EQ(values_of(*dataset, 1), (std::vector<int64_t>{'r', 'a', 't', 'e', 'a', 't', 'e', 255}));
  EXPECT_EQ(dataset->tensors()[0].values, 256);
}

}  // namespace
}  // namespace saturate
