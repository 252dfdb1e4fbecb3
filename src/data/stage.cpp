// A source's samples copied into one shard on faster storage before the first is used.
//
// The shard is unlinked as soon as it is open: the system frees it when the dataset is closed or
// the process ends for any reason. Files of a process killed while copying carry its PID, and are
// removed by the next one.
#include <linux/magic.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <utility>

#include "base/cancel.h"
#include "base/cgroup.h"
#include "base/files.h"
#include "base/local_processes.h"
#include "base/thread_pool.h"
#include "data/atomic_file.h"
#include "data/in_order.h"
#include "data/ordered.h"
#include "data/progress_meter.h"
#include "data/read_sample.h"
#include "data/sample_writer.h"
#include "saturate/data/error.h"
#include "saturate/data/input.h"

namespace saturate {
namespace {

const std::string kPrefix = "saturate-stage-";  // then process, counter, host, and what follows
// Upper bound for a sample's record, name and alignment padding in the shard.
constexpr uint64_t kOverhead = 512;

class StagedDataset : public Dataset {
 public:
  StagedDataset(std::unique_ptr<Dataset> source, std::unique_ptr<Dataset> copy, size_t prefix,
                std::vector<char> lost)
      : source_(std::move(source)),
        copy_(std::move(copy)),
        prefix_(prefix),
        lost_(std::move(lost)) {}

  size_t size() const override { return copy_->size(); }
  const std::vector<std::string>& classes() const override { return copy_->classes(); }
  const std::vector<TensorField>& tensors() const override { return copy_->tensors(); }
  std::string warning() const override { return source_->warning(); }
  std::string note() const override { return source_->note(); }
  std::vector<ObjectVersion> versions() const override { return source_->versions(); }
  size_t length(size_t index) const override { return copy_->length(index); }
  uint64_t bytes(size_t index) const override { return copy_->bytes(index); }
  void read(size_t index, Sample& out) const override {
    if (lost_[index]) return source_->read(index, out);
    copy_->read(index, out);
    out.name.erase(0, prefix_);
  }

 private:
  const std::unique_ptr<Dataset> source_, copy_;
  const size_t prefix_;           // bytes in a sample's name before the source's own
  const std::vector<char> lost_;  // unreadable samples: reading them from the source reports why
};

void remove_leftovers(Env& env, const std::string& folder) {
  for (const FileInfo& info : env.list(folder)) {
    const bool is_ours = info.name.find(host_ending() + ".shard") != std::string::npos;
    if (info.is_directory || !info.name.starts_with(kPrefix) || !is_ours) continue;
    if (begins_with_ended_process(info.name.substr(kPrefix.size())))
      discard(env, folder + "/" + info.name);
  }
}

// Bytes of a folder's file system: free ones, and all.
struct Room {
  uint64_t free = UINT64_MAX, all = UINT64_MAX;
};

// Files on tmpfs take memory, of which its size may promise more than there is.
Room room_in(Env& env, const std::string& folder) {
  Room room{.free = env.free_bytes(folder)};
  struct statfs about {};
  if (::statfs(folder.c_str(), &about) != 0 || about.f_blocks == 0) return room;
  room.all = uint64_t(about.f_blocks) * uint64_t(about.f_bsize);
  if (about.f_type != TMPFS_MAGIC) return room;
  return {std::min(room.free, available_memory()), std::min(room.all, cgroup_memory().limit)};
}

void require_space(Env& env, const Dataset& source, const std::string& uri,
                   const std::string& folder, int threads) {
  std::atomic<uint64_t> needed{0};
  parallel_for(source.size(), threads, [&](size_t i) {
    if (is_cancelled()) fail_cancelled("data.stage");
    try {
      needed += source.bytes(i) + kOverhead;
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::kData) throw;  // otherwise reported when it is read
    }
  });
  const Room room = room_in(env, folder);
  // Each process makes its own. How much the others have copied already is not known.
  const uint64_t copies = local_processes();
  const bool fits = needed <= room.free;
  if (fits && needed <= room.all / copies) return;
  const auto megabytes = [](uint64_t bytes) { return std::to_string(bytes / 1'000'000) + " MB"; };
  fail(ErrorKind::kUsage,
       uri + " takes " + megabytes(needed) +
           (fits ? " for each of " + std::to_string(copies) + " processes" : "") + ", and " +
           megabytes(fits ? room.all : room.free) + (fits ? " are there" : " are free"),
       folder, "Set data.stage to a folder with more space, or to none");
}

struct Copied {
  Sample sample;
  bool lost = false;
};

std::vector<char> copy_samples(const Dataset& source, SampleWriter& writer, int threads,
                               const ProgressCallback& progress) {
  std::vector<char> lost(source.size());
  ProgressMeter meter(progress, source.size());
  const size_t tensor_bytes = bytes_of(std::span(source.tensors()));
  InOrder ahead(source);
  const auto produce = [&](size_t i, Copied& out) {
    if (is_cancelled()) fail_cancelled("data.stage");
    out.lost = false;
    ahead.before(i);
    try {
      read_sample(source, i, out.sample);
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::kData) throw;
      out = {{}, true};
      if (tensor_bytes == 0) return;
      out.sample.encoding = SampleEncoding::kTensors;  // of a size that the shard accepts
      out.sample.bytes.resize(tensor_bytes);
    }
  };
  const auto consume = [&](size_t i, Copied& copied) {
    writer.append(copied.sample, source.length(i));
    lost[i] = copied.lost;
    meter.add_one();
  };
  for_each_ordered<Copied>(source.size(), threads, produce, consume);
  writer.finish();
  return lost;
}

}  // namespace

std::unique_ptr<Dataset> stage_dataset(Env& env, std::unique_ptr<Dataset> source,
                                       const std::string& uri, const StageOptions& options,
                                       int threads, const ProgressCallback& progress) {
  if (options.mode == StageMode::kNone) return source;
  if (source->has_masks())
    fail(ErrorKind::kUsage, uri + " has masks, which a staged copy does not hold", "data.stage",
         "Set data.stage=none; data.cache=ram keeps all of a sample");
  static std::atomic<int> counter{0};
  const std::string& folder = options.folder;
  if (!env.is_directory(folder))
    fail(ErrorKind::kUsage, "no such folder", folder, "Create it, or change data.stage");
  remove_leftovers(env, folder);
  require_space(env, *source, uri, folder, threads);
  const std::string path = folder + "/" + kPrefix + std::to_string(::getpid()) + "-" +
                           std::to_string(counter++) + host_ending() + ".shard";
  const struct Nameless {
    Env& env;
    const std::string& path;
    ~Nameless() { discard(env, path); }
  } nameless{env, path};
  auto lost = copy_samples(*source, *write_shard(env, path, *source), threads, progress);
  auto copy = open_dataset(env, "shard:" + path);
  return std::make_unique<StagedDataset>(std::move(source), std::move(copy), path.size() + 1,
                                         std::move(lost));
}

}  // namespace saturate
