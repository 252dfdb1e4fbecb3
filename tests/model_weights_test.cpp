// Weights of files that Python wrote (tests/oracles/weights_goldens.py), and hostile files.
#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/zeros.h>
#include <caffe2/serialize/inline_container.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "saturate/data/error.h"
#include "saturate/safetensors.h"
#include "saturate/weights.h"
#include "tests/data_testing.h"
#include "tests/fault_env.h"
#include "tests/formula.h"
#include "tests/paths.h"

namespace saturate {
namespace {

using testing::error_of;
using testing::read_text;
using testing::TempDir;
using testing::write_file;

const std::string kGoldens = testing::source_path("tests/goldens/weights/");

std::unique_ptr<Model> small_model(int classes = 10, const std::string& name = "simple_cnn") {
  at::manual_seed(5);
  ModelOptions options;
  options.name = name;
  options.width = 0.0625;
  return make_model(options, {classes, 16, Env::posix()});
}

at::Tensor numbers(int64_t count) {
  return at::arange(count).to(at::kFloat);
}

class EveryFormat : public ::testing::TestWithParam<const char*> {};

TEST_P(EveryFormat, HasTheTensorsThatPythonSaved) {
  std::map<std::string, at::Tensor> found;
  for (const auto& [name, tensor] : read_weights(Env::posix(), kGoldens + GetParam()))
    found[name] = tensor;
  const std::map<std::string, at::ScalarType> types{
      {"f64", at::kDouble}, {"f32", at::kFloat}, {"f16", at::kHalf},  {"bf16", at::kBFloat16},
      {"i64", at::kLong},   {"i32", at::kInt},   {"i16", at::kShort}, {"i8", at::kChar},
      {"u8", at::kByte},    {"bool", at::kBool}};
  for (const auto& [name, type] : types)
    EXPECT_TRUE(at::equal(found.at(name), at::arange(6).to(type).view({2, 3}))) << name;
  const at::Tensor whole = numbers(24).view({2, 3, 4});
  EXPECT_EQ(found.at("scalar").dim(), 0);
  EXPECT_EQ(found.at("scalar").item<float>(), 7);
  EXPECT_EQ(found.at("empty").sizes(), (at::IntArrayRef{2, 0, 3}));
  EXPECT_TRUE(at::equal(found.at("whole"), whole));
  EXPECT_TRUE(at::equal(found.at("transposed"), whole.permute({2, 0, 1})));
  EXPECT_TRUE(at::equal(found.at("part"), whole.select(0, 1).slice(0, 1).slice(1, 0, 4, 2)));
  EXPECT_TRUE(at::equal(found.at("parameter"), numbers(4)));
  EXPECT_TRUE(at::equal(found.at("naïve \"名\""), numbers(3)));
  EXPECT_EQ(found.size(), types.size() + 7);
}

INSTANTIATE_TEST_SUITE_P(Weights, EveryFormat,
                         ::testing::Values("all_kinds.pt", "protocol1.pt", "protocol4.pt",
                                           "protocol5.pt", "legacy.pt", "legacy1.pt", "legacy4.pt",
                                           "legacy5.pt"),
                         [](const auto& tested) {
                           const std::string name = tested.param;
                           return name.substr(0, name.find('.'));
                         });

void expect_formula(Model& model) {
  const at::NoGradGuard no_grad;
  const auto expected = small_model();
  for (const auto& tensors : {expected->parameters(), expected->buffers()})
    for (const auto& named : tensors) testing::fill(named);
  for (const auto member : {&Model::parameters, &Model::buffers}) {
    const auto a = (model.*member)(), b = ((*expected).*member)();
    ASSERT_EQ(a.size(), b.size());
    for (size_t i = 0; i < a.size(); ++i)
      EXPECT_TRUE(at::equal(a[i].tensor, b[i].tensor)) << a[i].name;
  }
}

TEST(Weights, AStateDictIsReadByName) {
  const auto model = small_model();
  const LoadedWeights loaded = load_weights(Env::posix(), kGoldens + "simple_cnn.pt", *model);
  EXPECT_EQ(loaded.taken.size(), model->parameters().size() + model->buffers().size());
  EXPECT_TRUE(loaded.fresh.empty());
  expect_formula(*model);
}

// {"state_dict": {"module.conv1...": ...}, "best": tensor, "epoch": ...}
TEST(Weights, AStateDictInATrainingFileIsFound) {
  const auto model = small_model();
  load_weights(Env::posix(), kGoldens + "training.pt", *model);
  expect_formula(*model);
}

// Safetensors of the small model's tensors after `change`.
class ChangedFile : public ::testing::Test {
 protected:
  template <class Change>
  std::string written(const Change& change) {
    tensors = read_weights(Env::posix(), kGoldens + "simple_cnn.pt");
    change(tensors);
    write_safetensors(Env::posix(), dir / "w.safetensors", tensors, {});
    return dir / "w.safetensors";
  }
  template <class Change>
  std::string refusal(const Change& change) {
    const std::string path = written(change);
    const auto model = small_model();
    const at::Tensor before = model->parameters()[0].tensor.detach().clone();
    const Error error = error_of([&] { load_weights(Env::posix(), path, *model); });
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    EXPECT_EQ(error.where(), path);
    EXPECT_TRUE(at::equal(model->parameters()[0].tensor, before)) << "half loaded";
    return error.reason();
  }
  static NamedTensor& named(std::vector<NamedTensor>& list, const std::string& name) {
    return *std::ranges::find(list, name, &NamedTensor::name);
  }
  static at::Tensor named_value(Model& model, const std::string& name) {
    auto list = model.parameters();
    return named(list, name).tensor.detach();
  }

  TempDir dir;
  std::vector<NamedTensor> tensors;
};

TEST_F(ChangedFile, ACheckpointsWeightsAreFoundAmongOtherTensors) {
  const auto model = small_model();
  load_weights(Env::posix(), written([](auto& list) {
                 for (auto& [name, tensor] : list) name = "model." + name;
                 list.push_back({"optimizer.momentum", at::zeros({3})});
               }),
               *model);
  expect_formula(*model);
}

TEST_F(ChangedFile, MissingUnknownAndReshapedTensorsAreListed) {
  const std::string reason = refusal([](auto& list) {
    named(list, "conv1.conv.weight").name = "stem.weight";
    named(list, "conv2.norm.bias").tensor = at::zeros({5});
  });
  EXPECT_EQ(reason,
            "the weights do not fit the model: of another shape: conv2.norm.bias [5] instead of "
            "[4]; missing: conv1.conv.weight; not in the model: stem.weight");
}

TEST_F(ChangedFile, IntegersForFloatingPointAreRefusedAndViceVersa) {
  const std::string reason = refusal([](auto& list) {
    for (const auto& [name, type] : {std::pair("conv1.conv.weight", at::kBool),
                                     {"fc.weight", at::kChar},
                                     {"conv1.norm.num_batches_tracked", at::kFloat}}) {
      at::Tensor& tensor = named(list, name).tensor;
      tensor = tensor.to(type);
    }
  });
  EXPECT_EQ(reason,
            "the weights do not fit the model: of another type: conv1.conv.weight Bool "
            "instead of Float, fc.weight Char instead of Float, conv1.norm.num_batches_tracked "
            "Float instead of Long");
}

TEST_F(ChangedFile, FloatingPointOfAnySizeIsConverted) {
  for (const auto type : {at::kHalf, at::kBFloat16, at::kDouble}) {
    const auto model = small_model();
    load_weights(Env::posix(), written([&](auto& list) {
                   at::Tensor& tensor = named(list, "fc.weight").tensor;
                   tensor = tensor.to(type);
                 }),
                 *model);
    EXPECT_TRUE(at::equal(named_value(*model, "fc.weight"),
                          named(tensors, "fc.weight").tensor.to(at::kFloat)))
        << type;
  }
}

TEST_F(ChangedFile, ALongListIsShortened) {
  const std::string reason = refusal([](auto& list) {
    for (auto& [name, tensor] : list) name = "x" + name;
  });
  EXPECT_NE(reason.find("missing: conv1.conv.weight, conv1.norm.weight, conv1.norm.bias, "
                        "conv2.conv.weight, conv2.norm.weight, conv2.norm.bias and "),
            std::string::npos)
      << reason;
}

TEST_F(ChangedFile, TheLastLayerIsInitialisedForOtherClasses) {
  const auto model = small_model(7), drawn = small_model(7);
  const LoadedWeights loaded = load_weights(Env::posix(), kGoldens + "simple_cnn.pt", *model);
  EXPECT_EQ(loaded.fresh, (std::vector<std::string>{"fc.weight", "fc.bias"}));
  const auto found = model->parameters(), before = drawn->parameters();
  for (size_t i = 0; i < found.size(); ++i)
    EXPECT_EQ(at::equal(found[i].tensor, before[i].tensor), found[i].name.starts_with("fc."))
        << found[i].name;
}

TEST_F(ChangedFile, TheLastLayerIsInitialisedIfItIsMissing) {
  const auto model = small_model();
  const LoadedWeights loaded = load_weights(
      Env::posix(), written([](auto& list) {
        std::erase_if(list, [](const auto& each) { return each.name.starts_with("fc."); });
      }),
      *model);
  EXPECT_EQ(loaded.fresh, (std::vector<std::string>{"fc.weight", "fc.bias"}));
}

TEST_F(ChangedFile, OnlyTheNumberOfOutputsMayDiffer) {
  EXPECT_NE(refusal([](auto& list) {
              named(list, "fc.weight").tensor = at::zeros({10, 9});
            }).find("fc.weight [10, 9] instead of [10, 8]"),
            std::string::npos);
}

TEST_F(ChangedFile, CountersOfBatchesMayBeMissing) {
  const auto model = small_model();
  load_weights(Env::posix(), written([](auto& list) {
                 std::erase_if(list, [](const auto& each) {
                   return each.name.ends_with("num_batches_tracked");
                 });
               }),
               *model);
  EXPECT_EQ(model->buffers()[2].tensor.item<int64_t>(), 0);
}

TEST_F(ChangedFile, NamesOfOlderTransformersAreSupported) {
  const auto source = small_model(10, "vit_tiny");
  std::vector<NamedTensor> list = source->parameters();
  for (auto& [name, tensor] : list)
    for (const auto& [now, before] :
         {std::pair(".mlp.0.", ".mlp.linear_1."), std::pair(".mlp.3.", ".mlp.linear_2.")})
      if (const size_t at = name.find(now); at != std::string::npos)
        name.replace(at, std::string(now).size(), before);
  write_safetensors(Env::posix(), dir / "vit.safetensors", list, {});
  const auto model = small_model(10, "vit_tiny");
  const LoadedWeights loaded = load_weights(Env::posix(), dir / "vit.safetensors", *model);
  EXPECT_EQ(loaded.taken.size(), list.size());
}

// ---- Files that are refused ---------------------------------------------------------------------

Error refused(const std::string& path) {
  const Error error = error_of([&] { read_weights(Env::posix(), path); });
  EXPECT_EQ(error.where(), path);
  EXPECT_EQ(std::count(error.reason().begin(), error.reason().end(), '\n'), 0);
  return error;
}

constexpr const char* kUnreadable = "not a file of weights that can be read: ";

TEST(RefusedWeights, APickleThatWouldRunCodeIsNamed) {
  for (const char* name : {"harmful.pt", "harmful_legacy.pt"})
    EXPECT_EQ(refused(kGoldens + name).reason(),
              std::string(kUnreadable) + "it asks for posix.system, which no state_dict needs");
  EXPECT_EQ(
      refused(kGoldens + "whole_module.pt").reason(),
      std::string(kUnreadable) + "it asks for model_twins.SimpleCnn, which no state_dict needs");
}

TEST(RefusedWeights, AFileWithoutNamedTensorsIsRefused) {
  EXPECT_EQ(refused(kGoldens + "list.pt").reason(),
            std::string(kUnreadable) + "it is not a dictionary of tensors");
  EXPECT_EQ(refused(kGoldens + "scripted.pt").reason(),
            std::string(kUnreadable) +
                "it is a TorchScript program (model.name=torchscript trains those)");
  EXPECT_EQ(refused(kGoldens + "none.pt").kind(), ErrorKind::kUsage);
}

TEST(RefusedWeights, ATruncatedFileIsAnErrorOfOneLine) {
  const TempDir dir;
  for (const char* name : {"simple_cnn.pt", "legacy.pt"}) {
    const std::string whole = read_text(kGoldens + name);
    for (size_t size = 0; size < whole.size(); size += 61) {
      write_file(dir / "cut.pt", whole.substr(0, size));
      EXPECT_EQ(refused(dir / "cut.pt").kind(), ErrorKind::kRun) << name << " " << size;
    }
  }
}

// The file is opened for its first bytes, then again by its format's reader.
TEST(RefusedWeights, AFileThatCannotBeReadIsARunError) {
  for (const char* name : {"simple_cnn.pt", "legacy.pt"})
    for (const auto& [op, skip] :
         {std::pair(FileOp::kOpen, 0), {FileOp::kOpen, 1}, {FileOp::kRead, 0}}) {
      FaultEnv env(Env::posix());
      env.inject({.match = {op, name}, .skip = uint64_t(skip), .error = EIO});
      const std::string path = kGoldens + name;
      const Error error = error_of([&] { read_weights(env, path); });
      EXPECT_EQ(error.kind(), ErrorKind::kRun) << name << " " << skip;
      EXPECT_EQ(error.where(), path);
    }
}

// An archive of these records, as torch's own writer makes one.
std::string archive(const TempDir& dir, const std::map<std::string, std::string>& records) {
  const std::string path = dir / "made.pt";
  caffe2::serialize::PyTorchStreamWriter writer(path);
  for (const auto& [name, data] : records) writer.writeRecord(name, data.data(), data.size());
  writer.writeEndOfFile();
  return path;
}

// {"w": a tensor of `sizes` and `strides`, pickled tuples, in a storage of four floats}
std::string pickle(const std::string& sizes, const std::string& strides,
                   const std::string& offset) {
  const auto text = [](const std::string& word) {
    return "X" + std::string(1, char(word.size())) + std::string(3, '\0') + word;
  };
  return "\x80\x02}" + text("w") + "ctorch._utils\n_rebuild_tensor_v2\n((" + text("storage") +
         "ctorch\nFloatStorage\n" + text("0") + text("cpu") + "K\4tQ" + offset + sizes + strides +
         "\x89)tRs.";
}

TEST(RefusedWeights, ATensorOutsideItsStorageIsRefused) {
  const TempDir dir;
  const std::string four(16, '\0'), zero("K\0", 2),
      largest("\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f");
  const auto reason = [&](const std::string& text, const std::string& data) {
    return refused(archive(dir, {{"data.pkl", text}, {"data/0", data}})).reason();
  };
  const auto sound = read_weights(
      Env::posix(),
      archive(dir, {{"data.pkl", pickle("K\4\x85", "K\1\x85", zero)}, {"data/0", four}}));
  EXPECT_EQ(sound.at(0).tensor.numel(), 4);
  const std::string outside = "a tensor does not lie within its memory";
  for (const auto& [sizes, strides, offset] :
       {std::array<std::string, 3>{"K\5\x85", "K\1\x85", zero},                // too long
        std::array<std::string, 3>{"K\4\x85", "K\2\x85", zero},                // too wide
        std::array<std::string, 3>{"K\4\x85", "K\1\x85", "K\1"},               // offset too large
        std::array<std::string, 3>{"J\xff\xff\xff\xff\x85", "K\1\x85", zero},  // negative
        std::array<std::string, 3>{largest + largest + "\x86", "K\1K\1\x86", zero},
        std::array<std::string, 3>{"K\2\x85", largest + "\x85", zero},
        std::array<std::string, 3>{"K\1\x85", "K\1\x85", largest},
        std::array<std::string, 3>{"K\2K\2\x86", "K\1\x85", zero}})
    EXPECT_NE(reason(pickle(sizes, strides, offset), four).find(outside), std::string::npos);
  EXPECT_NE(
      reason(pickle("K\5\x85", zero + "\x85", zero), four).find("a tensor repeats its values"),
      std::string::npos);
  EXPECT_NE(reason(pickle("K\4\x85", "K\1\x85", zero), four.substr(1)).find("of another length"),
            std::string::npos);
  EXPECT_NE(refused(archive(dir, {{"data.pkl", pickle("K\4\x85", "K\1\x85", zero)}}))
                .reason()
                .find("data are missing"),
            std::string::npos);
}

TEST(RefusedWeights, BigEndianNumbersAreRefused) {
  const TempDir dir;
  EXPECT_NE(refused(archive(dir, {{"data.pkl", "\x80\x02}."}, {"byteorder", "big"}}))
                .reason()
                .find("not little-endian"),
            std::string::npos);
}

TEST(Weights, ADamagedCheckpointIsRefused) {
  const TempDir dir;
  const std::vector<NamedTensor> tensors = {{"w", at::arange(4, at::kFloat)}};
  const auto read_with = [&](const std::string& format, const std::string& crc) {
    write_safetensors(Env::posix(), dir / "a.safetensors", tensors,
                      {{"format", format}, {"crc32", crc}});
    return read_weights(Env::posix(), dir / "a.safetensors").at(0).tensor;
  };
  EXPECT_TRUE(read_with(kCheckpointFormat, tensors_crc32(tensors)).equal(tensors[0].tensor));
  const Error error = error_of([&] { read_with(kCheckpointFormat, "00000000"); });
  EXPECT_EQ(error.exit_code(), 4);
  EXPECT_NE(error.reason().find("checksum"), std::string::npos);
  EXPECT_NE(error.remedy().find("edited"), std::string::npos);
  EXPECT_TRUE(read_with("pt", "00000000").equal(tensors[0].tensor)) << "from another program";
}

}  // namespace
}  // namespace saturate
