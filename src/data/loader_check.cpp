#include "data/loader_check.h"

#include "data/batch_memory.h"
#include "data/require.h"
#include "data/sample_reader.h"

namespace saturate {
namespace {

// Batches have room for images of augment.size.
void check_sizes(const AugmentOptions& augment) {
  require(augment.size.is_set(), "size of the images is not set", "augment.size",
          "Set it to 1 or more");
  for (const SizeChange& change : augment.size_changes)
    require(change.size.is_set() && change.size.height <= augment.size.height &&
                change.size.width <= augment.size.width,
            "a size of size_changes is larger than size, or not set", "augment.size",
            "Set AugmentOptions::size to the last and largest one");
  require(augment.size_changes.empty() || augment.size_changes.back().size == augment.size,
          "the last size of size_changes is not size", "augment.size",
          "Set AugmentOptions::size to the last and largest one");
}

}  // namespace

void check_loader(const Dataset& dataset, const LoaderOptions& options,
                  const AugmentOptions& augment) {
  require(options.batch > 0, "batch is empty", "train.batch", "Set it to 1 or more");
  const Shard& shard = options.shard;
  require(shard.world >= 1 && shard.rank >= 0 && shard.rank < shard.world,
          "rank is not one of 0 to world - 1", "LoaderOptions::shard", "Set them to the Group's");
  require(options.batch >= size_t(shard.world), "some processes have no sample", "train.batch",
          "Give each at least one");
  require(options.threads > 0, "no loader thread", "data.threads", "Set it to 1 or more");
  require(options.nice >= 0, "loader threads cannot have a raised priority", "data.nice",
          "Set it to 0 or more");
  require(options.prefetch > 0, "no batch in flight", "data.prefetch", "Set it to 1 or more");
  const bool places = options.output == BatchOutput::kPlaces;
  require(options.output != BatchOutput::kPlanar || options.type != PixelType::kUint8,
          "bytes are never planar", "LoaderOptions::output", "Ask for kFloat32");
  require(!places || options.held.size() == dataset.size(), "places need every held sample",
          "LoaderOptions::held", "Give one for each sample of the dataset");
  require(!options.packs ||
              (options.output == BatchOutput::kUnfinished && options.decode == DecodeMode::kFast),
          "JPEGs are packed only for unfinished batches of fast decoding", "LoaderOptions::packs",
          "Ask for kUnfinished and kFast");
  require(!options.masks || dataset.has_masks(), "the source has no masks", "data.source",
          "Give masks:PATH, or synth:masks=true,...");
  require(!options.masks || !places, "masks cannot be combined with places", "LoaderOptions::masks",
          "Leave places out");
  const bool tensors = options.has_tensors();
  require(
      tensors != dataset.tensors().empty(),
      tensors ? "the source has images, and no tensors" : "the source has tensors, and no images",
      "data.source", tensors ? "Ask for another output" : "Give a source of images");
  require(!tensors || (augment.mixup == 0 && augment.cutmix == 0), "tensors cannot be mixed",
          "augment.mixup", "Set augment.mixup=0 and augment.cutmix=0");
  if (!tensors) check_sizes(augment);
  require(augment.policy_ops <= 8, "more operations than an EffectList has room for",
          "augment.policy", "Give rand 8 operations or less");
  require(tensors || augment.crop != CropKind::kRandom, "is for volumes", "augment.crop=random",
          "Give augment.crop=random_resized");
  require(tensors || !augment.contrast_gamma, "is for volumes", "augment.contrast=gamma",
          "Give a number");
  make_normalize(augment);  // fails here, and not on a thread, which could not report it
  require(options.shuffle.block > 0, "no sample in a block", "data.shuffle", "Set it to 1 or more");
  require(dataset.size() <= UINT32_MAX, "source has more than 2^32 - 1 samples", "data.source",
          "Split it");
}

}  // namespace saturate
