// The option table's rows for input: [data], [augment]. Adding a key: a member in
// saturate/data_options.h, a row here, and
//   build/saturate list options --markdown > docs/recipe.md
#include "recipe/compound_rows.h"

namespace saturate {
namespace {

OptionRow shuffle_row() {
  const auto mode = SATURATE_MEMBER(data.shuffle.mode);
  OptionRow row = one_word(
      "data.shuffle",
      {Word("full").sets(mode, ShuffleMode::kFull),
       Word("block")
           .sets(mode, ShuffleMode::kBlock)
           .takes("samples", SATURATE_MEMBER(data.shuffle.block), {1, 1 << 30}),
       Word("none").sets(mode, ShuffleMode::kNone)},
      "The order of an epoch: full is a uniform random permutation; block shuffles blocks of "
      "neighbours (block:128: of 128 samples, the default) and mixes eight of them at a time, for "
      "storage with slow seeks; none keeps the source's order. true and false mean full and none.");
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

OptionRow cache_row() {
  const auto word = [](const char* name, CacheMode mode, CacheForm form) {
    return Word(name)
        .sets(SATURATE_MEMBER(data.cache.mode), mode)
        .sets(SATURATE_MEMBER(data.cache.form), form);
  };
  return one_word(
      "data.cache",
      {Word("none").sets(SATURATE_MEMBER(data.cache.mode), CacheMode::kNone),
       word("ram", CacheMode::kRam, CacheForm::kEncoded),
       word("ram:decoded", CacheMode::kRam, CacheForm::kDecoded),
       word("device", CacheMode::kDevice, CacheForm::kEncoded),
       word("device:decoded", CacheMode::kDevice, CacheForm::kDecoded)},
      "Where samples are kept after they are read: ram keeps what fits the budget in memory; "
      "device reads all of them before the first step and keeps them as bytes, at augment.size, on "
      "the training device, which draws batches from there. ram keeps encoded files; ram:decoded "
      "their pixels, which are many times larger and need no decoding after the first epoch (with "
      "data.decode = \"exact\"). device:decoded keeps whole training images, which augment.crop = "
      "\"random_resized\" needs.");
}

OptionRow stage_row() {
  const char* key = "data.stage";
  OptionRow row = text(
      SATURATE_OPTION_AS(key, data.stage.folder),
      "tmpfs copies the sources' samples to /dev/shm before the first is used, FOLDER to a folder "
      "in memory or on a fast disk, written with a /; the copy is removed when the run ends, "
      "however it ends.");
  row.type = "none|tmpfs|FOLDER";
  row.set = [=](Recipe& recipe, const OptionValue& value, const std::string& where) {
    const std::string* given = std::get_if<std::string>(&value);
    if (!given || (*given != "none" && *given != "tmpfs" && given->find('/') == std::string::npos))
      fail_option(key, "must be none, tmpfs or a folder's path",
                  "Write a folder with a /, such as \"/scratch\"", where);
    recipe.data.stage = {};
    if (*given == "none") return;
    recipe.data.stage.mode = StageMode::kTmpfs;
    if (*given != "tmpfs") recipe.data.stage.folder = *given;
  };
  row.get = [](const Recipe& recipe) {
    const StageOptions& stage = recipe.data.stage;
    if (stage.mode == StageMode::kNone) return OptionValue(std::string("none"));
    if (stage.folder == StageOptions().folder) return OptionValue(std::string("tmpfs"));
    const bool is_path = stage.folder.find('/') != std::string::npos;
    return OptionValue(is_path ? stage.folder : "./" + stage.folder);
  };
  return row;
}

std::vector<OptionRow> storage_rows() {
  return {
      cache_row(),
      number(SATURATE_OPTION_AS("data.cache_gb", data.cache.gb), {0, INFINITY}, "GB (1e9 bytes)",
             "Budget of data.cache, for training and evaluation together; samples beyond it are "
             "read every time. 0: half of the memory available at the start."),
      stage_row(),
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
  };
}

OptionRow crop_row() {
  const auto crop = SATURATE_MEMBER(augment.crop);
  const auto pad = [&](const char* name, PadMode mode) {
    return Word(name)
        .sets(crop, CropKind::kPad)
        .sets(SATURATE_MEMBER(augment.pad_mode), mode)
        .takes("pixels", SATURATE_MEMBER(augment.padding), {0, 1024});
  };
  return one_word(
      "augment.crop",
      {Word("none").sets(crop, CropKind::kNone), Word("center").sets(crop, CropKind::kCenter),
       Word("random_resized").sets(crop, CropKind::kRandomResized), pad("pad", PadMode::kZero),
       pad("pad_reflect", PadMode::kReflect)},
      "Training crop: none resizes the whole image; center as in evaluation; random_resized is "
      "RandomResizedCrop; pad shifts the image by up to 4 pixels (pad:2: by up to 2) and fills the "
      "border with zeros, pad_reflect with the image mirrored.");
}

OptionRow flip_row() {
  OptionRow row = number(
      SATURATE_OPTION(augment.flip), {0, 1}, "probability",
      "Horizontal flip in training. alternate draws an image's flip once, with this probability "
      "(alternate: 0.5), and inverts it every epoch: any two consecutive epochs show both sides, "
      "which learns faster than random flips (arXiv 2404.00498).");
  const Word alternate = Word("alternate")
                             .sets(SATURATE_MEMBER(augment.flip_alternate), true)
                             .takes("probability", SATURATE_MEMBER(augment.flip), {0, 1, true});
  row.type = "number|" + alternate.form();
  row.set = [=, key = row.key, set = row.set](Recipe& recipe, const OptionValue& value,
                                              const std::string& where) {
    recipe.augment.flip_alternate = false;
    const std::string* text = std::get_if<std::string>(&value);
    if (text && text->starts_with(alternate.name))
      return find_word({alternate}, *text, key, where).set(recipe, *text, key, where);
    set(recipe, value, where);
  };
  row.get = [=, get = row.get](const Recipe& recipe) {
    return alternate.describes(recipe) ? OptionValue(alternate.text(recipe)) : get(recipe);
  };
  return row;
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
      crop_row(),
      low_and_high("augment.scale", part("low", SATURATE_MEMBER(augment.scale_min), {0, 1, true}),
                   part("high", SATURATE_MEMBER(augment.scale_max), {0, 1, true}), "share of area",
                   "Smallest and largest crop of random_resized."),
      low_and_high("augment.ratio", part("low", SATURATE_MEMBER(augment.ratio_min), {0, 100, true}),
                   part("high", SATURATE_MEMBER(augment.ratio_max), {0, 100, true}), "width/height",
                   "Narrowest and widest crop of random_resized."),
      flip_row(),
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
  const auto policy = SATURATE_MEMBER(augment.policy);
  return {
      one_word(
          "augment.policy",
          {Word("none").sets(policy, Policy::kNone), Word("trivial").sets(policy, Policy::kTrivial),
           Word("rand")
               .sets(policy, Policy::kRand)
               .takes("operations", SATURATE_MEMBER(augment.policy_ops), {1, 8})
               .takes("magnitude", SATURATE_MEMBER(augment.policy_magnitude), {0, 30})},
          "trivial is TrivialAugment Wide: one of fourteen operations, of random magnitude; "
          "rand is RandAugment: several (1 to 8), of one magnitude (0 to 30); rand alone is "
          "rand:2:9."),
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
      low_and_high("augment.blur_sigma",
                   part("low", SATURATE_MEMBER(augment.blur_sigma_min), {0, 10, true}),
                   part("high", SATURATE_MEMBER(augment.blur_sigma_max), {0, 10, true}), "pixels",
                   "Smallest and largest standard deviation of the blur."),
      number(SATURATE_OPTION(augment.gaussian_noise), {0, 1}, "share of range",
             "Adds Gaussian noise of this standard deviation to each channel of each pixel."),
      number(SATURATE_OPTION(augment.erase), {0, 1}, "probability",
             "Fills a box with augment.mean (Random Erasing, Cutout)."),
      low_and_high("augment.erase_scale",
                   part("low", SATURATE_MEMBER(augment.erase_scale_min), {0, 1, true}),
                   part("high", SATURATE_MEMBER(augment.erase_scale_max), {0, 1, true}),
                   "share of area", "Smallest and largest box of erase."),
      low_and_high("augment.erase_ratio",
                   part("low", SATURATE_MEMBER(augment.erase_ratio_min), {0, 100, true}),
                   part("high", SATURATE_MEMBER(augment.erase_ratio_max), {0, 100, true}),
                   "height/width", "Widest and narrowest box of erase."),
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
    fail_option("data.cache",
                "= ram:decoded keeps whole images, which data.decode = fast never decodes",
                "Set data.decode=exact, or data.cache=ram", where);
}

void validate_augment(const AugmentOptions& augment, const std::string& where) {
  for (double deviation : augment.std)
    if (!(deviation > 0))
      fail_option("augment.std", "must be above 0", "Give the deviation of values 0 to 1", where);
}

}  // namespace saturate
