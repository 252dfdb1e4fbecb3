#include "data/source_index.h"

#include <algorithm>
#include <map>
#include <utility>

#include "base/files.h"
#include "base/printable.h"
#include "base/thread_pool.h"
#include "data/atomic_file.h"
#include "data/in_order.h"
#include "data/index_folder.h"
#include "data/progress_meter.h"
#include "data/read_sample.h"
#include "data/scratch_pool.h"
#include "data/sources.h"
#include "image/fast_decoder.h"
#include "saturate/data/error.h"

namespace saturate {
namespace {

constexpr uint64_t kLeastIndexBytes = 256 << 10;  // of an automatic file: some 100 photographs
constexpr uint64_t kMostIndexBytes = uint64_t{8} << 30;  // then points not used are removed
// At least this part of the file must be new to be saved after an epoch, and at the end.
constexpr int kSavesAnEpoch = 8, kSavesAtEnd = 64;
constexpr int kPatientTries = 600, kQuietTries = 20;  // of 0.1 s
constexpr int64_t kTendEvery_ns = 5'000'000'000;

}  // namespace

SourceIndex::SourceIndex(Env& env, std::string path, Kind kind, size_t memory)
    : env_(env),
      path_(link_target(std::move(path))),
      kind_(kind),
      memory_(memory),
      points_(kind == Kind::kOff ? 0 : memory) {
  if (path_.empty() || kind_ == Kind::kOff) return;
  IndexState state;
  std::string problem;
  auto file = IndexFile::open(env_, path_, state, problem);
  if (state == IndexState::kOtherFile && kind_ == Kind::kGiven)
    fail(ErrorKind::kUsage, problem, path_,
         "Name a new file, or one written by saturate data index");
  if (!problem.empty())
    print_warning("the index " + path_ + " is not used: " + problem +
                  (state == IndexState::kUnreadable ? "" : ". It will be replaced"));
  if (!file) return;
  if (is_in_index_folder(path_)) mark_index_used(path_);
  in_file_ = file->bytes();
  file_ = std::move(file);
  points_.hand_over(file_);
}

SourceIndex::~SourceIndex() {
  if (is_worthwhile() && (points_.has_wrong() || points_.bytes() * kSavesAtEnd >= in_file_))
    save_or_warn(true);
}

bool SourceIndex::is_worthwhile() const {
  const uint64_t fresh = points_.bytes();
  if (path_.empty() || failed_) return false;
  return points_.has_wrong() ||
         (fresh > 0 && (kind_ == Kind::kGiven || in_file_ + fresh >= kLeastIndexBytes));
}

void SourceIndex::remove(const ScanKey& key) {
  const MutexLock one(saving_);  // use() would miss it
  points_.remove(key);
}

void SourceIndex::begin_epoch() noexcept {
  if (is_worthwhile() && points_.bytes() * kSavesAnEpoch >= in_file_) is_late_ = true;
  int64_t due = tend_at_;
  if (due != INT64_MAX) tend_at_.compare_exchange_strong(due, 0);  // else a thread is in tend()
}

void SourceIndex::tend() noexcept {
  const int64_t now = env_.now_ns();
  int64_t due = tend_at_;
  if (now < due || !tend_at_.compare_exchange_strong(due, INT64_MAX)) return;
  if (is_worthwhile() && (is_late_ || is_memory_short())) save_or_warn(false);
  refresh();
  tend_at_ = env_.now_ns() + kTendEvery_ns;
}

// Uses what other processes have saved.
void SourceIndex::refresh() noexcept {
  if (path_.empty() || kind_ == Kind::kOff || !saving_.try_lock()) return;
  const MutexLock one(saving_, std::adopt_lock);
  try {
    if (file_ ? !file_->is_current(env_, path_) : env_.exists(path_)) use_file();
  } catch (const std::exception&) {  // no memory for it
  }
}

void SourceIndex::save_or_warn(bool patient) noexcept {
  try {
    save(false, patient);
  } catch (const Error& error) {
    const bool is_busy = error.kind() == ErrorKind::kUsage;  // another process saves
    if (is_busy) failed_ = false;
    if (!failed_) {
      is_late_ = true;
      if (!patient) return;
    }
    print_warning("the index " + path_ + " cannot be written: " + error.reason() +
                  (is_busy ? ". Run saturate data index later"
                           : ". Set data.index to another path, or to off"));
  } catch (const std::exception&) {  // no memory for it
  }
}

// Fails with kUsage while another process has it. Null where its file cannot be made: of processes
// that save at the same time the last one's entries stay then.
std::unique_ptr<FileLock> SourceIndex::lock(bool patient) {
  for (int tries = 0;; ++tries) {
    try {
      return env_.lock(path_ + ".lock");
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::kUsage) return nullptr;
      if (!patient || tries == kPatientTries) throw;
      if (tries == kQuietTries)
        print_warning(path_ +
                      ".lock: another process is saving this index; waiting for it, at most 60 s");
    }
    env_.sleep_ns(100'000'000);
  }
}

void SourceIndex::require_writable() {
  if (path_.empty()) return;
  env_.make_directories(parent_folder(path_));
  try {
    const auto held = lock(/*patient=*/false);
    present();
    AtomicFile(env_, path_, AtomicFile::Existing::kReplace);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kUsage) throw;  // else another process writes it
  }
}

// The index at the path; null: nothing that is to be kept. Fails with kRun if it must not be
// replaced.
std::shared_ptr<const IndexFile> SourceIndex::present() {
  IndexState state;
  std::string problem;
  auto file = IndexFile::open(env_, path_, state, problem);
  if (state == IndexState::kUnreadable) failed_ = false;  // a later save may read it
  const bool is_other = state == IndexState::kOtherFile && kind_ == Kind::kGiven;
  if (is_other || state == IndexState::kUnreadable)
    fail(ErrorKind::kRun, problem, path_, "Name a new file in data.index");
  return file;
}

IndexTotals SourceIndex::save(bool prune, bool patient) {
  const MutexLock one(saving_);
  failed_ = true;  // until it has succeeded
  env_.make_directories(parent_folder(path_));
  const auto held = lock(patient);
  const auto old = present();
  if (old) use(old);  // other processes may have added to it
  if (old && points_.bytes() == 0 && !old->has_wrong() && !prune) {
    failed_ = is_late_ = false;
    return {old->size(), old->bytes()};
  }
  const bool full = (old ? old->bytes() : 0) + points_.bytes() > kMostIndexBytes;
  const auto keeps = [&](const IndexRecord& record) {
    const size_t i = old->position(record.key);
    return !old->is_removed(i) && (old->is_used(i) || !(full || prune));
  };
  const auto totals = write_index(env_, path_, points_, old.get(), keeps);
  failed_ = is_late_ = false;
  in_file_ = totals.bytes;
  use_file();
  if (is_in_index_folder(path_)) trim_index_folder(env_, path_);
  return totals;
}

// Opens the file again.
void SourceIndex::use_file() {
  IndexState state;
  std::string problem;
  if (auto file = IndexFile::open(env_, path_, state, problem)) use(std::move(file));
}

// Frees the memory of the points that the file has.
void SourceIndex::use(const std::shared_ptr<const IndexFile>& file) {
  const size_t before = file_ ? file_->size() : 0;
  for (size_t i = 0, at = 0; i < file->size(); ++i) {
    const IndexRecord& record = file->record(i);
    while (at < before && file_->record(at).key < record.key) ++at;
    const bool is_old = at < before && file_->record(at).key == record.key;
    // Entries that this or another process has found meanwhile count as used.
    if (is_old && file_->is_removed(at) && file_->record(at).crc == record.crc)
      file->remove(record.key);
    else if (!is_old || file_->is_used(at) || points_.has(record.key))
      file->mark_used(i);
  }
  points_.hand_over(file);
  in_file_ = file->bytes();
  file_ = file;
}

std::shared_ptr<SourceIndex> open_source_index(Env& env, const std::string& uri,
                                               const IndexOptions& options) {
  using Kind = SourceIndex::Kind;
  if (options.mode == IndexMode::kOff) return std::make_shared<SourceIndex>(env, "", Kind::kOff);
  const bool given = options.mode == IndexMode::kFile;
  const std::string path = given ? path_without_links(options.path) : index_path_of(env, uri);
  static Mutex mutex;
  static std::map<std::pair<Env*, std::string>, std::weak_ptr<SourceIndex>> opened GUARDED_BY(
      mutex);
  const MutexLock lock(mutex);
  std::weak_ptr<SourceIndex>& known = opened[{&env, path}];
  std::shared_ptr<SourceIndex> index = known.lock();
  if (!index)
    known = index = std::make_shared<SourceIndex>(env, path, given ? Kind::kGiven : Kind::kInCache);
  return index;
}

namespace {

// The points of another index.
class BorrowedPoints : public ScanStore {
 public:
  explicit BorrowedPoints(ScanIndex& points) : points_(points) {}
  bool find(const ScanKey& key, std::vector<uint8_t>& coded) const override {
    return points_.find_coded(key, coded);
  }
  bool has(const ScanKey& key, size_t bytes) const override {
    std::vector<uint8_t> coded;
    return find(key, coded) && coded.size() >= bytes;
  }
  void remove(const ScanKey& key) const override { points_.remove(key); }
  bool has_wrong() const override { return false; }  // the lender saves

 private:
  ScanIndex& points_;
};

class IndexedDataset : public WrappedSource<Dataset> {
 public:
  IndexedDataset(std::unique_ptr<Dataset> source, std::shared_ptr<SourceIndex> index)
      : WrappedSource(std::move(source)), index_(std::move(index)) {}
  SourceIndex* source_index() const override { return index_.get(); }

 private:
  const std::shared_ptr<SourceIndex> index_;
};

struct Indexer {
  Sample sample;
  std::unique_ptr<FastDecoder> decoder;
};

}  // namespace

std::shared_ptr<SourceIndex> borrowed_index(Env& env, SourceIndex& other) {
  auto made = std::make_shared<SourceIndex>(env, "", SourceIndex::Kind::kInCache, /*memory=*/0);
  made->points()->hand_over(std::make_shared<BorrowedPoints>(*other.points()));
  return made;
}

std::unique_ptr<Dataset> with_index(std::unique_ptr<Dataset> source,
                                    std::shared_ptr<SourceIndex> index) {
  return std::make_unique<IndexedDataset>(std::move(source), std::move(index));
}

namespace {

// Finds the points of samples [first, end).
void index_samples(const Dataset& dataset, size_t first, size_t end, ScanIndex& index, int threads,
                   InOrder& ahead, ProgressMeter& meter, IndexReport& report) {
  std::atomic<size_t> counts[3] = {};  // by FastDecoder::Points
  Mutex mutex;
  ScratchPool<Indexer> pool;
  parallel_for(end - first, threads, [&](size_t i) {
    const ScratchPool<Indexer>::Lent indexer(pool);
    Sample& sample = indexer->sample;
    if (!indexer->decoder)
      indexer->decoder =
          std::make_unique<FastDecoder>(Decoder::kDefaultMaxPixels, fast_kernels(), &index);
    sample.name.clear();
    try {
      ahead.before(first + i);
      read_sample(dataset, first + i, sample);
      auto points = FastDecoder::Points::kNone;
      if (sample.encoding == SampleEncoding::kEncoded)
        points = indexer->decoder->find_points(sample.bytes, sample.name);
      ++counts[size_t(points)];
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::kData) throw;
      const std::string name =
          sample.name.empty() ? "sample " + std::to_string(first + i) : sample.name;
      const MutexLock lock(mutex);
      report.broken.push_back({name, error.reason()});
    }
    meter.add_one();
  });
  report.without += counts[size_t(FastDecoder::Points::kNone)];
  report.known += counts[size_t(FastDecoder::Points::kKnown)];
  report.found += counts[size_t(FastDecoder::Points::kFound)];
}

}  // namespace

IndexReport index_dataset(const Dataset& dataset, SourceIndex& index, int threads,
                          const ProgressCallback& progress) {
  index.require_writable();
  constexpr size_t kAtOnce = 512;  // samples, whose points fit into what is left of the memory
  IndexReport report;
  report.samples = dataset.size();
  ProgressMeter meter(progress, dataset.size());
  InOrder ahead(dataset);
  ScanIndex& points = *index.points();
  for (size_t first = 0; first < dataset.size(); first += kAtOnce) {
    const size_t end = std::min(dataset.size(), first + kAtOnce);
    index_samples(dataset, first, end, points, threads, ahead, meter, report);
    if (index.is_memory_short()) index.save(false);
  }
  std::sort(report.broken.begin(), report.broken.end(),
            [](const auto& a, const auto& b) { return a.name < b.name; });
  return report;
}

}  // namespace saturate
