// A process's rank and world from its environment, and its share of the processors.
#include <gtest/gtest.h>

#include <map>

#include "saturate/data/error.h"
#include "saturate/data/world.h"
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

TEST(World, IsOneProcessByDefault) {
  const World world = world_of({});
  EXPECT_EQ(world.size, 1);
  EXPECT_EQ(world.rank, 0);
  EXPECT_EQ(world.told_by, "");
  EXPECT_EQ(world_of({{"RANK", "0"}, {"WORLD_SIZE", "1"}}).size, 1)
      << "one process needs no master";
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
  variables["RANK"] = "0";
  variables["WORLD_SIZE"] = "1";
  EXPECT_EQ(world_of(variables).attempt, 2) << "a single process is restarted too";
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

TEST(World, AProcessWithoutALocalRankIsItsMachinesFirst) {
  Variables variables = kTorchrun;
  variables.erase("LOCAL_RANK");
  variables.erase("LOCAL_WORLD_SIZE");
  const World world = world_of(variables);
  EXPECT_EQ(world.rank, 3);
  EXPECT_EQ(world.local_rank, 0);
  EXPECT_EQ(world.local_size, 0) << "others may have been started by hand";
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

}  // namespace
}  // namespace saturate
