// The option table's rows for [augment], and their checks. Adding a key: a member in
// saturate/data_options.h, a row here, and
//   build/saturate list options --markdown > docs/recipe.md
#include "base/text.h"
#include "recipe/compound_rows.h"

namespace saturate {
namespace {

constexpr Range kSides = {1, 4096};  // pixels

[[noreturn]] void fail_size(const std::string& problem, const std::string& where) {
  fail_option("augment.size", problem,
              "Write it as 224, as [224, 320] (height, width), or as [\"0:128\", \"6:224x320\"]: "
              "128 from epoch 0 on, 224x320 from epoch 6 on",
              where);
}

int side_of(double number, const std::string& where) {
  if (!kSides.contains(number) || number != std::floor(number))
    fail_size(fmt::format("has {}, and a side has {} pixels", number, kSides.text()), where);
  return int(number);
}

// "6:160" or "6:160x192", height first.
SizeChange parsed_change(const std::string& text, const std::string& where) {
  const auto parts = split_text(text, ':');
  std::vector<std::string> sides;
  if (parts.size() == 2) sides = split_text(trimmed(parts[1]), 'x');
  const auto epoch = parsed_number<int>(trimmed(parts[0]));
  std::vector<int> pixels;
  for (const std::string& side : sides)
    if (const auto number = parsed_number<int>(trimmed(side)))
      pixels.push_back(side_of(*number, where));
  if (!epoch || *epoch < 0 || pixels.empty() || pixels.size() > 2 || pixels.size() != sides.size())
    fail_size("has no epoch and size in \"" + text + "\"", where);
  return {*epoch, {pixels.front(), pixels.back()}};
}

std::vector<SizeChange> parsed_changes(const std::vector<std::string>& texts,
                                       const std::string& where) {
  std::vector<SizeChange> changes;
  for (const std::string& text : texts) {
    const SizeChange next = parsed_change(text, where);
    if (changes.empty() && next.epoch != 0) fail_size("does not begin with epoch 0", where);
    if (!changes.empty()) {
      const SizeChange& last = changes.back();
      if (next.epoch <= last.epoch) fail_size("has epochs that do not increase", where);
      if (next.size.height < last.size.height || next.size.width < last.size.width)
        fail_size("shrinks from " + text_of(last.size) + " to " + text_of(next.size) +
                      "; the last size has to be the largest, as evaluation takes it",
                  where);
    }
    changes.push_back(next);
  }
  return changes;
}

// An integer: a square, [height, width], or a list of "EPOCH:SIZE".
void set_size(Recipe& recipe, const OptionValue& value, const std::string& where) {
  AugmentOptions& augment = recipe.augment;
  augment.size_changes.clear();
  if (const auto* texts = std::get_if<std::vector<std::string>>(&value)) {
    augment.size_changes = parsed_changes(*texts, where);
    augment.size = augment.size_changes.back().size;
    if (augment.size_changes.size() == 1) augment.size_changes.clear();
  } else if (const auto* side = std::get_if<int64_t>(&value)) {
    augment.size = *side == 0 ? 0 : side_of(double(*side), where);
  } else {
    std::vector<double> sides;
    if (const auto* given = std::get_if<std::vector<double>>(&value)) sides = *given;
    if (const auto* own = std::get_if<std::vector<int64_t>>(&value))  // size_value()'s
      sides.assign(own->begin(), own->end());
    if (sides.size() != 2) fail_size("is not a size", where);
    augment.size = {side_of(sides.front(), where), side_of(sides.back(), where)};
  }
}

OptionValue size_value(const Recipe& recipe) {
  const AugmentOptions& augment = recipe.augment;
  std::vector<std::string> texts;
  texts.reserve(augment.size_changes.size());
  for (const SizeChange& change : augment.size_changes)
    texts.push_back(fmt::format("{}:{}", change.epoch, text_of(change.size)));
  if (!texts.empty()) return texts;
  if (augment.size.is_square()) return int64_t{augment.size.height};
  return std::vector<int64_t>{augment.size.height, augment.size.width};
}

OptionRow size_row() {
  return {"augment.size",
          "integer|list of numbers|list of text",
          "pixels",
          "0 to 4096",
          "Size of the images that the model gets: the side of a square, or [height, width]; 0: a "
          "square of the shorter side of the first training image. [\"0:128\", \"6:160\", "
          "\"12:192x224\"]: 128 pixels from epoch 0 on, 160 from epoch 6 on, and so on; evaluation "
          "has the last and largest size.",
          false,
          set_size,
          size_value};
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
       Word("random_resized").sets(crop, CropKind::kRandomResized),
       Word("random").sets(crop, CropKind::kRandom), pad("pad", PadMode::kZero),
       pad("pad_reflect", PadMode::kReflect), Word("letterbox").sets(crop, CropKind::kLetterbox)},
      "Training crop: none resizes the whole image, and changes its ratio; center as in "
      "evaluation; random_resized is RandomResizedCrop; random, for volumes only, is a box of "
      "augment.size voxels a side; pad shifts the image by up to 4 pixels (pad:2: by up to 2) and "
      "fills the border with zeros, pad_reflect with the image mirrored; letterbox keeps the "
      "ratio: it resizes the whole image to fit inside augment.size, and fills the rest with "
      "augment.mean, in evaluation too.");
}

// A number, or a word that stores one and sets a flag.
OptionRow number_or_word(OptionRow row, const Word& word) {
  row.type = "number|" + word.form();
  row.set = [=, key = row.key, set = row.set](Recipe& recipe, const OptionValue& value,
                                              const std::string& where) {
    for (const auto& clear : word.clear) clear(recipe);
    const std::string* text = std::get_if<std::string>(&value);
    if (text && text->starts_with(word.name))
      return find_word({word}, *text, key, where).set(recipe, *text, key, where);
    set(recipe, value, where);
  };
  row.get = [=, get = row.get](const Recipe& recipe) {
    return word.describes(recipe) ? OptionValue(word.text(recipe)) : get(recipe);
  };
  return row;
}

OptionRow flip_row() {
  return number_or_word(
      number(
          SATURATE_OPTION(augment.flip), {0, 1}, "probability",
          "Horizontal flip in training; volumes are flipped along each axis. alternate draws an "
          "image's flip once, with this probability (alternate: 0.5), and inverts it every epoch: "
          "any two consecutive epochs show both sides, which learns faster than random flips "
          "(arXiv 2404.00498)."),
      Word("alternate")
          .sets(SATURATE_MEMBER(augment.flip_alternate), true)
          .takes("probability", SATURATE_MEMBER(augment.flip), {0, 1, true}));
}

OptionRow contrast_row() {
  return number_or_word(
      number(SATURATE_OPTION(augment.contrast), {0, 10}, "",
             "The same for contrast. gamma:0.5, for volumes only, instead raises values to a "
             "power between 1 / 1.5 and 1.5, on a scale from 0 (the smallest) to 1 (the largest)."),
      Word("gamma")
          .sets(SATURATE_MEMBER(augment.contrast_gamma), true)
          .takes("exponent", SATURATE_MEMBER(augment.contrast), {0, 10, true}));
}

std::vector<OptionRow> crop_rows() {
  return {
      device_choice(
          SATURATE_OPTION(augment.device),
          "Where effects and normalisation run: cuda copies cropped bytes, a quarter of the "
          "size of floats, and finishes them in one kernel; auto: on the training GPU if this "
          "build has the kernel. Volumes likewise: cuda copies them whole if they are rotated, "
          "sheared or zoomed, else cropped."),
      choice(SATURATE_OPTION(augment.output),
             std::vector<std::pair<std::string, PixelType>>{{"fp32", PixelType::kFloat32},
                                                            {"bf16", PixelType::kBfloat16},
                                                            {"fp16", PixelType::kFloat16}},
             "Type of the model's input: bf16 and fp16 halve what is written and copied, for "
             "precision.mode = \"bf16\" and \"bf16-o2\", or \"fp16\", \"fp16-o2\" and \"fp16-o3\", "
             "which round images to it anyway. Only a whitening stem, which reads fp32 images "
             "first, then starts from slightly different filters."),
      size_row(),
      crop_row(),
      low_and_high("augment.scale", part("low", SATURATE_MEMBER(augment.scale_min), {0, 1, true}),
                   part("high", SATURATE_MEMBER(augment.scale_max), {0, 1, true}), "share of area",
                   "Smallest and largest crop of random_resized."),
      low_and_high("augment.ratio", part("low", SATURATE_MEMBER(augment.ratio_min), {0, 100, true}),
                   part("high", SATURATE_MEMBER(augment.ratio_max), {0, 100, true}), "width/height",
                   "Narrowest and widest crop of random_resized."),
      flip_row(),
      number(SATURATE_OPTION(augment.eval_resize), {1, 10}, "times size",
             "Evaluation resizes images to cover this many times augment.size, then crops the "
             "centre; 1.143 is ImageNet's 256 for 224."),
      numbers(SATURATE_OPTION(augment.mean), 3,
              "Mean of red, green, blue, for values from 0 to 1."),
      numbers(SATURATE_OPTION(augment.std), 3, "Standard deviation of the same."),
  };
}

std::vector<OptionRow> geometry_rows() {
  return {
      number(SATURATE_OPTION(augment.rotate), {0, 180}, "degrees",
             "Largest rotation of training images, in both directions. Rotation, shear, translate "
             "and zoom are one resampling, the first effect. The area outside the image is black."),
      number(SATURATE_OPTION(augment.shear), {0, 80}, "degrees",
             "Largest horizontal shear, in both directions."),
      number(SATURATE_OPTION(augment.translate), {0, 1}, "share of width, height",
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
          "trivial is TrivialAugment Wide: one of fourteen operations, of random magnitude; rand "
          "is RandAugment: several (1 to 8), of one magnitude (0 to 30); rand alone is rand:2:9."),
  };
}

std::vector<OptionRow> colour_rows() {
  return {
      number(SATURATE_OPTION(augment.brightness), {0, 10}, "",
             "Brightness factor between 1 - brightness (at least 0) and 1 + brightness. Effects "
             "are applied in this table's order, each rounding to whole levels."),
      contrast_row(),
      number(SATURATE_OPTION(augment.saturation), {0, 10}, "", "The same for saturation."),
      number(SATURATE_OPTION(augment.hue), {0, 0.5}, "turns",
             "Largest rotation of the hue, in both directions."),
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

OptionRow blur_row() {
  OptionRow row =
      part_list("augment.blur",
                {part("probability", SATURATE_MEMBER(augment.blur), {0, 1}),
                 part("smallest sigma", SATURATE_MEMBER(augment.blur_sigma_min), {0, 10, true}),
                 part("largest sigma", SATURATE_MEMBER(augment.blur_sigma_max), {0, 10, true})},
                1, "",
                "Gaussian blur, truncated at three standard deviations: its probability, then the "
                "range of its standard deviation in pixels (0.1, 2).");
  row.set = [key = row.key, set = row.set](Recipe& recipe, const OptionValue& value,
                                           const std::string& where) {
    set(recipe, value, where);
    const AugmentOptions& given = recipe.augment;
    if (given.blur_sigma_min > given.blur_sigma_max)
      fail_option(key, "has the smallest sigma above the largest",
                  fmt::format("Write it as [{}, {}, {}]", given.blur, given.blur_sigma_max,
                              given.blur_sigma_min),
                  where);
  };
  return row;
}

std::vector<OptionRow> blur_and_erase_rows() {
  return {
      blur_row(),
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

std::vector<OptionRow> augment_rows() {
  return concatenated({crop_rows(), geometry_rows(), policy_rows(), colour_rows(),
                       blur_and_erase_rows(), mix_rows()});
}

void validate_augment(const AugmentOptions& augment, const std::string& where) {
  for (double deviation : augment.std)
    if (!(deviation > 0))
      fail_option("augment.std", "must be above 0", "Give the deviation of values 0 to 1", where);
}

}  // namespace saturate
