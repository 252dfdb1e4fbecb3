#include "data/sources.h"

#include "saturate/error.h"

namespace saturate {
namespace {

constexpr RegistryEntry<DatasetFactory> kSources[] = {
    {"folder", "folder:PATH, one sub-folder of .jpg, .jpeg or .png files per class", open_folder},
    {"tar", "tar:PATH[,PATH...], uncompressed archives of class folders, read in place", open_tar},
    {"shard", "shard:PATH[,PATH...], files of `saturate data pack`, or folders of them",
     open_shard},
    {"lmdb", "lmdb:PATH, an LMDB of `saturate data pack`", open_lmdb},
    {"synth", "synth:KEY=VALUE,..., rendered shapes: size, count, classes, difficulty, seed, split",
     open_synth},
};

}  // namespace

std::span<const RegistryEntry<DatasetFactory>> dataset_sources() {
  return kSources;
}

std::unique_ptr<Dataset> open_dataset(Env& env, const std::string& uri) {
  const auto colon = uri.find(':');
  if (colon == std::string::npos)
    fail(ErrorKind::kUsage, "source \"" + uri + "\" names no scheme", "data.source",
         "Write folder:PATH, tar:PATH, ...: `saturate list sources` prints all");
  const auto& entry = find_entry(dataset_sources(), uri.substr(0, colon), "data.source");
  return entry.make(env, uri.substr(colon + 1));
}

}  // namespace saturate
