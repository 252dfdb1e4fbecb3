// Telemetry of the system and of a GPU, counted operations, and their records.
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <ctime>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

#include "base/thread_pool.h"
#include "record/metrics.h"
#include "record/nvml.h"
#include "record/system_reader.h"
#include "record/telemetry_log.h"
#include "record/telemetry_mean.h"
#include "saturate/model.h"
#include "tests/data_testing.h"
#include "tests/fault_env.h"
#include "tests/paths.h"
#include "tests/trainer_testing.h"
#include "trace/flop_counter.h"

namespace saturate {
namespace {

using nlohmann::json;
using testing::quiet_options;
using testing::read_text;
using testing::TempDir;
using testing::write_file;

TEST(ProcFiles, StorageCountsPhysicalReadsAndWrites) {
  const auto found = parse_proc_io(
      "rchar: 100\nwchar: 200\nsyscr: 1\nsyscw: 2\nread_bytes: 4096\nwrite_bytes: 8192\n"
      "cancelled_write_bytes: 0\n");
  ASSERT_TRUE(found);
  EXPECT_EQ(found->read, 4096);
  EXPECT_EQ(found->written, 8192);
  EXPECT_FALSE(parse_proc_io(""));
  EXPECT_FALSE(parse_proc_io("read_bytes: 1\n"));
}

const char* const kNetDev =
    "Inter-|   Receive                                                |  Transmit\n"
    " face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs\n"
    "    lo: 5000 10 0 0 0 0 0 0 5000 10 0 0 0 0 0 0\n"
    "  eth0: 1000 10 0 0 0 0 0 0 300 10 0 0 0 0 0 0\n"
    "wlan0:2000 10 0 0 0 0 0 0 40 10 0 0 0 0 0 0\n";

TEST(ProcFiles, NetworkIsAllInterfacesExceptLoopback) {
  const auto found = parse_net_dev(kNetDev);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->received, 3000);
  EXPECT_EQ(found->sent, 340);
  EXPECT_FALSE(parse_net_dev("nonsense\n"));
  EXPECT_EQ(parse_statm("900 25 3 1 0 4 0\n", 4096), 25 * 4096);
  EXPECT_FALSE(parse_statm("", 4096));
}

TEST(SystemReader, RatesAreOverTheTimeBetweenReadings) {
  const TempDir dir;
  FaultEnv env(Env::posix());
  env.use_fake_clock();
  const auto write = [&](int64_t read, int64_t written) {
    write_file(dir / "self/io", "read_bytes: " + std::to_string(read) +
                                    "\nwrite_bytes: " + std::to_string(written) + "\n");
  };
  write(1000, 0);
  write_file(dir / "self/statm", "9 2 0 0 0 0 0\n");
  SystemReader reader(env, dir.path());
  write(5000, 200);
  env.sleep_ns(2'000'000'000);
  const Telemetry found = reader.read();
  EXPECT_EQ(found.disk_read_per_s, 2000);
  EXPECT_EQ(found.disk_write_per_s, 100);
  EXPECT_GT(found.rss_bytes, 0);
  EXPECT_FALSE(found.net_receive_per_s) << "the file does not exist";
  EXPECT_FALSE(reader.read().cores) << "no time has passed";
}

TEST(SystemReader, ReadsThisProcess) {
  const int64_t begin_ns = Env::posix().now_ns();
  SystemReader reader(Env::posix());
  const std::clock_t begin = std::clock();
  while (std::clock() - begin < CLOCKS_PER_SEC / 10) {
  }
  const Telemetry found = reader.read();
  const double wall_s = double(Env::posix().now_ns() - begin_ns) * 1e-9;
  ASSERT_TRUE(found.cores);
  EXPECT_GT(*found.cores, 0.05 / wall_s) << "of 0.1 s, less the resolution of a coarse clock";
  EXPECT_LT(*found.cores, available_cores() + 1);
  EXPECT_GT(found.rss_bytes, 1 << 20);
}

TEST(TelemetryMean, EachFieldIsOverTheReadingsThatHaveIt) {
  TelemetryMean mean;
  Telemetry reading;
  reading.cores = 1;
  reading.throttle_reasons = "heat";
  mean.add(reading);
  reading.cores = 2;
  reading.gpu_busy = 0.5;
  mean.add(reading);
  EXPECT_EQ(mean.mean().cores, 1.5);
  EXPECT_EQ(mean.mean().gpu_busy, 0.5);
  EXPECT_FALSE(mean.mean().gpu_power_w);
  EXPECT_EQ(mean.mean().throttle_reasons, "heat");
  EXPECT_LE(telemetry_fields().size(), 32u) << "the capacity of a mean";
}

TEST(Nvml, AnAbsentOrFailingLibraryIsNoGpu) {
  EXPECT_EQ(Nvml::open(0, "", "libno-such-library.so.1"), nullptr);
  setenv("FAKE_NVML_BROKEN", "1", 1);
  EXPECT_EQ(Nvml::open(0, "", testing::kFakeNvml), nullptr);
  unsetenv("FAKE_NVML_BROKEN");
  EXPECT_EQ(Nvml::open(7, "", testing::kFakeNvml), nullptr) << "the GPU does not exist";
}

// The whole GPU's values would include other processes'.
TEST(Nvml, AGpuThatIsDividedIntoInstancesIsNoGpu) {
  setenv("FAKE_NVML_MIG", "1", 1);
  EXPECT_EQ(Nvml::open(1, "", testing::kFakeNvml), nullptr);
  EXPECT_NE(Nvml::open(0, "", testing::kFakeNvml), nullptr) << "one that cannot be divided";
  EXPECT_NE(Nvml::open(0, "MIG-second", testing::kFakeNvml), nullptr) << "the instance itself";
  EXPECT_EQ(Nvml::open(1, "", testing::kFakeNvml), nullptr);
  unsetenv("FAKE_NVML_MIG");
}

TEST(Nvml, ReadsSupportedValuesOnly) {
  const auto first = Nvml::open(0, "", testing::kFakeNvml);
  ASSERT_NE(first, nullptr);
  Telemetry found;
  first->read(found);
  EXPECT_EQ(found.gpu_busy, 0.05);
  EXPECT_EQ(found.gpu_memory_bytes, 30e9);
  EXPECT_EQ(found.gpu_clock_mhz, 1755);
  EXPECT_FALSE(found.gpu_power_w) << "not supported";
  EXPECT_EQ(found.gpu_throttled, 0) << "an idle GPU's clocks are low without throttling";
  EXPECT_EQ(found.throttle_reasons, "");

  const auto second = Nvml::open(1, "", testing::kFakeNvml);
  found = {};
  second->read(found);
  EXPECT_EQ(found.gpu_busy, 0.87);
  EXPECT_EQ(found.gpu_memory_busy, 0.41);
  EXPECT_EQ(found.gpu_power_w, 412.5);
  EXPECT_EQ(found.gpu_celsius, 71);
  EXPECT_EQ(found.gpu_throttled, 1);
  EXPECT_EQ(found.throttle_reasons, "power cap, heat");
}

TEST(Nvml, ActivityIsBetweenTwoReadings) {
  const auto old = Nvml::open(0, "", testing::kFakeNvml);
  const auto gpu = Nvml::open(1, "", testing::kFakeNvml);
  Telemetry found;
  gpu->read(found);
  EXPECT_FALSE(found.gpu_sm_active) << "the first reading has no predecessor";
  for (int i = 0; i < 3; ++i) {
    gpu->read(found);
    EXPECT_EQ(found.gpu_sm_active, 0.625);
  }
  for (int i = 0; i < 2; ++i) {
    old->read(found);
    EXPECT_FALSE(found.gpu_sm_active) << "not supported";
  }
}

TEST(Nvml, FollowsCudasNumberingOfTheGpus) {
  const auto name = [](int gpu, const char* visible) {
    const auto found = Nvml::open(gpu, visible, testing::kFakeNvml);
    return found ? found->name() : "none";
  };
  EXPECT_EQ(name(0, ""), "NVIDIA Nothing 1");
  EXPECT_EQ(name(0, "1,0"), "NVIDIA H100 80GB HBM3");
  EXPECT_EQ(name(1, "1,0"), "NVIDIA Nothing 1");
  EXPECT_EQ(name(0, "GPU-second"), "NVIDIA H100 80GB HBM3");
  EXPECT_EQ(name(2, "1,0"), "none");
  EXPECT_EQ(name(0, "nonsense"), "none");
}

TEST(PeakRate, DependsOnTheGpuAndThePrecision) {
  const std::string h100 = "NVIDIA H100 80GB HBM3";
  EXPECT_EQ(peak_flop_per_s(h100, PrecisionMode::kBf16), 989.5e12);
  EXPECT_EQ(peak_flop_per_s(h100, PrecisionMode::kTf32), 494.5e12);
  EXPECT_EQ(peak_flop_per_s(h100, PrecisionMode::kFp32), 67e12);
  EXPECT_EQ(peak_flop_per_s("NVIDIA H100 PCIe", PrecisionMode::kFp16), 756.5e12);
  EXPECT_EQ(peak_flop_per_s("NVIDIA A100-SXM4-80GB", PrecisionMode::kBf16), 312e12);
  EXPECT_EQ(peak_flop_per_s("NVIDIA A10", PrecisionMode::kBf16), 125e12);
  EXPECT_FALSE(peak_flop_per_s("NVIDIA A1000", PrecisionMode::kBf16));
  EXPECT_FALSE(peak_flop_per_s("", PrecisionMode::kBf16));
}

// ---- operations ---------------------------------------------------------------------------------

struct Counted {
  int64_t forward, whole;
};

// Operations per image.
Counted count(const std::string& name, int size, int classes) {
  ModelOptions options;
  options.name = name;
  const auto model = make_model(options, {classes, size, Env::posix()});
  model->set_training(true);
  const at::Tensor images = at::rand({2, 3, size, size});
  Counted counted;
  const FlopCounter counter;
  const at::Tensor logits = model->forward(images);
  counted.forward = counter.flop() / 2;
  logits.sum().backward();
  counted.whole = counter.flop() / 2;
  return counted;
}

TEST(FlopCounter, ResNet18At224EqualsTorchvisions) {
  // torchvision's ResNet18_Weights.IMAGENET1K_V1.meta["_ops"]: 1.814 billion multiply-adds.
  constexpr int64_t kMultiplyAdds = 1'814'073'344;
  // The first convolution, whose input needs no gradient: 112 x 112 x 64 x 3 x 7 x 7.
  constexpr int64_t kFirst = 118'013'952;
  const Counted found = count("resnet18", 224, 1000);
  EXPECT_EQ(found.forward, 2 * kMultiplyAdds);
  EXPECT_EQ(found.whole, 2 * (3 * kMultiplyAdds - kFirst));
}

TEST(FlopCounter, ATransformersAttentionCounts) {
  // vit_tiny at 32 pixels: L = 5 tokens of D = 192 channels, 12 blocks, ten classes. In
  // multiplications, by hand:
  constexpr int64_t kPatches = 4 * 192 * 3 * 16 * 16;
  constexpr int64_t kLinear = 12 * (4 + 8) * 5 * 192 * 192 + 192 * 10;
  constexpr int64_t kProduct = 12 * 5 * 5 * 192;  // of queries with keys, or of scores with values
  const Counted found = count("vit_tiny", 32, 10);
  EXPECT_EQ(found.forward, 2 * (kPatches + kLinear + 2 * kProduct));
  // Backward recomputes the scores, and the images need no gradient.
  EXPECT_EQ(found.whole, 2 * (2 * kPatches + 3 * kLinear + 7 * kProduct));
}

TEST(FlopCounter, CountsOnlyItsOwnThreadWhileItExists) {
  const at::Tensor a = at::ones({3, 4}), b = at::ones({4, 5});
  {
    const FlopCounter counter;
    const FlopCounter second;
    at::mm(a, b);
    std::thread([&] { at::mm(a, b); }).join();
    EXPECT_EQ(counter.flop(), 2 * 3 * 4 * 5);
    EXPECT_EQ(second.flop(), 0);
  }
  const FlopCounter after;
  at::mm(a, b);
  EXPECT_EQ(after.flop(), 120);
}

// ---- a run --------------------------------------------------------------------------------------

TEST(TelemetryLog, RecordsAGpusReadingsAndTheStepsOperations) {
  TelemetryLog::Sources sources;
  sources.hz = 100;
  sources.queue = [] { return 3.0; };
  sources.gpu = 1;
  sources.precision = PrecisionMode::kBf16;
  sources.nvml_library = testing::kFakeNvml;
  TelemetryLog log(Env::posix(), std::move(sources));
  log.set_flop_per_sample(1e12);
  Telemetry found;
  for (int i = 0; i < 6000 && !found.gpu_busy; ++i) {  // a minute, on a slow machine
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    found = log.take(100, 2);
  }
  ASSERT_TRUE(found.gpu_busy);
  EXPECT_NEAR(*found.gpu_busy, 0.87, 1e-9);  // a mean of readings
  EXPECT_EQ(found.queue, 3);
  EXPECT_EQ(found.tflop_per_s, 50);
  EXPECT_DOUBLE_EQ(*found.peak_share, 50 / 989.5);
  EXPECT_EQ(found.joules_per_sample, 412.5 * 2 / 100);
  EXPECT_EQ(log.whole().tflop_per_s, 50);
}

Recipe watched_recipe() {
  return testing::small_recipe("[watch]\nevery = 1\ntelemetry_hz = 100\ncsv = true\n");
}

std::vector<json> records_of(const std::string& folder, const std::string& kind) {
  std::istringstream lines(read_text(folder + "/metrics.jsonl"));
  std::vector<json> records;
  for (std::string line; std::getline(lines, line);)
    if (const json record = json::parse(line); record["kind"] == kind) records.push_back(record);
  return records;
}

TEST(TelemetryOfARun, IsInEveryRecordAndUnknownIsNull) {
  const TempDir dir;
  const TrainResult result =
      Trainer(Env::posix(), watched_recipe(), quiet_options(dir.path())).run();
  ASSERT_TRUE(result.telemetry);
  // Two matrices: 768 x hidden and hidden x classes; the first one's input needs no gradient.
  EXPECT_GT(result.telemetry->tflop_per_s, 0);
  const auto steps = records_of(dir.path(), "step");
  ASSERT_EQ(steps.size(), 8u);
  for (const auto& record : steps) {
    const json& telemetry = record["telemetry"];
    EXPECT_GT(telemetry["tflop_per_s"], 0);
    EXPECT_TRUE(telemetry["peak_share"].is_null());
    EXPECT_TRUE(telemetry["gpu_busy"].is_null());
    EXPECT_TRUE(telemetry["throttle_reasons"].is_null());
  }
  EXPECT_EQ(records_of(dir.path(), "end").at(0)["telemetry"]["tflop_per_s"],
            *result.telemetry->tflop_per_s);
  EXPECT_NE(read_text(dir / "metrics.csv").find(",tflop_per_s,"), std::string::npos);
  EXPECT_NE(format_summary(result).find(" TFLOP/s (n/a of the device's peak)"), std::string::npos)
      << format_summary(result);
}

TEST(TelemetryOfARun, IsAbsentIfOff) {
  const TempDir dir;
  Recipe recipe = watched_recipe();
  recipe.watch.telemetry_hz = 0;
  const TrainResult result = Trainer(Env::posix(), recipe, quiet_options(dir.path())).run();
  EXPECT_FALSE(result.telemetry);
  EXPECT_TRUE(records_of(dir.path(), "step").at(0)["telemetry"].is_null());
  EXPECT_EQ(format_summary(result).find("TFLOP/s"), std::string::npos);
}

TEST(TelemetryOfARun, IsReadBackAsWritten) {
  MetricsRecord record;
  record.kind = "step";
  record.telemetry.emplace();
  record.telemetry->cores = 1.5;
  record.telemetry->gpu_power_w = 300;
  record.telemetry->throttle_reasons = "heat";
  const std::string line = to_json_line(record);
  EXPECT_EQ(to_json_line(*from_json_line(line)), line);
}

}  // namespace
}  // namespace saturate
