// folder:s3://BUCKET/PREFIX and gs://: class folders as objects of a bucket, which is listed when
// the source is opened. Samples and their order are those of the same files in a local folder.
#include <algorithm>
#include <map>
#include <utility>

#include "base/cancel.h"
#include "base/mutex.h"
#include "data/far_images.h"
#include "data/sources.h"
#include "saturate/data/error.h"
#include "store/sha256.h"
#include "store/store_env.h"

namespace saturate {
namespace {

class FarFolderSource : public IndexedSource {
 public:
  FarFolderSource(std::shared_ptr<ObjectStore> store, const std::string& root)
      : store_(std::move(store)), root_(root), place_(locate_bucket(store_->env(), root)) {
    group_ = "folder " + place_.bucket.url + encode_key(place_.key);
    store_->use_group(group_);  // before the list is kept, which may evict what nobody uses
    if (auto kept = kept_far_images(*store_, place_)) {
      found_ = std::move(*kept);
    } else {
      found_ = list_far_images(store_->calls(), place_, root_);
      // Those of replaced images would stay as long as the folder is in use.
      store_->keep_only(group_, size(), [this](size_t i) { return object(i); });
      keep_far_images(*store_, place_, found_);
    }
    const auto lies_in_class = [&](size_t i) {
      return std::ranges::count(found_.key(i), '/') == 1;
    };
    bool any = false;
    for (size_t i = 0; !any && i < size(); ++i) any = lies_in_class(i);
    if (!any) refuse_parts(found_.classes, root_.substr(0, root_.size() - 1));
  }
  ~FarFolderSource() override {
    for (const auto& [index, object] : announced_) store_->forget_all(object);
  }

  size_t size() const override { return found_.images.size(); }
  const std::vector<std::string>& classes() const override { return found_.classes; }
  int64_t label(size_t index) const override { return found_.images[index].label; }
  uint64_t bytes(size_t index) const override { return found_.images[index].size; }
  uint64_t look_ahead() const override { return store_->ahead_bytes(); }

  std::vector<ObjectVersion> versions() const override {
    const auto images = std::as_bytes(std::span(found_.images));
    const auto text = std::as_bytes(std::span(found_.text));
    return {{root_, version_digest(sha256_hex(text) + sha256_hex(images))}};
  }

  std::string warning() const override {
    return warning_of_outside(found_.outside, root_ + found_.first_outside);
  }

  void read(size_t index, Sample& out) const override { read_start(index, SIZE_MAX, out); }

  uint64_t read_start(size_t index, size_t most, Sample& out) const override {
    const FarImage& image = found_.images[index];
    out.name.assign(root_).append(found_.key(index));
    out.label = image.label;
    out.encoding = SampleEncoding::kEncoded;
    out.bytes.resize(size_t(std::min<uint64_t>(most, image.size)));
    try {
      store_->read(out.bytes.size() == image.size ? take(index) : object(index), 0, out.bytes);
    } catch (const Error&) {
      // The next run must not meet the same object, changed or missing, in the kept list.
      if (!is_cancelled()) forget_far_images(*store_, place_);
      throw;
    }
    return image.size;
  }

  void advise(ReadAdvice advice, size_t first, size_t count) const override {
    for (size_t i = first; i < first + count; ++i) {
      if (advice == ReadAdvice::kNotAgain) {
        store_->forget(take(i), 0, found_.images[i].size);
        continue;
      }
      if (advice == ReadAdvice::kDamaged) {
        store_->drop_copies(object(i), 0, found_.images[i].size);
        continue;
      }
      if (advice == ReadAdvice::kToDisk && store_->options().cache_dir.empty()) continue;
      store_->announce(announced(i), 0, found_.images[i].size, advice);
    }
  }

 private:
  ObjectStore::ObjectPtr object(size_t index) const {
    const std::string_view key = found_.key(index);
    StoreLocation location = place_.bucket;
    location.url += encode_key(place_.key) + encode_key(key);
    return store_->known(root_ + std::string(key), location, found_.images[index].size,
                         std::string(found_.etag(index)), group_);
  }

  ObjectStore::ObjectPtr announced(size_t index) const {
    const MutexLock lock(mutex_);
    const auto [at, is_new] = announced_.try_emplace(index);
    if (is_new) at->second = object(index);
    return at->second;
  }

  // The object that was announced, which no longer is, or another one.
  ObjectStore::ObjectPtr take(size_t index) const {
    {
      const MutexLock lock(mutex_);
      if (auto found = announced_.extract(index)) return std::move(found.mapped());
    }
    return object(index);
  }

  const std::shared_ptr<ObjectStore> store_;
  const std::string root_;  // ends with "/"
  const BucketPlace place_;
  FarImages found_;
  std::string group_;  // for the cache on disk
  mutable Mutex mutex_;
  mutable std::map<size_t, ObjectStore::ObjectPtr> announced_ GUARDED_BY(mutex_);
};

}  // namespace

std::unique_ptr<Dataset> open_far_folder(Env& env, const std::string& url) {
  if (is_web_url(url))
    fail(ErrorKind::kUsage, "a web server does not list its files, so folder: needs s3:// or gs://",
         store_name(url),
         "Use folder:s3://BUCKET/FOLDER, or write the folder into a shard (saturate data pack "
         "SOURCE --out shard:FILE) and read shard:URL");
  std::string root = url;
  while (root.ends_with('/')) root.pop_back();
  auto* const stores = dynamic_cast<StoreEnv*>(&env);
  if (!stores) fail(ErrorKind::kUsage, "URLs are not opened here", url, "Use open_dataset()");
  return std::make_unique<FarFolderSource>(stores->store(), root + "/");
}

}  // namespace saturate
