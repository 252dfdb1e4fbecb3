// A complete run from C++, like `saturate train`, with settings made by the program.
//   train_recipe RECIPE.toml FOLDER
#include <cstdio>

#include "saturate/data/error.h"
#include "saturate/trainer.h"

int run(const std::string& path, const std::string& folder) {
  saturate::Recipe recipe = saturate::load_recipe(saturate::Env::posix(), path);
  recipe.data.source = "synth:size=32,count=1000,difficulty=0.1,split=train";
  recipe.data.eval_source = "synth:size=32,count=500,difficulty=0.1,split=test";
  recipe.train.epochs = 1;

  saturate::TrainerOptions options;
  options.out = folder;
  saturate::Trainer trainer(saturate::Env::posix(), recipe, options);
  const saturate::TrainResult result = trainer.run();
  std::printf("%s", saturate::format_summary(result).c_str());
  std::printf("best weights: step %lld; last checkpoint: %s\n",
              static_cast<long long>(result.best.best_step), result.checkpoint.c_str());
  return 0;
}

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: train_recipe RECIPE.toml FOLDER\n");
    return 2;
  }
  try {
    return run(argv[1], argv[2]);
  } catch (const saturate::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return error.exit_code();
  }
}
