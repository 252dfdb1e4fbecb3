// The processors and the GPU of each of several processes.
#include <gtest/gtest.h>

#include <numeric>
#include <set>

#include "reduce/binding.h"
#include "saturate/data/error.h"
#include "tests/data_testing.h"

namespace saturate {
namespace {

// Two sockets of two cores of two threads, numbered like Linux does.
std::vector<Cpu> eight_cpus() {
  std::vector<Cpu> cpus;
  for (int id = 0; id < 8; ++id) cpus.push_back({id, id % 4 / 2, id % 2});
  return cpus;
}

TEST(CpuParts, KeepCoresAndSocketsTogether) {
  EXPECT_EQ(cpus_of_rank(eight_cpus(), 0, 2), (std::vector{0, 4, 2, 6}));
  EXPECT_EQ(cpus_of_rank(eight_cpus(), 1, 2), (std::vector{1, 5, 3, 7}));
  EXPECT_EQ(cpus_of_rank(eight_cpus(), 3, 4), (std::vector{3, 7}));
}

TEST(CpuParts, AssignEveryCpuOnceAndNothingIfThereAreTooFew) {
  for (int parts = 1; parts <= 8; ++parts) {
    std::multiset<int> all;
    for (int part = 0; part < parts; ++part) {
      const auto own = cpus_of_rank(eight_cpus(), part, parts);
      EXPECT_FALSE(own.empty());
      all.insert(own.begin(), own.end());
    }
    EXPECT_EQ(all.size(), 8u) << parts;
  }
  EXPECT_EQ(cpus_of_rank(eight_cpus(), 8, 9).size(), 8u) << "they share all";
}

std::vector<int> range(int first, int count) {
  std::vector<int> ids(size_t(count), 0);
  std::iota(ids.begin(), ids.end(), first);
  return ids;
}

// Eight GPUs and two sockets of 16 processors, the GPUs of the second socket first.
std::vector<Gpu> eight_gpus() {
  std::vector<Gpu> gpus;
  for (int i = 0; i < 8; ++i) {
    const std::string number = std::to_string(i);
    gpus.push_back({"GPU-" + number + number + number, range(i < 4 ? 16 : 0, 16)});
  }
  return gpus;
}

std::vector<std::vector<int>> parts_of_32(int parts) {
  std::vector<std::vector<int>> all;
  for (int part = 0; part < parts; ++part) all.push_back(range(32 / parts * part, 32 / parts));
  return all;
}

TEST(GpusNear, AreThoseOfTheProcessorsNode) {
  EXPECT_EQ(gpus_near(parts_of_32(2), eight_gpus()), (std::vector<size_t>{4, 0}));
  EXPECT_EQ(gpus_near(parts_of_32(8), eight_gpus()), (std::vector<size_t>{4, 5, 6, 7, 0, 1, 2, 3}));
}

TEST(GpusNear, AreDistinctAndNearIfPossible) {
  const auto all = eight_gpus();
  const std::vector<Gpu> of_second(all.begin(), all.begin() + 4);
  EXPECT_EQ(gpus_near(parts_of_32(4), of_second), (std::vector<size_t>{2, 3, 0, 1}))
      << "the second socket's processes come first";
  EXPECT_EQ(gpus_near(parts_of_32(3), std::vector<Gpu>(3)), (std::vector<size_t>{0, 1, 2}))
      << "the node is unknown";
  EXPECT_EQ(gpus_near({range(0, 10), range(10, 10)}, {{"", range(0, 12)}, {"", range(12, 8)}}),
            (std::vector<size_t>{0, 1}))
      << "each node has enough";
}

TEST(GpusOfMachine, AreOrderedByAddress) {
  const testing::TempDir dir;
  const std::string gpus = dir / "proc/driver/nvidia/gpus/", devices = dir / "sys/bus/pci/devices/";
  testing::write_file(gpus + "0000:9b:00.0/information",
                      "Model: \t\t NVIDIA\nGPU UUID: \t GPU-b\nBus Type: \t PCIe\n");
  testing::write_file(gpus + "0000:1b:00.0/information", "Model: \t\t NVIDIA\n");
  testing::write_file(devices + "0000:9b:00.0/local_cpulist", "4-5,8\n");
  testing::write_file(devices + "0000:1b:00.0/local_cpulist", "7-\n");
  const auto found = gpus_of_machine(dir / ".");
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[0].uuid, "");
  EXPECT_TRUE(found[0].near.empty()) << "no list";
  EXPECT_EQ(found[1].uuid, "GPU-b");
  EXPECT_EQ(found[1].near, (std::vector{4, 5, 8}));
  EXPECT_TRUE(gpus_of_machine(dir / "nowhere").empty());
  testing::write_file(gpus + "0000:9b:00.0/information",
                      "GPU UUID: \t GPU-b\nDevice Minor: \t 3\n");
  EXPECT_EQ(gpus_of_machine(dir / ".").size(), 1u) << "a container lists those of its host";
  testing::write_file(dir / "dev/nvidia3", "");
  EXPECT_EQ(gpus_of_machine(dir / ".").size(), 2u);
}

World local(int rank, int count) {
  World world;
  world.rank = world.local_rank = rank;
  world.size = world.local_size = count;
  return world;
}

GpuChoice launched(const char* given, size_t present) {
  return {.given = given, .present = std::vector<Gpu>(present), .cpus = {}, .one_list = true};
}

TEST(VisibleGpu, FollowsTheLocalRankByDefault) {
  EXPECT_EQ(visible_gpu(local(1, 2), launched(nullptr, 2)), "1");
  EXPECT_EQ(visible_gpu(local(1, 2), launched("4,7", 8)), "7");
  EXPECT_EQ(visible_gpu(local(1, 2), launched("GPU-a,GPU-b,-1,GPU-c", 8)), "GPU-b");
  EXPECT_EQ(visible_gpu(local(1, 2), launched(nullptr, 0)), "1") << "the node is unknown";
  EXPECT_EQ(visible_gpu(local(1, 2), launched("", 8)), std::nullopt) << "no GPU is allowed";
  GpuChoice own = launched("5", 8);
  own.one_list = false;
  EXPECT_EQ(visible_gpu(local(1, 2), own), std::nullopt) << "srun assigned one";
}

TEST(VisibleGpu, IsNearTheProcessorsIfTheirNodeIsKnown) {
  GpuChoice choice = launched(nullptr, 0);
  choice.present = eight_gpus();
  choice.cpus = parts_of_32(2);
  EXPECT_EQ(visible_gpu(local(0, 2), choice), "GPU-444");
  EXPECT_EQ(visible_gpu(local(1, 2), choice), "GPU-000");
  choice.given = "GPU-1,GPU-6";
  EXPECT_EQ(visible_gpu(local(0, 2), choice), "GPU-6") << "an abbreviated id";
  choice.given = "1,6";
  EXPECT_EQ(visible_gpu(local(0, 2), choice), "1") << "CUDA may number them differently";
  choice.by_address = true;
  EXPECT_EQ(visible_gpu(local(0, 2), choice), "6");
  choice.given = "1,12";
  EXPECT_EQ(visible_gpu(local(0, 2), choice), "12") << "an id that is not shown has no node";
  EXPECT_EQ(visible_gpu(local(1, 2), choice), "1");
}

TEST(VisibleGpu, IsSharedByProcessesInTurn) {
  const auto turns = [](const char* given, size_t present) {
    GpuChoice choice = launched(given, present);
    choice.may_share = true;
    return choice;
  };
  for (int rank = 0; rank < 2; ++rank) EXPECT_EQ(visible_gpu(local(rank, 2), turns("0", 8)), "0");
  for (int rank = 0; rank < 5; ++rank)
    EXPECT_EQ(visible_gpu(local(rank, 5), turns(nullptr, 2)), rank % 2 == 0 ? "0" : "1") << rank;
  EXPECT_EQ(visible_gpu(local(1, 2), turns("4,7,5", 8)), "7") << "one each if they suffice";
  GpuChoice near = turns(nullptr, 0);
  near.present = eight_gpus();
  near.present = {near.present[0], near.present[4]};
  near.cpus = parts_of_32(4);
  EXPECT_EQ(visible_gpu(local(0, 4), near), near.present[1].uuid) << "still of its node";
  EXPECT_EQ(visible_gpu(local(3, 4), near), near.present[0].uuid);
  EXPECT_EQ(visible_gpu(local(1, 2), turns("", 8)), std::nullopt) << "no GPU is allowed";
}

TEST(VisibleGpu, MoreProcessesThanGpusAreAnErrorOnEachOfThem) {
  for (int rank = 0; rank < 3; ++rank) {
    const Error error =
        testing::error_of([&] { visible_gpu(local(rank, 3), launched(nullptr, 2)); });
    EXPECT_EQ(error.exit_code(), 2);
    EXPECT_EQ(error.reason(), "3 processes for 2 GPUs: each needs a separate one");
    EXPECT_EQ(error.where(), "rank " + std::to_string(rank));
    EXPECT_NE(error.remedy().find("distributed.backend=gloo"), std::string::npos);
    EXPECT_NE(error.remedy().find("train.device=cpu"), std::string::npos);
  }
  EXPECT_EQ(testing::error_of([&] { visible_gpu(local(1, 2), launched("0", 8)); }).exit_code(), 2);
  World unknown = local(2, 4);
  unknown.local_size = 0;
  GpuChoice own = launched("0,1", 8);
  own.one_list = false;
  EXPECT_EQ(testing::error_of([&] { visible_gpu(unknown, own); }).exit_code(), 2);
}

}  // namespace
}  // namespace saturate
