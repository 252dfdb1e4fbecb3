#include "data/versioned_source.h"

#include <utility>

#include "data/sources.h"

namespace saturate {
namespace {

template <class Source>
class VersionedSource : public WrappedSource<Source> {
 public:
  VersionedSource(std::unique_ptr<Source> source, std::vector<ObjectVersion> opened)
      : WrappedSource<Source>(std::move(source)), opened_(std::move(opened)) {}

  std::vector<ObjectVersion> versions() const override {
    std::vector<ObjectVersion> all = this->source_->versions();
    all.insert(all.end(), opened_.begin(), opened_.end());
    return all;
  }

 private:
  const std::vector<ObjectVersion> opened_;
};

class VersionedIndexed : public VersionedSource<IndexedSource> {
 public:
  using VersionedSource::VersionedSource;
  int64_t label(size_t index) const override { return source_->label(index); }
  uint64_t read_start(size_t index, size_t most, Sample& out) const override {
    return source_->read_start(index, most, out);
  }
};

}  // namespace

std::unique_ptr<Dataset> with_versions(std::unique_ptr<Dataset> source,
                                       std::vector<ObjectVersion> versions) {
  if (versions.empty()) return source;
  if (!dynamic_cast<IndexedSource*>(source.get()))
    return std::make_unique<VersionedSource<Dataset>>(std::move(source), std::move(versions));
  std::unique_ptr<IndexedSource> indexed(dynamic_cast<IndexedSource*>(source.release()));
  return std::make_unique<VersionedIndexed>(std::move(indexed), std::move(versions));
}

}  // namespace saturate
