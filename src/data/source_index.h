// The index of the JPEGs of a source: in memory, and in a file between runs (data.index).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "data/index_file.h"
#include "image/scan_index.h"
#include "saturate/data/data_options.h"
#include "saturate/data/dataset.h"
#include "saturate/data/input.h"

namespace saturate {

// For any number of threads.
class SourceIndex {
 public:
  enum class Kind {
    kOff,      // no index at all
    kInCache,  // a file that is of no use is replaced, and a small index not written
    kGiven     // fails with kUsage if the path is that of another file
  };
  // `path`: of its file, or a link to it; empty: only in memory. A damaged file is reported, not
  // used, and replaced; one that cannot be read is left as it is.
  // `memory`: bytes of points that are not in the file.
  SourceIndex(Env& env, std::string path, Kind kind, size_t memory = ScanIndex::kDefaultLimit);
  // Saves if a 64th or more is new.
  ~SourceIndex();
  SourceIndex(const SourceIndex&) = delete;
  SourceIndex& operator=(const SourceIndex&) = delete;

  // Null if the index is off.
  ScanIndex* points() { return kind_ == Kind::kOff ? nullptr : &points_; }
  // Called before an epoch, whose first tend() then saves if there is much that is new.
  void begin_epoch() noexcept;
  // Called now and then during an epoch by the loader's threads: saves in one of them, if no other
  // process is saving, what begin_epoch() has found or if memory is short; uses what others have
  // saved. If the file cannot be read, a later call tries again.
  void tend() noexcept;
  bool is_due() const { return env_.now_ns() >= tend_at_; }
  bool is_memory_short() const { return points_.bytes() > memory_ / 2; }
  // Removes an entry that decoding has shown to be wrong, also from the file when it is next saved.
  void remove(const ScanKey& key);
  // Adds new entries to the file; with `prune`, removes those that this process has neither found
  // nor used, except what others have added since. Other processes add in turn: `patient` waits for
  // them, up to 60 s, and says so after 2 s. Fails with kRun, and with kUsage if another process
  // still has the file.
  IndexTotals save(bool prune, bool patient = true);
  // Fails with kRun if save() could not create its file.
  void require_writable();

 private:
  bool is_worthwhile() const;
  void save_or_warn(bool patient) noexcept;
  std::unique_ptr<FileLock> lock(bool patient);
  void refresh() noexcept;
  std::shared_ptr<const IndexFile> present();
  void use_file() NEEDS_LOCK(saving_);
  void use(const std::shared_ptr<const IndexFile>& file) NEEDS_LOCK(saving_);

  Env& env_;
  const std::string path_;
  const Kind kind_;
  const size_t memory_;
  ScanIndex points_;
  Mutex saving_;
  std::shared_ptr<const IndexFile> file_ GUARDED_BY(saving_);  // as points_ uses it; null: none
  std::atomic<uint64_t> in_file_{0};                           // bytes
  std::atomic<bool> failed_{false};                            // the last save(): none follows
  std::atomic<bool> is_late_{false};                           // tend() is to save
  std::atomic<int64_t> tend_at_{0};                            // of the clock
};

// The index for the sources of a recipe, shared by all that have the same file at the same time.
std::shared_ptr<SourceIndex> open_source_index(Env& env, const std::string& uri,
                                               const IndexOptions& options);

// An index of the points that `other` has at any time; itself it keeps none. `other` must outlive
// it, and not be off.
std::shared_ptr<SourceIndex> borrowed_index(Env& env, SourceIndex& other);

// `source` with an index, which decoding uses if a Loader reads it.
std::unique_ptr<Dataset> with_index(std::unique_ptr<Dataset> source,
                                    std::shared_ptr<SourceIndex> index);

struct IndexReport {
  size_t samples = 0;
  size_t found = 0, known = 0;  // JPEGs whose points were found now, or known before
  size_t without = 0;           // of other formats and kinds, or small
  std::vector<SkippedSample> broken;
};

// Finds the points of all samples, saving when memory is short. Fails with kRun before that if it
// could not save. `progress` may throw to cancel; what was found remains. REQUIRES: the index is
// not off.
IndexReport index_dataset(const Dataset& dataset, SourceIndex& index, int threads,
                          const ProgressCallback& progress);

}  // namespace saturate
