#include "store/store_env.h"

#include <unistd.h>

#include <map>
#include <tuple>
#include <utility>

#include "base/mutex.h"
#include "saturate/data/error.h"
#include "store/object_store.h"
#include "store/sha256.h"
#include "store/store_url.h"
#include "store/upload.h"

namespace saturate {
namespace {

class StoreFile : public ReadableFile {
 public:
  StoreFile(std::shared_ptr<ObjectStore> store, const std::string& url)
      : store_(std::move(store)), object_(store_->open(url)) {}
  ~StoreFile() override { store_->forget_all(object_); }
  const ObjectStore::ObjectPtr& object() const { return object_; }

  uint64_t size() const override { return object_->size; }
  void read_at(uint64_t offset, std::span<std::byte> out) const override {
    store_->read(object_, offset, out);
  }
  uint64_t look_ahead() const override { return store_->ahead_bytes(); }
  void advise(ReadAdvice advice, uint64_t offset, uint64_t length) const override {
    if (advice == ReadAdvice::kNotAgain) return store_->forget(object_, offset, length);
    if (advice == ReadAdvice::kDamaged) return store_->drop_copies(object_, offset, length);
    advise_next(advice, offset, length, {});
  }
  void advise_next(ReadAdvice advice, uint64_t offset, uint64_t length,
                   const NextRange& next) const override {
    store_->announce(object_, offset, length, advice, next);
  }
  uint64_t request_bytes() const override { return store_->request_bytes(*object_); }

 private:
  const std::shared_ptr<ObjectStore> store_;
  const ObjectStore::ObjectPtr object_;
};

// The process is part of it: a forked child has the parent's stores without their threads.
using StoreIdentity = std::tuple<pid_t, Env*, std::string, double, double, int>;
Mutex stores_mutex;
std::map<StoreIdentity, std::weak_ptr<ObjectStore>>& stores() NEEDS_LOCK(stores_mutex) {
  static std::map<StoreIdentity, std::weak_ptr<ObjectStore>> all;
  return all;
}

StoreIdentity identity_of(Env& env, const StoreOptions& options) {
  return {getpid(),          &env,
          options.cache_dir, options.cache_gb,
          options.timeout_s, options.read_ahead_mb};
}

StoreTuning tuning_of(const StoreOptions& options) {
  StoreTuning tuning;
  tuning.ahead_bytes = uint64_t(options.read_ahead_mb) << 20;
  return tuning;
}

[[noreturn]] void fail_writing(const std::string& path) {
  fail(ErrorKind::kUsage,
       is_web_url(path) ? "files of a web server are not written"
                        : "objects of a store are not appended to",
       store_name(path), "Write s3://BUCKET/KEY, or a file, then upload it");
}

}  // namespace

StoreEnv::StoreEnv(Env& inner, const StoreOptions& options)
    : StoreEnv(inner, shared_store(inner, options)) {}

StoreEnv::StoreEnv(Env& inner, std::shared_ptr<ObjectStore> store)
    : inner_(inner), store_(std::move(store)) {}

std::unique_ptr<ReadableFile> StoreEnv::open_readable(const std::string& path) {
  std::shared_ptr<StoreObject> object;
  return is_store_url(path) ? open_object(path, object) : inner_.open_readable(path);
}

std::unique_ptr<ReadableFile> StoreEnv::open_object(const std::string& url,
                                                    std::shared_ptr<StoreObject>& object) {
  auto file = std::make_unique<StoreFile>(store_, url);
  object = file->object();
  const MutexLock lock(mutex_);
  // Not the URL: an endpoint and a signature may be other ones.
  opened_.emplace(object->name, std::to_string(object->size) + "\n" +
                                    (object->etag.empty() ? object->modified : object->etag));
  return file;
}

std::vector<ObjectVersion> StoreEnv::opened() const {
  const MutexLock lock(mutex_);
  std::vector<ObjectVersion> versions;
  std::string text;
  for (auto at = opened_.begin(); at != opened_.end();) {
    text += at->second + "\n";
    const std::string& name = at->first;
    if (++at != opened_.end() && at->first == name) continue;
    versions.push_back({name, version_digest(text)});
    text.clear();
  }
  return versions;
}

void StoreEnv::read_into(const std::string& path, std::vector<std::byte>& out) {
  if (is_store_url(path)) return Env::read_into(path, out);
  inner_.read_into(path, out);
}

std::unique_ptr<WritableFile> StoreEnv::open_writable(const std::string& path) {
  if (is_web_url(path)) fail_writing(path);
  if (is_store_url(path))
    return std::make_unique<Upload>(store_, path, expected_bytes_.exchange(0));
  return inner_.open_writable(path);
}

std::unique_ptr<WritableFile> StoreEnv::open_appendable(const std::string& path) {
  if (is_store_url(path)) fail_writing(path);
  return inner_.open_appendable(path);
}

bool StoreEnv::exists(const std::string& path) {
  return !is_store_url(path) && inner_.exists(path);
}

bool StoreEnv::is_directory(const std::string& path) {
  return !is_store_url(path) && inner_.is_directory(path);
}

std::shared_ptr<ObjectStore> shared_store(Env& env, const StoreOptions& options) {
  const MutexLock lock(stores_mutex);
  auto& known = stores()[identity_of(env, options)];
  auto store = known.lock();
  if (!store) known = store = std::make_shared<ObjectStore>(env, options, tuning_of(options));
  return store;
}

std::optional<StoreCounts> store_counts(Env& env, const StoreOptions& options) {
  const MutexLock lock(stores_mutex);
  const auto found = stores().find(identity_of(env, options));
  const auto store = found == stores().end() ? nullptr : found->second.lock();
  return store ? std::optional(store->counts()) : std::nullopt;
}

}  // namespace saturate
