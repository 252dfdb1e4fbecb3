// split:train,1/N,SOURCE and split:held,1/N,SOURCE: another source without every N-th sample, and
// only these. In a source ordered by class, like a folder, every class is represented.
#include "data/sources.h"
#include "saturate/data/error.h"

namespace saturate {
namespace {

// `Source`: Dataset or IndexedSource, which the split is as well.
template <class Source>
class SplitSource : public WrappedSource<Source> {
 public:
  SplitSource(std::unique_ptr<Source> source, size_t every, bool held)
      : WrappedSource<Source>(std::move(source)), every_(every), held_(held) {}

  size_t size() const override { return held_ ? held_size() : source_->size() - held_size(); }
  void read(size_t index, Sample& out) const override { source_->read(place(index), out); }
  const DecodedSample* decoded(size_t index) const override {
    return source_->decoded(place(index));
  }
  size_t length(size_t index) const override { return source_->length(place(index)); }
  uint64_t bytes(size_t index) const override { return source_->bytes(place(index)); }

  void advise(ReadAdvice advice, size_t first, size_t count) const override {
    if (count == 0) return;
    if (!held_ && count > 1)  // the few between them are harmless
      return source_->advise(advice, place(first), place(first + count - 1) + 1 - place(first));
    for (size_t i = first; i < first + count; ++i) source_->advise(advice, place(i), 1);
  }

  ImageSize size_of_parts(size_t index) const override {
    return source_->size_of_parts(place(index));
  }
  void advise_rows(ReadAdvice advice, size_t index, ImageRows rows) const override {
    source_->advise_rows(advice, place(index), rows);
  }
  void read_rows(size_t index, ImageRows rows, Sample& out) const override {
    source_->read_rows(place(index), rows, out);
  }

 protected:
  using WrappedSource<Source>::source_;

  // The held-out sample is the middle one of each `every_`.
  size_t held_size() const { return (source_->size() + every_ - 1 - every_ / 2) / every_; }

  // The index in the other source.
  size_t place(size_t index) const {
    const size_t middle = every_ / 2;
    if (held_) return index * every_ + middle;
    const size_t within = index % (every_ - 1);
    return index / (every_ - 1) * every_ + within + (within >= middle ? 1 : 0);
  }

 private:
  const size_t every_;
  const bool held_;
};

class IndexedSplit : public SplitSource<IndexedSource> {
 public:
  using SplitSource::SplitSource;
  int64_t label(size_t index) const override { return source_->label(place(index)); }
  uint64_t read_start(size_t index, size_t most, Sample& out) const override {
    return source_->read_start(place(index), most, out);
  }
};

std::unique_ptr<Dataset> make_split(std::unique_ptr<Dataset> source, size_t every, bool held) {
  if (!dynamic_cast<IndexedSource*>(source.get()))
    return std::make_unique<SplitSource<Dataset>>(std::move(source), every, held);
  std::unique_ptr<IndexedSource> indexed(dynamic_cast<IndexedSource*>(source.release()));
  return std::make_unique<IndexedSplit>(std::move(indexed), every, held);
}

[[noreturn]] void fail_form(const std::string& rest) {
  fail(ErrorKind::kUsage, "the split does not name a part and a source",
       "split:" + rest.substr(0, rest.find('?')),
       "Write split:train,1/5,SOURCE or split:held,1/5,SOURCE");
}

}  // namespace

std::unique_ptr<Dataset> open_split(Env& env, const std::string& rest) {
  const size_t comma = rest.find(','), second = rest.find(',', comma + 1);
  if (comma == std::string::npos || second == std::string::npos) fail_form(rest);
  const std::string part = rest.substr(0, comma);
  const std::string share = rest.substr(comma + 1, second - comma - 1);
  const std::string source = rest.substr(second + 1);
  const size_t every =
      share.starts_with("1/") ? parsed_number<size_t>(share.substr(2)).value_or(0) : 0;
  if (every < 2 || (part != "train" && part != "held") || source.empty()) fail_form(rest);
  // A table is normalised by the part to train on, also in the other one.
  const bool fits = scheme_of_source(env, source) == "csv" &&
                    source.find(",fit=") == std::string::npos &&
                    source.find(",held=") == std::string::npos;
  auto split =
      make_split(open_dataset(env, fits ? source + ",held=" + std::to_string(every) : source),
                 every, part == "held");
  if (split->size() == 0)
    fail(ErrorKind::kData, "the source has too few images for one of " + std::to_string(every),
         source, "Hold out a larger share, as 1/2");
  return split;
}

}  // namespace saturate
