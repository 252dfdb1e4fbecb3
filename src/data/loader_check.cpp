#include "data/loader_check.h"

#include "data/require.h"

namespace saturate {

void check_options(const Dataset& dataset, const LoaderOptions& options,
                   const AugmentOptions& augment) {
  require(options.batch > 0, "batch is empty", "train.batch", "Set it to 1 or more");
  require(options.batch >= size_t(options.shard.world), "some processes have no sample",
          "train.batch", "Give each at least one");
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
  require(tensors || augment.size.is_set(), "size of the images is not set", "augment.size",
          "Set it to 1 or more");
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
