// Handmade pickles of weights: values that are ignored, and values that are refused.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>

#include "model/tensor_pickle.h"
#include "saturate/data/error.h"
#include "tests/data_testing.h"

namespace saturate {
namespace {

std::string short_text(const std::string& word) {
  return "U" + std::string(1, char(word.size())) + word;
}

// A tensor of two floats, as protocol 2 describes it.
std::string two_floats(const std::string& storage = "") {
  return "ctorch._utils\n_rebuild_tensor_v2\n((" + short_text("storage") +
         "ctorch\nFloatStorage\n" + short_text("0") + short_text("cpu") + "K\2" + storage + "tQK" +
         std::string(1, '\0') + "K\2\x85K\1\x85\x89NtR";
}

TensorPickle read_pickle(const std::string& text, const std::string& prefix = "") {
  return read_tensor_pickle(std::as_bytes(std::span(text)), "made.pt", prefix);
}

std::string pickle_problem(const std::string& text, const std::string& prefix = "") {
  const Error error = testing::error_of([&] { read_pickle(text, prefix); });
  EXPECT_EQ(error.kind(), ErrorKind::kRun);
  EXPECT_EQ(std::count(error.reason().begin(), error.reason().end(), '\n'), 0);
  return error.reason();
}

// An OrderedDict with its pairs as an argument, and byte strings as text.
TEST(PickledWeights, FilesOfPython2AreRead) {
  const TensorPickle found = read_pickle(
      "\x80\x02"
      "ccollections\nOrderedDict\n](]"
      "(" +
      short_text("a") + two_floats() + "e](" + short_text("b") + two_floats() + "ee\x85R.");
  ASSERT_EQ(found.tensors.size(), 2u);
  EXPECT_EQ(found.tensors[0].name, "a");
  EXPECT_EQ(found.tensors[1].name, "b");
  EXPECT_NE(pickle_problem("\x80\x02"
                           "ccollections\nOrderedDict\n](](" +
                           short_text("a") + "ee\x85R.")
                .find("not made of pairs"),
            std::string::npos);
}

TEST(PickledWeights, OnlyCallsOfPlainValuesAreIgnored) {
  const std::string dict = "\x80\x02}" + short_text("w") + two_floats() + "s" + short_text("x");
  const std::string none = "s.";
  EXPECT_EQ(read_pickle(dict + "ccollections\nCounter\n)R" + none).tensors.size(), 1u);
  for (const std::string& call :
       {"cos\nsystem\n" + short_text("id") + "\x85R", std::string("c__builtin__\neval\n)R"),
        std::string("cbuiltins\ngetattr\n)R"), std::string("cbuiltins\nexec\n)\x81"),
        std::string("cnumpy.testing._private.utils\nrunstring\n)R"),
        std::string("ctorch\nload\n)R"), std::string("ctorch.hub\nload\n)R")})
    EXPECT_NE(pickle_problem(dict + call + none).find("no state_dict needs"), std::string::npos)
        << call;
  // A tensor's own function with another one in its place.
  for (const std::string& call :
       {std::string("ctorch._tensor\n_rebuild_from_type_v2\n(ctorch\nSize\nN)NtR"),
        std::string("ctorch._tensor\n_rebuild_from_type_v2\n(ctorch._tensor\n"
                    "_rebuild_from_type_v2\nN)NtR"),
        std::string("ctorch\nFloatStorage\n)R"), std::string("ctorch\nFloatStorage\n)\x81"),
        std::string("K\1)R"), std::string("K\1)\x81")})
    EXPECT_FALSE(pickle_problem(dict + call + none).empty()) << call;
}

std::string entry(const std::string& key, const std::string& value) {
  return short_text(key) + value + "s";
}

// Trained ones before averaged ones, whatever their order in the file; nested ones too.
TEST(PickledWeights, TheKeysOfTrainingScriptsAreSearched) {
  const auto weights = [](const std::string& name) { return "}" + entry(name, two_floats()); };
  for (const char* key : {"state_dict", "model", "model_state_dict", "model_state", "net",
                          "network", "weights", "params"}) {
    const TensorPickle found =
        read_pickle("\x80\x02}" + entry("model_ema", weights("a")) + entry(key, weights("t")) +
                    entry("ema", weights("b")) + ".");
    ASSERT_EQ(found.tensors.size(), 1u) << key;
    EXPECT_EQ(found.tensors[0].name, "t") << key;
  }
  for (const char* key :
       {"model_ema", "ema", "ema_model", "state_dict_ema", "ema_state_dict", "params_ema"})
    EXPECT_EQ(read_pickle("\x80\x02}" + entry(key, "}" + entry("state_dict", weights("a"))) +
                          entry("optimizer", weights("o")) + ".")
                  .tensors.at(0)
                  .name,
              "a")
        << key;
}

// With its attributes set, as a class's own reader would, and as a key.
TEST(PickledWeights, SettingsAndStatesOfRandomNumbersArePassedOver) {
  for (const char* name :
       {"argparse\nNamespace", "numpy.random._pickle\n__randomstate_ctor", "random\nRandom",
        "mmengine.config.config\nConfigDict", "decimal\nDecimal", "torch\nfloat8_e5m2fnuz",
        "pytorch_lightning.callbacks.model_checkpoint\nModelCheckpoint"}) {
    const std::string global = std::string("c") + name + "\n";
    const TensorPickle found =
        read_pickle("\x80\x02}" + entry("made", global + ")R}" + entry("lr", two_floats()) + "b") +
                    global + "Ns" + entry("named", global) + entry("w", two_floats()) + ".");
    ASSERT_EQ(found.tensors.size(), 1u) << name;
    EXPECT_EQ(found.tensors[0].name, "w") << name;
  }
}

// A complex and a sparse tensor; a model that needs one finds it missing.
TEST(PickledWeights, TensorsOfOtherKindsArePassedOver) {
  std::string complex = two_floats();
  complex.replace(complex.find("FloatStorage"), 12, "ComplexFloatStorage");
  const std::string sparse = "ctorch._utils\n_rebuild_sparse_tensor\n(" + complex + "tR";
  const TensorPickle found = read_pickle("\x80\x02}" + entry("c", complex) + entry("s", sparse) +
                                         entry("w", two_floats()) + ".");
  ASSERT_EQ(found.tensors.size(), 1u);
  EXPECT_EQ(found.tensors[0].name, "w");
}

TEST(PickledWeights, AViewOfAnotherStorageIsRefused) {
  EXPECT_EQ(read_pickle("\x80\x02}" + short_text("w") + two_floats("N") + "s.").tensors.size(), 1u);
  EXPECT_NE(pickle_problem("\x80\x02}" + short_text("w") + two_floats("(K\1K\1K\1t") + "s.")
                .find("not described as torch does"),
            std::string::npos);
}

TEST(PickledWeights, ARecursiveDictionaryIsReadOnce) {
  const std::string inner = "}q" + std::string(1, '\1') + short_text("model") + "h\1s" +
                            short_text("w") + two_floats() + "s";
  EXPECT_EQ(read_pickle("\x80\x02" + inner + ".").tensors.size(), 1u);
}

// The begin of a text of that many bytes.
std::string begin_of_text(uint32_t size) {
  return "X" + std::string(reinterpret_cast<const char*>(&size), sizeof size);
}

// MMEngine's histories of values are texts, of tens of MB after some 100,000 iterations.
TEST(PickledWeights, LongTextsBesideTheTensorsAreReadUpToALimit) {
  constexpr uint32_t kLong = 20 << 20, kTooLong = 256 << 20, kLongName = 2000;
  const std::string history = begin_of_text(kLong) + std::string(kLong, 'x');
  EXPECT_EQ(read_pickle("\x80\x02}" + entry("history", history) + entry("w", two_floats()) + ".")
                .tensors.size(),
            1u);
  std::string too_long = "\x80\x02}" + short_text("history") + begin_of_text(kTooLong);
  too_long.resize(too_long.size() + kTooLong);
  EXPECT_NE(pickle_problem(too_long).find("it is longer than 256 MiB"), std::string::npos);
  const std::string name = begin_of_text(kLongName) + std::string(kLongName, 'x');
  EXPECT_NE(pickle_problem("\x80\x02}" + name + two_floats() + "s.").find("name is not text"),
            std::string::npos);
}

// A few bytes of the file for a mark or an index in memory.
TEST(PickledWeights, EndlessMarksAndIndicesAreRefused) {
  EXPECT_NE(pickle_problem("\x80\x02" + std::string(5'000'000, '(')).find("it has too many values"),
            std::string::npos);
  std::string again = "\x80\x02}q" + std::string(1, '\1');
  for (int i = 0; i < 17'000'000; ++i) again += "h\1";
  EXPECT_NE(pickle_problem(again).find("repeats too many values"), std::string::npos);
}

// Many dictionaries below a long name would need memory for the product of both.
TEST(PickledWeights, ManyDictionariesUnderALongNameAreRefused) {
  std::string text =
      "\x80\x02}" + short_text("t") + two_floats() + "q" + std::string(1, '\1') + "s";
  text += "X" + std::string("\x84\x03\0\0", 4) + std::string(900, 'k') + "}";
  for (int i = 0; i < 20'000; ++i)
    text += short_text(std::to_string(i)) + "}" + short_text("t") + "h\1ss";
  EXPECT_NE(pickle_problem(text + "s.", "none").find("too many dictionaries"), std::string::npos);
}

// Each call copies the list, for a few bytes of the file.
TEST(PickledWeights, AListThatIsCopiedAgainAndAgainIsRefused) {
  const auto kept = [](char key) { return std::string("q") + key; };
  const auto again = [](char key) { return std::string("h") + key; };
  std::string items;
  for (int i = 0; i < 1000; ++i) items += again(1);
  std::string text = "\x80\x02}" + entry("t", two_floats()) +
                     entry("pair", "K\1K\1\x86" + kept(1)) +
                     entry("list", "](" + items + "e" + kept(2)) +
                     entry("call", "ccollections\nOrderedDict\n" + kept(3));
  for (int i = 0; i < 20'000; ++i) text += entry("x", again(3) + again(2) + "\x85R");
  EXPECT_NE(pickle_problem(text + ".").find("repeats too many values"), std::string::npos);
}

TEST(PickledWeights, NumbersOfProtocol1AreRead) {
  const auto with = [](const std::string& number) {
    return "}" + short_text("w") + two_floats() + "s" + short_text("n") + number + "s.";
  };
  for (const char* number : {"I01\n", "I-5\n", "L-77L\n", "L123456789012345678901234567890L\n"})
    EXPECT_EQ(read_pickle(with(number)).tensors.size(), 1u) << number;
  for (const char* number : {"I\n", "I1x\n", "LL\n", "I0x1\n", "I1"})
    EXPECT_FALSE(pickle_problem(with(number)).empty()) << number;
}

}  // namespace
}  // namespace saturate
