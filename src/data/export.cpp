#include "saturate/export.h"

#include "data/progress_meter.h"
#include "data/sample_writer.h"
#include "saturate/error.h"
#include "saturate/thread_pool.h"

namespace saturate {
namespace {

void write_folder(Env& env, const Dataset& dataset, const std::string& out, int threads,
                  const ProgressCallback& progress) {
  check_folder_names(dataset.classes());
  if (env.exists(out) && (!env.is_directory(out) || !env.list(out).empty()))
    fail(ErrorKind::kUsage, "folder is not empty", out, "Choose a new one with --out");
  for (const std::string& name : dataset.classes()) env.make_directories(out + "/" + name);
  ProgressMeter meter(progress, dataset.size());
  parallel_for(dataset.size(), threads, [&](size_t i) {
    Sample sample;
    dataset.read(i, sample);
    make_file(sample);
    const auto file = env.open_writable(out + "/" + member_name(dataset.classes(), i, sample));
    file->append(sample.bytes);
    file->close();
    meter.add_one();
  });
}

}  // namespace

void write_dataset(Env& env, const Dataset& dataset, const std::string& out, int threads,
                   const ProgressCallback& progress) {
  if (!out.ends_with(".tar")) return write_folder(env, dataset, out, threads, progress);
  PackOptions options;
  options.out = "tar:" + out;
  options.threads = threads;
  pack_dataset(env, dataset, options, progress);
}

}  // namespace saturate
