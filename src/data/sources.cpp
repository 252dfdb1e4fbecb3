#include "data/sources.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "data/path_list.h"
#include "data/versioned_source.h"
#include "saturate/data/dataset.h"
#include "saturate/data/error.h"
#include "store/store_env.h"
#include "store/store_url.h"

namespace saturate {
namespace {

constexpr RegistryEntry<DatasetFactory> kSources[] = {
    {"folder",
     "folder:PATH, one sub-folder of .jpg, .png, .webp or .avif files per class; also s3:// and "
     "gs:// URLs",
     open_folder},
    {"masks",
     "masks:PATH[,classes=N], images/ and masks/ of the same names: PNG of class numbers, for "
     "segmentation",
     open_masks},
    {"tar",
     "tar:PATH[,PATH...], uncompressed archives of class folders or WebDataset pairs (KEY.jpg, "
     "KEY.cls), or local folders of archives, read in place; {000..003} in a path is 000, 001, 002 "
     "and 003; URLs as in shard:",
     open_tar},
    {"shard",
     "shard:PATH[,PATH...], files of `saturate data pack`, or folders of them; also http(s)://, "
     "s3:// and gs:// URLs of files",
     open_shard},
    {"lmdb", "lmdb:PATH, an LMDB of `saturate data pack`", open_lmdb},
    {"idx", "idx:IMAGES[,LABELS] or idx:FOLDER[,split=test], the MNIST family, .gz too", open_idx},
    {"cifar", "cifar:FOLDER[,split=test] or cifar:FILE, binary CIFAR-10 or CIFAR-100", open_cifar},
    {"npy",
     "npy:FILE[,FILE...] or npy:FOLDER, arrays [samples, ...] of numpy.save; target=NAME, "
     "fields=NAME+NAME, volume=NAME, lengths=NAME, sequence=NAME+NAME; of tokens vocabulary=N",
     open_npy},
    {"npz", "npz:FILE, arrays of numpy.savez; options as npy", open_npz},
    {"safetensors", "safetensors:FILE, tensors [samples, ...]; options as npy", open_safetensors},
    {"csv",
     "csv:FILE, the rows of a table; target=COLUMN, ignore=COLUMN+COLUMN, fit=FILE, classes=true",
     open_csv},
    {"tokens",
     "tokens:FILE[,FILE...], token numbers of nanoGPT or llm.c; context=N, vocabulary=N, "
     "type=uint32, or uint8: the bytes of a text",
     open_tokens},
    {"split",
     "split:train,1/N,SOURCE and split:held,1/N,SOURCE: a source without every N-th image, or only "
     "those",
     open_split},
    {"synth",
     "synth:KEY=VALUE,..., rendered shapes: size, count, classes, difficulty, seed, split, masks",
     open_synth},
    {"synth-text",
     "synth-text:KEY=VALUE,..., texts of a Markov chain of known entropy: symbols, context, count, "
     "seed, split",
     open_synth_text},
    {"synth-table",
     "synth-table:KEY=VALUE,..., synthetic rows of numbers: count, inputs, outputs, noise, seed, "
     "split",
     open_synth_table},
    {"synth-volume",
     "synth-volume:KEY=VALUE,..., balls and boxes in noise, with labels of voxels: count, size, "
     "noise, seed, split",
     open_synth_volume},
};

// The table, and sources added by programs.
std::vector<RegistryEntry<DatasetFactory>>& all_sources() {
  static std::vector<RegistryEntry<DatasetFactory>> all(std::begin(kSources), std::end(kSources));
  return all;
}

bool is_source(std::string_view scheme) {
  return std::ranges::any_of(all_sources(),
                             [&](const auto& entry) { return entry.name == scheme; });
}

}  // namespace

std::vector<std::string> number_classes(size_t count) {
  const size_t width = std::to_string(count - 1).size();
  std::vector<std::string> names;
  for (size_t i = 0; i < count; ++i) names.push_back(fmt::format("{:0{}}", i, width));
  return names;
}

bool are_numbered(const std::vector<std::string>& classes) {
  for (size_t i = 0; i < classes.size(); ++i)
    if (parsed_number<size_t>(classes[i]) != i) return false;
  return true;
}

std::string_view digits_of(std::string_view name) {
  if (name.empty() || name.find_first_not_of("0123456789") != name.npos) return {};
  return name.substr(std::min(name.find_first_not_of('0'), name.size() - 1));
}

std::vector<int64_t> sort_classes(std::vector<std::string>& names) {
  const std::vector<std::string> given = names;
  std::ranges::sort(names);
  std::vector<int64_t> labels;
  labels.reserve(given.size());
  for (const std::string& name : given)
    labels.push_back(std::ranges::lower_bound(names, name) - names.begin());
  return labels;
}

std::span<const RegistryEntry<DatasetFactory>> dataset_sources() {
  return all_sources();
}

void add_source(std::string_view scheme, std::string_view doc, DatasetFactory open) {
  for (const auto& entry : dataset_sources())
    if (entry.name == scheme)
      fail(ErrorKind::kUsage, "there is a source \"" + std::string(scheme) + ":\" already",
           "add_source", "Give it another scheme");
  all_sources().push_back({scheme, doc, open});
}

std::string without_split(const std::string& uri) {
  if (!uri.starts_with("split:")) return uri;
  const size_t comma = uri.find(','), second = uri.find(',', comma + 1);
  const bool is_whole = comma != uri.npos && second != uri.npos;
  return is_whole ? without_split(uri.substr(second + 1)) : "";
}

std::string scheme_of_source(Env& env, const std::string& uri) {
  std::string scheme = uri.substr(0, uri.find(':'));
  return scheme.size() < uri.size() && is_source(scheme) ? scheme : scheme_of_path(env, uri);
}

namespace {

// The scheme of a list that is given without one, by the name of its first URL.
std::string scheme_of_url(const std::string& list) {
  const auto parts = split_text(list, ',');
  const std::string url = *std::ranges::find_if(parts, is_store_url);
  const std::string name = store_name(url);
  if (name.ends_with('/') && !is_web_url(url)) return "folder";
  for (const char* ending : {"npy", "npz", "safetensors"})
    if (name.ends_with(std::string(".") + ending)) return ending;
  if (name.ends_with(".shard")) return "shard";
  return name.ends_with(".tar") ? "tar" : "";
}

bool is_programs_own(const std::string& uri) {
  return std::ranges::any_of(
      dataset_sources().subspan(std::size(kSources)),
      [&](const auto& entry) { return uri.starts_with(std::string(entry.name) + ":"); });
}

// The paths and options of a source: after its scheme, of a split after its two fields; "" for a
// program's own.
std::string path_of_source(const std::string& uri) {
  if (is_programs_own(uri)) return "";
  if (uri.starts_with("split:")) return path_of_source(without_split(uri));
  const size_t colon = uri.find(':');
  return colon != uri.npos && is_source(uri.substr(0, colon)) ? uri.substr(colon + 1) : uri;
}

// Before any of them is opened, or printed.
void check_urls(Env& env, const std::string& paths) {
  for (const std::string& path : split_text(paths, ','))
    if (is_store_url(path))
      check_url(path);
    else if (!env.exists(path))
      require_known_scheme(path, "data.source");
}

std::unique_ptr<Dataset> open_far(Env& env, const std::string& uri, const StoreOptions& options) {
  const bool is_bare = path_of_source(uri) == uri;
  const std::string scheme = is_bare ? scheme_of_url(uri) : uri.substr(0, uri.find(':'));
  constexpr std::string_view kFar[] = {"shard", "tar",         "folder", "npy",
                                       "npz",   "safetensors", "tokens", "split"};
  if (std::ranges::count(kFar, scheme) == 0)
    fail(ErrorKind::kUsage,
         "only shard:, tar:, folder:, npy:, npz:, safetensors: and tokens: read http(s)://, s3:// "
         "and gs://",
         store_name(path_of_source(uri)),
         "Write shard:URL, tar:URL or another of these; saturate data pack SOURCE --out shard:FILE "
         "makes a shard to upload");
  const auto open = find_entry(dataset_sources(), scheme, "data.source").make;
  const std::string rest = is_bare ? uri : uri.substr(scheme.size() + 1);
  if (dynamic_cast<StoreEnv*>(&env)) return open(env, rest);
  // Its files keep what they need of it.
  StoreEnv with_stores(env, options);
  auto source = open(with_stores, rest);
  return with_versions(std::move(source), with_stores.opened());
}

}  // namespace

bool has_file_per_sample(Env& env, const std::string& uri) {
  const std::string source = without_split(uri);
  const bool is_bare_url = is_store_url(source);
  const std::string scheme = is_bare_url ? scheme_of_url(source) : scheme_of_source(env, source);
  return scheme == "folder" || scheme == "masks";
}

std::unique_ptr<Dataset> open_dataset(Env& env, const std::string& uri, const StoreOptions& store) {
  const std::string paths = path_of_source(uri);
  check_urls(env, paths);
  const auto parts = split_text(paths, ',');
  const bool is_list = paths.size() < uri.size() || is_store_url(uri) || env.exists(parts.front());
  if (is_list && std::ranges::any_of(parts, is_store_url)) return open_far(env, uri, store);
  const size_t colon = uri.find(':');
  const std::string scheme = scheme_of_source(env, uri);
  if (scheme.empty() && colon == std::string::npos)
    fail(ErrorKind::kUsage,
         env.exists(uri) ? "the file's format is not supported"
                         : "there is no such file or folder, and no scheme is named",
         uri,
         "Check the path, or write folder:PATH, tar:PATH, ...: `saturate list sources` prints all");
  const auto& entry =
      find_entry(dataset_sources(), scheme.empty() ? uri.substr(0, colon) : scheme, "data.source");
  return entry.make(env, uri.starts_with(scheme + ":") ? uri.substr(scheme.size() + 1) : uri);
}

}  // namespace saturate
