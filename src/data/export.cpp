#include "data/export.h"

#include <fmt/format.h>

#include <span>

#include "base/thread_pool.h"
#include "data/atomic_file.h"
#include "data/progress_meter.h"
#include "data/read_sample.h"
#include "data/sample_writer.h"
#include "image/codec.h"
#include "saturate/data/error.h"

namespace saturate {
namespace {

void write_file(Env& env, const std::string& path, std::span<const std::byte> bytes) {
  const auto file = env.open_writable(path);
  file->append(bytes);
  file->close();
}

void write_folder(Env& env, const Dataset& dataset, const std::string& out, int threads,
                  const ProgressCallback& progress) {
  check_folder_names(dataset.classes());
  AtomicFolder folder(env, out);
  const std::string root = folder.temporary() + "/";
  for (const std::string& name : dataset.classes()) env.make_directories(root + name);
  ProgressMeter meter(progress, dataset.size());
  parallel_for(dataset.size(), threads, [&](size_t i) {
    Sample sample;
    read_sample(dataset, i, sample);
    make_file(sample);
    write_file(env, root + member_name(dataset.classes(), i, sample), sample.bytes);
    meter.add_one();
  });
  folder.commit();
}

void write_masks(Env& env, const Dataset& dataset, const std::string& out, int threads,
                 const ProgressCallback& progress) {
  AtomicFolder folder(env, out);
  const std::string root = folder.temporary();
  env.make_directories(root + "/images");
  env.make_directories(root + "/masks");
  std::string names;
  for (const std::string& name : dataset.classes()) names += name + "\n";
  write_file(env, root + "/classes.txt", std::as_bytes(std::span(names)));
  ProgressMeter meter(progress, dataset.size());
  parallel_for(dataset.size(), threads, [&](size_t i) {
    Sample sample;
    read_sample(dataset, i, sample);
    make_file(sample);
    Decoder decoder;
    const ImageInfo info = probe_sample(decoder, sample);
    const char* const ending = ending_of(info.format);
    write_file(env, fmt::format("{}/images/{:08}{}", root, i, ending), sample.bytes);
    ClassMap mask;
    decode_mask(sample, info.width, info.height, dataset.classes().size(), mask);
    write_file(env, fmt::format("{}/masks/{:08}.png", root, i),
               encode_png(mask.classes.data(), mask.width, mask.height, 1));
    meter.add_one();
  });
  folder.commit();
}

}  // namespace

void write_dataset(Env& env, const Dataset& dataset, const std::string& out, int threads,
                   const ProgressCallback& progress) {
  if (dataset.has_masks()) {
    if (out.ends_with(".tar"))
      fail(ErrorKind::kUsage, "an archive holds only images, and this source has masks", out,
           "Give --out a folder");
    return write_masks(env, dataset, out, threads, progress);
  }
  if (!out.ends_with(".tar")) return write_folder(env, dataset, out, threads, progress);
  PackOptions options;
  options.out = "tar:" + out;
  options.threads = threads;
  pack_dataset(env, dataset, options, progress);
}

}  // namespace saturate
