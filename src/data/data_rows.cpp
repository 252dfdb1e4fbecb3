// The option table's rows for [data]. Adding a key: a member in
// saturate/data_options.h, a row here, and
//   build/saturate list options --markdown > docs/recipe.md
#include <fmt/format.h>

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
      "Copies the sources' samples before the first is used: tmpfs to /dev/shm, FOLDER to a folder "
      "in memory or on a fast disk, whose path must have a /. The copy is removed when the run "
      "ends, however it ends.");
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

OptionRow index_row() {
  const char* key = "data.index";
  OptionRow row = text(
      SATURATE_OPTION_AS(key, data.index.path),
      "Where positions inside JPEG files are kept that data.decode = \"fast\" finds: later epochs "
      "and runs decode only the parts that a crop needs, with the same pixels. auto is a file in "
      "~/.cache/saturate/index (below $XDG_CACHE_HOME if set), PATH another file, written with a "
      "/; off keeps none.");
  row.type = "auto|off|PATH";
  row.set = [=](Recipe& recipe, const OptionValue& value, const std::string& where) {
    const std::string* given = std::get_if<std::string>(&value);
    if (!given || (*given != "auto" && *given != "off" && given->find('/') == std::string::npos))
      fail_option(key, "must be auto, off or a file's path",
                  "Write a path with a /, such as \"/scratch/photos.points\"", where);
    if (given->find("://") != std::string::npos)
      fail_option(key, "must be a file's path, not a URL", "Name a file on a disk of this machine",
                  where);
    if (given->back() == '/')
      fail_option(key, "must be a file's path, not a folder's", "Add a name after the last /",
                  where);
    const IndexMode mode = *given == "auto"  ? IndexMode::kAuto
                           : *given == "off" ? IndexMode::kOff
                                             : IndexMode::kFile;
    recipe.data.index = {mode, mode == IndexMode::kFile ? *given : ""};
  };
  row.get = [](const Recipe& recipe) {
    const IndexOptions& index = recipe.data.index;
    if (index.mode == IndexMode::kAuto) return OptionValue(std::string("auto"));
    if (index.mode == IndexMode::kOff) return OptionValue(std::string("off"));
    const bool is_path = index.path.find('/') != std::string::npos;
    return OptionValue(is_path ? index.path : "./" + index.path);
  };
  return row;
}

std::vector<OptionRow> storage_rows() {
  return {
      cache_row(),
      number(SATURATE_OPTION_AS("data.cache_gb", data.cache.gb), {0, INFINITY}, "GB (1e9 bytes)",
             "Memory budget of data.cache, for training and evaluation together; samples beyond "
             "it are read every time. 0: half of the memory available at the start, divided among "
             "the processes of this machine. Also the disk budget of data.cache_dir; 0: half of "
             "the sum of the free space there and the cache's own size."),
      text(SATURATE_OPTION_AS("data.cache_dir", data.store.cache_dir),
           "Folder on a local disk that keeps what was read of http(s)://, s3:// and gs://, for "
           "later epochs, later runs and all processes of the machine; it may be deleted at any "
           "time. Empty: nothing is kept."),
      number(SATURATE_OPTION_AS("data.timeout_s", data.store.timeout_s), {1, 86400}, "s",
             "Time for reading a part of an object of http(s)://, s3:// or gs://, with all "
             "attempts, before the run fails."),
      integer(SATURATE_OPTION_AS("data.read_ahead_mb", data.store.read_ahead_mb), {1, 1 << 20},
              "MiB",
              "Memory for samples of http(s)://, s3:// and gs:// that are fetched before they are "
              "needed, in each process, for training and evaluation together."),
      stage_row(),
      index_row(),
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
              "Added to the nice level of these threads, as by nice(1), to lower their priority. "
              "-1: 10 if the model trains on the CPU, whose step's threads wait for each other, "
              "else 0."),
      integer(SATURATE_OPTION(data.prefetch), {1, 1024}, "batches",
              "Largest number of batches in flight: being filled, or ready and waiting."),
      choice(SATURATE_OPTION(data.decode),
             std::vector<std::pair<std::string, DecodeMode>>{{"exact", DecodeMode::kExact},
                                                             {"fast", DecodeMode::kFast}},
             "Decoder of images: exact returns Pillow's pixels; fast decodes only the part of a "
             "JPEG that the crop needs and resizes before colour conversion, typically 50 dB from "
             "exact."),
      device_choice(
          SATURATE_OPTION(data.decode_device),
          "Where data.decode = \"fast\" decodes: cuda copies the compressed parts of a JPEG that "
          "a crop needs to the training GPU, which decodes them to the same pixels. It needs "
          "augmentation there, and JPEGs in segments (data pack) or in data.index; the loader's "
          "threads decode all other images. auto is cpu: cuda takes GPU time from training."),
      choice(SATURATE_OPTION(data.on_error),
             std::vector<std::pair<std::string, OnError>>{{"fail", OnError::kFail},
                                                          {"skip", OnError::kSkip}},
             "Reaction to a broken image: fail stops at the first and names it; skip ignores it, "
             "and counts and names it."),
      shuffle_row(),
  };
}

}  // namespace

std::vector<OptionRow> data_rows() {
  return concatenated({source_rows(), storage_rows()});
}

void validate_data(const DataOptions& data, const std::string& where) {
  if (data.cache.mode == CacheMode::kRam && data.cache.form == CacheForm::kDecoded &&
      data.decode == DecodeMode::kFast)
    fail_option("data.cache",
                "= ram:decoded keeps whole images, which data.decode = fast never decodes",
                "Set data.decode=exact, or data.cache=ram", where);
  constexpr double kLeastCacheGb = 0.001;
  if (!data.store.cache_dir.empty() && data.cache.gb > 0 && data.cache.gb < kLeastCacheGb)
    fail_option("data.cache_gb",
                fmt::format("= {} is too little for data.cache_dir", data.cache.gb),
                "Give 0.001 (1 MB) or more, or 0 for half of the free space", where);
  if (data.decode_device == DecodeDevice::kCuda && data.decode != DecodeMode::kFast)
    fail_option("data.decode_device", "= cuda needs data.decode = fast",
                "Set data.decode=fast, or data.decode_device=cpu", where);
}

}  // namespace saturate
