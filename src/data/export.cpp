#include "saturate/export.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "data/progress_meter.h"
#include "data/tar_format.h"
#include "saturate/error.h"
#include "saturate/thread_pool.h"

namespace saturate {
namespace {

// A class name becomes a folder's name, and may come from an archive: it must not lead elsewhere.
void check_classes(const Dataset& dataset) {
  for (const std::string& name : dataset.classes())
    if (name.empty() || name.front() == '.' || name.find('/') != std::string::npos)
      fail(ErrorKind::kData, "class name cannot be a folder's name", name, "Rename the class");
}

std::string sample_path(const Dataset& dataset, size_t index, const Sample& sample) {
  constexpr unsigned char kPngSignature[] = {0x89, 'P', 'N', 'G'};
  const bool png = sample.bytes.size() >= sizeof kPngSignature &&
                   std::memcmp(sample.bytes.data(), kPngSignature, sizeof kPngSignature) == 0;
  std::string digits = std::to_string(index);
  if (digits.size() < 8) digits.insert(0, 8 - digits.size(), '0');
  return dataset.classes()[size_t(sample.label)] + "/" + digits + (png ? ".png" : ".jpg");
}

void write_folder(Env& env, const Dataset& dataset, const std::string& out, int threads,
                  ProgressMeter& meter) {
  if (env.exists(out) && (!env.is_directory(out) || !env.list(out).empty()))
    fail(ErrorKind::kUsage, "folder is not empty", out, "Choose a new one with --out");
  for (const std::string& name : dataset.classes()) env.make_directories(out + "/" + name);
  parallel_for(dataset.size(), threads, [&](size_t i) {
    Sample sample;
    dataset.read(i, sample);
    const auto file = env.open_writable(out + "/" + sample_path(dataset, i, sample));
    file->append(sample.bytes);
    file->close();
    meter.add_one();
  });
}

void append_members(WritableFile& file, const Dataset& dataset, int threads, ProgressMeter& meter) {
  constexpr size_t kChunk = 256;  // samples read ahead and written with one call
  std::array<Sample, kChunk> samples;
  std::vector<std::byte> bytes;
  for (size_t start = 0; start < dataset.size(); start += kChunk) {
    const size_t count = std::min(kChunk, dataset.size() - start);
    parallel_for(count, threads, [&](size_t i) { dataset.read(start + i, samples[i]); });
    bytes.clear();
    for (size_t i = 0; i < count; ++i) {
      const Sample& sample = samples[i];
      const auto header =
          make_tar_header(sample_path(dataset, start + i, sample), sample.bytes.size());
      bytes.insert(bytes.end(), header.begin(), header.end());
      bytes.insert(bytes.end(), sample.bytes.begin(), sample.bytes.end());
      bytes.resize(size_t(tar_padded(bytes.size())));
      meter.add_one();
    }
    file.append(bytes);
  }
  file.append(std::vector<std::byte>(2 * kTarBlock));  // the end marker
}

void write_tar(Env& env, const Dataset& dataset, const std::string& out, int threads,
               ProgressMeter& meter) {
  if (env.exists(out))
    fail(ErrorKind::kUsage, "file exists already", out, "Choose a new one with --out");
  // As write_atomically(), for more than fits in memory.
  const std::string temporary = out + ".tmp-" + std::to_string(::getpid());
  const auto slash = out.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : out.substr(0, slash + 1);
  env.make_directories(folder);
  try {
    const auto file = env.open_writable(temporary);
    append_members(*file, dataset, threads, meter);
    file->sync();
    file->close();
    env.rename(temporary, out);
    env.sync_directory(folder);
  } catch (...) {
    try {
      env.remove(temporary);
    } catch (...) {
      // The first failure is the one worth reporting.
    }
    throw;
  }
}

}  // namespace

void write_dataset(Env& env, const Dataset& dataset, const std::string& out, int threads,
                   const ProgressCallback& progress) {
  check_classes(dataset);
  ProgressMeter meter(progress, dataset.size());
  if (out.ends_with(".tar"))
    write_tar(env, dataset, out, threads, meter);
  else
    write_folder(env, dataset, out, threads, meter);
}

}  // namespace saturate
