// The option table's rows for input: [data], [augment]. Adding a key: a member in
// saturate/data_options.h, a row here, and
//   build/saturate list options --markdown > docs/recipe.md
#include "recipe/option_row.h"

namespace saturate {
namespace {

OptionRow shuffle_row() {
  OptionRow row =
      choice(SATURATE_OPTION_AS("data.shuffle", data.shuffle.mode),
             std::vector<std::pair<std::string, ShuffleMode>>{{"full", ShuffleMode::kFull},
                                                              {"block", ShuffleMode::kBlock},
                                                              {"none", ShuffleMode::kNone}},
             "The order of an epoch: full is a uniform random permutation; block shuffles blocks "
             "of neighbours and mixes eight of them at a time, for storage with slow seeks; none "
             "keeps the source's order. true and false mean full and none.");
  row.set = [set = row.set](Recipe& recipe, const OptionValue& value, const std::string& where) {
    // Recipes have booleans, --set has text.
    const bool is_full = value == OptionValue(true) || value == OptionValue(std::string("true"));
    const bool is_none = value == OptionValue(false) || value == OptionValue(std::string("false"));
    if (is_full) return set(recipe, std::string("full"), where);
    if (is_none) return set(recipe, std::string("none"), where);
    set(recipe, value, where);
  };
  return row;
}

std::vector<OptionRow> storage_rows() {
  return {
      choice(
          SATURATE_OPTION_AS("data.cache", data.cache.mode),
          std::vector<std::pair<std::string, CacheMode>>{
              {"none", CacheMode::kNone}, {"ram", CacheMode::kRam}, {"device", CacheMode::kDevice}},
          "Where samples are kept after they are read: ram keeps what fits the budget in memory; "
          "device reads all of them before the first step and keeps them as bytes, at "
          "augment.size, on the training device, which draws batches from there; with augment.crop "
          "= \"random_resized\" it needs data.cache_form = \"decoded\" and keeps whole training "
          "images."),
      choice(SATURATE_OPTION_AS("data.cache_form", data.cache.form),
             std::vector<std::pair<std::string, CacheForm>>{{"encoded", CacheForm::kEncoded},
                                                            {"decoded", CacheForm::kDecoded}},
             "What is cached of an image: the encoded file, or its pixels, which are many times "
             "larger and need no decoding after the first epoch (with data.decode = \"exact\")."),
      number(SATURATE_OPTION_AS("data.cache_gb", data.cache.gb), {0, INFINITY}, "GB (1e9 bytes)",
             "Budget of data.cache, for training and evaluation together; samples beyond it are "
             "read every time. 0: half of the memory available at the start."),
      choice(SATURATE_OPTION_AS("data.stage", data.stage.mode),
             std::vector<std::pair<std::string, StageMode>>{{"none", StageMode::kNone},
                                                            {"tmpfs", StageMode::kTmpfs}},
             "tmpfs copies the sources' samples to data.stage_folder before the first is used; the "
             "copy is removed when the run ends, however it ends."),
      text(SATURATE_OPTION_AS("data.stage_folder", data.stage.folder),
           "Where data.stage copies to: a folder in memory, or on a fast disk."),
  };
}

std::vector<OptionRow> source_rows() {
  return {
      text(SATURATE_OPTION(data.source),
           "Training images as SCHEME:REST, or the path of a folder, an archive or a shard; "
           "`saturate list` prints the schemes."),
      text(SATURATE_OPTION(data.eval_source),
           "Evaluation images, with the same class names; empty: no evaluation."),
      integer(SATURATE_OPTION(data.threads), {0, 1024}, "threads",
              "Threads that read, decode and augment; 0: one per available core."),
      integer(SATURATE_OPTION(data.nice), {-1, 19}, "levels",
              "Lowers the priority of these threads, as nice(1): added to their nice level; -1: 10 "
              "if the model trains on the CPU, as the step's threads wait for each other, else 0."),
      integer(SATURATE_OPTION(data.prefetch), {1, 1024}, "batches",
              "Batches being filled or waiting, at most."),
      choice(SATURATE_OPTION(data.decode),
             std::vector<std::pair<std::string, DecodeMode>>{{"exact", DecodeMode::kExact},
                                                             {"fast", DecodeMode::kFast}},
             "How images are decoded: exact gives Pillow's pixels; fast decodes only the part of a "
             "JPEG that the crop needs and resizes before colour conversion, typically 50 dB from "
             "exact."),
      choice(SATURATE_OPTION(data.on_error),
             std::vector<std::pair<std::string, OnError>>{{"fail", OnError::kFail},
                                                          {"skip", OnError::kSkip}},
             "What a broken image causes: fail stops at the first and names it; skip counts, names "
             "and leaves out."),
      shuffle_row(),
      integer(SATURATE_OPTION_AS("data.shuffle_block", data.shuffle.block), {1, 1 << 30}, "samples",
              "Samples in one block of data.shuffle = \"block\"."),
  };
}

std::vector<OptionRow> crop_rows() {
  return {
      choice(SATURATE_OPTION(augment.device),
             std::vector<std::pair<std::string, AugmentDevice>>{{"auto", AugmentDevice::kAuto},
                                                                {"cpu", AugmentDevice::kCpu},
                                                                {"cuda", AugmentDevice::kCuda}},
             "Where effects and normalisation run: cuda copies cropped bytes, a quarter of the "
             "size of floats, and finishes them in one kernel; auto: on the training GPU if this "
             "build has the kernel."),
      choice(SATURATE_OPTION(augment.output),
             std::vector<std::pair<std::string, PixelType>>{{"fp32", PixelType::kFloat32},
                                                            {"bf16", PixelType::kBfloat16},
                                                            {"fp16", PixelType::kFloat16}},
             "Type of the model's input: bf16 and fp16 halve what is written and copied, for "
             "precision.mode = \"bf16\" and \"bf16-o2\", or \"fp16\", \"fp16-o2\" and \"fp16-o3\", "
             "which round images to it anyway. Only a whitening stem, which reads fp32 images "
             "first, then starts from slightly different filters."),
      integer(SATURATE_OPTION(augment.size), {0, 4096}, "pixels",
              "Side of the square images the model gets; 0: the shorter side of the first training "
              "image."),
      choice(SATURATE_OPTION(augment.crop),
             std::vector<std::pair<std::string, CropKind>>{
                 {"none", CropKind::kNone},
                 {"center", CropKind::kCenter},
                 {"random_resized", CropKind::kRandomResized},
                 {"pad", CropKind::kPad}},
             "Training crop: none resizes the whole image; center as in evaluation; random_resized "
             "is RandomResizedCrop; pad shifts the image by up to augment.padding."),
      integer(SATURATE_OPTION(augment.padding), {0, 1024}, "pixels", "Border of crop = \"pad\"."),
      choice(SATURATE_OPTION(augment.pad_mode),
             std::vector<std::pair<std::string, PadMode>>{{"zero", PadMode::kZero},
                                                          {"reflect", PadMode::kReflect}},
             "What fills the border."),
      number(SATURATE_OPTION(augment.scale_min), {0, 1, true}, "share of area",
             "Smallest crop of random_resized."),
      number(SATURATE_OPTION(augment.scale_max), {0, 1, true}, "share of area",
             "Largest crop of random_resized."),
      number(SATURATE_OPTION(augment.ratio_min), {0, 100, true}, "width/height",
             "Narrowest crop of random_resized."),
      number(SATURATE_OPTION(augment.ratio_max), {0, 100, true}, "width/height",
             "Widest crop of random_resized."),
      number(SATURATE_OPTION(augment.flip), {0, 1}, "probability", "Horizontal flip in training."),
      flag(SATURATE_OPTION(augment.flip_alternate),
           "Draws an image's flip once, with probability augment.flip, and inverts it every epoch: "
           "any two consecutive epochs show both sides, which learns faster than random flips "
           "(arXiv 2404.00498)."),
      number(SATURATE_OPTION(augment.eval_resize), {1, 10}, "times size",
             "Evaluation resizes the shorter side to this many times augment.size, then crops the "
             "centre; 1.143 is ImageNet's 256 for 224."),
      numbers(SATURATE_OPTION(augment.mean), 3,
              "Mean of red, green, blue, for values from 0 to 1."),
      numbers(SATURATE_OPTION(augment.std), 3, "Standard deviation of the same."),
  };
}

std::vector<OptionRow> geometry_rows() {
  return {
      number(SATURATE_OPTION(augment.rotate), {0, 180}, "degrees",
             "Rotates training images by up to this, either way; one resampling, the first effect, "
             "together with shear, translate and zoom. The area outside the image is black."),
      number(SATURATE_OPTION(augment.shear), {0, 80}, "degrees",
             "Shears horizontally by up to this, either way."),
      number(SATURATE_OPTION(augment.translate), {0, 1}, "share of size",
             "Shifts by up to this along each axis, in whole pixels."),
      number(SATURATE_OPTION(augment.zoom), {0, 0.9}, "share",
             "Scales by a factor between 1 - zoom and 1 + zoom."),
  };
}

std::vector<OptionRow> policy_rows() {
  return {
      choice(SATURATE_OPTION(augment.policy),
             std::vector<std::pair<std::string, Policy>>{
                 {"none", Policy::kNone}, {"trivial", Policy::kTrivial}, {"rand", Policy::kRand}},
             "trivial is TrivialAugment Wide: one of fourteen operations, of random magnitude; "
             "rand is RandAugment: several, of one magnitude."),
      integer(SATURATE_OPTION(augment.policy_ops), {1, 8}, "operations",
              "Number of RandAugment operations."),
      integer(SATURATE_OPTION(augment.policy_magnitude), {0, 30}, "of 30",
              "Strength of the RandAugment operations."),
  };
}

std::vector<OptionRow> colour_rows() {
  return {
      number(SATURATE_OPTION(augment.brightness), {0, 10}, "",
             "Brightness factor between 1 - brightness (at least 0) and 1 + brightness. Effects "
             "are applied in this table's order, each rounding to whole levels."),
      number(SATURATE_OPTION(augment.contrast), {0, 10}, "", "The same for contrast."),
      number(SATURATE_OPTION(augment.saturation), {0, 10}, "", "The same for saturation."),
      number(SATURATE_OPTION(augment.hue), {0, 0.5}, "turns",
             "Rotates the hue by up to this, either way."),
      number(SATURATE_OPTION(augment.grey), {0, 1}, "probability", "Converts to greyscale."),
  };
}

std::vector<OptionRow> mix_rows() {
  return {
      number(SATURATE_OPTION(augment.mixup), {0, 1000}, "alpha",
             "Blends training images with others of their batch, by a weight drawn from "
             "Beta(alpha, alpha); 0: off. With cutmix, one of the two is drawn for each batch."),
      number(SATURATE_OPTION(augment.cutmix), {0, 1000}, "alpha",
             "Replaces a box of each image by that of another image of the batch, its area drawn "
             "in the same way; 0: off."),
  };
}

std::vector<OptionRow> blur_and_erase_rows() {
  return {
      number(SATURATE_OPTION(augment.blur), {0, 1}, "probability",
             "Gaussian blur, truncated at three standard deviations."),
      number(SATURATE_OPTION(augment.blur_sigma_min), {0, 10, true}, "pixels",
             "Smallest standard deviation of the blur."),
      number(SATURATE_OPTION(augment.blur_sigma_max), {0, 10, true}, "pixels",
             "Largest standard deviation of the blur."),
      number(SATURATE_OPTION(augment.erase), {0, 1}, "probability",
             "Fills a box with augment.mean (Random Erasing, Cutout)."),
      number(SATURATE_OPTION(augment.erase_scale_min), {0, 1, true}, "share of area",
             "Smallest box of erase."),
      number(SATURATE_OPTION(augment.erase_scale_max), {0, 1, true}, "share of area",
             "Largest box of erase."),
      number(SATURATE_OPTION(augment.erase_ratio_min), {0, 100, true}, "height/width",
             "Widest box of erase."),
      number(SATURATE_OPTION(augment.erase_ratio_max), {0, 100, true}, "height/width",
             "Narrowest box of erase."),
  };
}

}  // namespace

std::vector<OptionRow> data_rows() {
  return concatenated({source_rows(), storage_rows(), crop_rows(), geometry_rows(), policy_rows(),
                       colour_rows(), blur_and_erase_rows(), mix_rows()});
}

void validate_data(const DataOptions& data, const std::string& where) {
  if (data.cache.mode == CacheMode::kRam && data.cache.form == CacheForm::kDecoded &&
      data.decode == DecodeMode::kFast)
    fail_option("data.cache_form",
                "= decoded keeps whole images, which data.decode = fast never decodes",
                "Set data.decode=exact, or data.cache_form=encoded", where);
}

void validate_augment(const AugmentOptions& augment, const std::string& where) {
  const auto in_order = [&](double low, double high, const std::string& name) {
    if (low > high)
      fail_option("augment." + name + "_min", "is above augment." + name + "_max", "Swap them",
                  where);
  };
  in_order(augment.scale_min, augment.scale_max, "scale");
  in_order(augment.ratio_min, augment.ratio_max, "ratio");
  in_order(augment.blur_sigma_min, augment.blur_sigma_max, "blur_sigma");
  in_order(augment.erase_scale_min, augment.erase_scale_max, "erase_scale");
  in_order(augment.erase_ratio_min, augment.erase_ratio_max, "erase_ratio");
  if (augment.flip_alternate && augment.flip == 0)
    fail_option("augment.flip_alternate", "flips images, and augment.flip = 0 does not",
                "Leave it out, or set augment.flip=0.5", where);
  for (double deviation : augment.std)
    if (!(deviation > 0))
      fail_option("augment.std", "must be above 0", "Give the deviation of values 0 to 1", where);
}

}  // namespace saturate
