// A process's place among others, out of its environment, and its part of the processors.
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "base/visible_gpus.h"
#include "saturate/error.h"
#include "saturate/world.h"
#include "tests/data_testing.h"

namespace saturate {
namespace {

using Variables = std::map<std::string, std::string>;

World world_of(const Variables& variables) {
  return parse_world([&](const char* name) -> const char* {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

std::string error_for(const Variables& variables) {
  return testing::error_of([&] { world_of(variables); }).what();
}

const Variables kTorchrun = {{"RANK", "3"},        {"WORLD_SIZE", "4"},
                             {"LOCAL_RANK", "1"},  {"LOCAL_WORLD_SIZE", "2"},
                             {"MASTER_ADDR", "a"}, {"MASTER_PORT", "1234"}};

TEST(World, IsOneProcessWhereNobodySaysOtherwise) {
  const World world = world_of({});
  EXPECT_EQ(world.size, 1);
  EXPECT_EQ(world.rank, 0);
  EXPECT_EQ(world.told_by, "");
  EXPECT_EQ(world_of({{"RANK", "0"}, {"WORLD_SIZE", "1"}}).size, 1) << "which needs no master";
}

TEST(World, ReadsTorchrunsVariables) {
  Variables variables = kTorchrun;
  World world = world_of(variables);
  EXPECT_EQ(world.rank, 3);
  EXPECT_EQ(world.size, 4);
  EXPECT_EQ(world.local_rank, 1);
  EXPECT_EQ(world.local_size, 2);
  EXPECT_EQ(world.master, "a");
  EXPECT_EQ(world.port, 1234);
  EXPECT_FALSE(world.store_elsewhere);
  variables["TORCHELASTIC_USE_AGENT_STORE"] = "True";
  variables["TORCHELASTIC_RESTART_COUNT"] = "2";
  world = world_of(variables);
  EXPECT_TRUE(world.store_elsewhere);
  EXPECT_EQ(world.attempt, 2);
}

TEST(World, ReadsMpirunsAndSrunsVariables) {
  const World mpi = world_of({{"OMPI_COMM_WORLD_RANK", "1"},
                              {"OMPI_COMM_WORLD_SIZE", "2"},
                              {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                              {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}});
  EXPECT_EQ(mpi.rank, 1);
  EXPECT_EQ(mpi.master, "127.0.0.1") << "all on one machine";
  EXPECT_EQ(mpi.port, 29500);
  Variables slurm = {{"SLURM_PROCID", "5"},
                     {"SLURM_STEP_NUM_TASKS", "8"},
                     {"SLURM_LOCALID", "1"},
                     {"SLURM_STEP_TASKS_PER_NODE", "4(x2)"}};
  EXPECT_NE(error_for(slurm).find("MASTER_ADDR is missing"), std::string::npos);
  slurm["MASTER_ADDR"] = "node0";
  const World world = world_of(slurm);
  EXPECT_EQ(world.rank, 5);
  EXPECT_EQ(world.local_rank, 1);
  EXPECT_EQ(world.local_size, 0);
  EXPECT_EQ(world.master, "node0");
  EXPECT_EQ(world_of({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "8"}}).size, 1)
      << "a batch script is one process";
  const World pmi = world_of(
      {{"PMI_RANK", "0"}, {"PMI_SIZE", "2"}, {"MPI_LOCALRANKID", "0"}, {"MPI_LOCALNRANKS", "2"}});
  EXPECT_EQ(pmi.size, 2);
}

TEST(World, NamesTheVariableThatIsMissingOrWrong) {
  for (const char* missing : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"}) {
    Variables variables = kTorchrun;
    variables.erase(missing);
    const std::string error = error_for(variables);
    EXPECT_NE(error.find(std::string(missing) + " is missing"), std::string::npos) << error;
  }
  for (const auto& [name, value] :
       Variables{{"RANK", "x"}, {"WORLD_SIZE", "0"}, {"MASTER_PORT", "66000"}, {"RANK", "-1"}}) {
    Variables variables = kTorchrun;
    variables[name] = value;
    EXPECT_NE(error_for(variables).find(name + " is \"" + value), std::string::npos);
  }
  Variables variables = kTorchrun;
  variables["RANK"] = "4";
  EXPECT_NE(error_for(variables).find("RANK is 4, and WORLD_SIZE only 4"), std::string::npos);
}

// Two sockets of two cores of two threads, numbered as Linux does.
std::vector<Cpu> eight_cpus() {
  std::vector<Cpu> cpus;
  for (int id = 0; id < 8; ++id) cpus.push_back({id, id % 4 / 2, id % 2});
  return cpus;
}

TEST(CpuParts, KeepCoresAndSocketsTogether) {
  EXPECT_EQ(cpus_of_part(eight_cpus(), 0, 2), (std::vector{0, 4, 2, 6}));
  EXPECT_EQ(cpus_of_part(eight_cpus(), 1, 2), (std::vector{1, 5, 3, 7}));
  EXPECT_EQ(cpus_of_part(eight_cpus(), 3, 4), (std::vector{3, 7}));
}

TEST(CpuParts, ShareOutEveryCpuOnceAndNoneWhereThereAreTooFew) {
  for (int parts = 1; parts <= 8; ++parts) {
    std::multiset<int> all;
    for (int part = 0; part < parts; ++part) {
      const auto own = cpus_of_part(eight_cpus(), part, parts);
      EXPECT_FALSE(own.empty());
      all.insert(own.begin(), own.end());
    }
    EXPECT_EQ(all.size(), 8u) << parts;
  }
  EXPECT_EQ(cpus_of_part(eight_cpus(), 8, 9).size(), 8u) << "they share all";
}

World local(int rank, int count) {
  World world;
  world.rank = world.local_rank = rank;
  world.size = world.local_size = count;
  return world;
}

TEST(VisibleGpu, IsThatOfTheLocalRank) {
  EXPECT_EQ(visible_gpu(local(1, 2), nullptr, 2, true), "1");
  EXPECT_EQ(visible_gpu(local(1, 2), "4,7", 8, true), "7");
  EXPECT_EQ(visible_gpu(local(1, 2), "GPU-a,GPU-b,-1,GPU-c", 8, true), "GPU-b");
  EXPECT_EQ(visible_gpu(local(1, 2), nullptr, 0, true), "1") << "who knows";
  EXPECT_EQ(visible_gpu(local(1, 2), "", 8, true), std::nullopt) << "there are to be none";
  EXPECT_EQ(visible_gpu(local(1, 2), "5", 8, false), std::nullopt) << "srun gave it its own";
}

TEST(VisibleGpu, MoreProcessesThanGpusAreAnErrorOnEachOfThem) {
  for (int rank = 0; rank < 3; ++rank) {
    const Error error = testing::error_of([&] { visible_gpu(local(rank, 3), nullptr, 2, true); });
    EXPECT_EQ(error.exit_code(), 2);
    EXPECT_EQ(error.reason(), "3 processes are too many for 2 GPUs: one each");
    EXPECT_EQ(error.where(), "rank " + std::to_string(rank));
    EXPECT_NE(error.remedy().find("train.device=cpu"), std::string::npos);
  }
  EXPECT_EQ(testing::error_of([&] { visible_gpu(local(1, 2), "0", 8, true); }).exit_code(), 2);
  World unknown = local(2, 4);
  unknown.local_size = 0;
  EXPECT_EQ(testing::error_of([&] { visible_gpu(unknown, "0,1", 8, false); }).exit_code(), 2);
}

}  // namespace
}  // namespace saturate
