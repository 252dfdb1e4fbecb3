#include "data/far_images.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>
#include <utility>

#include "base/checksum.h"
#include "base/files.h"
#include "base/printable.h"
#include "base/thread_pool.h"
#include "base/wall_clock.h"
#include "data/bytes.h"
#include "data/sources.h"
#include "saturate/data/error.h"
#include "store/bucket_list.h"
#include "store/cache_names.h"

namespace saturate {
namespace {

constexpr int kListThreads = 32;  // that mostly wait
constexpr std::string_view kListMagic = "SATLIST1";
constexpr int64_t kHour = 3'600'000'000'000;  // ns

// Whether the local source would find it: no folder above it is hidden, and it has an image's name.
bool is_image_key(std::string_view key) {
  for (size_t slash; (slash = key.find('/')) != std::string_view::npos;
       key.remove_prefix(slash + 1))
    if (slash == 0 || key.front() == '.') return false;
  return is_image_name(std::string(key));
}

// Folder and name.
std::tuple<std::string_view, std::string_view> divided(std::string_view key) {
  const size_t slash = key.rfind('/');
  return {key.substr(0, slash), key.substr(slash + 1)};
}

// The images of one class, by folder and name; keys below the source's folder.
std::vector<ListedObject> list_class(BucketList& list, const std::string& root,
                                     const std::string& folder, const std::string& name) {
  std::vector<ListedObject> found;
  list.each_page(folder, false, [&](ListPage&& page) {
    for (ListedObject& object : page.objects) {
      if (!is_image_key(std::string_view(object.key).substr(folder.size()))) continue;
      object.key.erase(0, root.size());
      found.push_back(std::move(object));
    }
  });
  std::ranges::sort(found, [](const ListedObject& a, const ListedObject& b) {
    return divided(a.key) < divided(b.key);
  });
  const auto twice = std::ranges::adjacent_find(found, {}, &ListedObject::key);
  if (twice != found.end())
    fail(ErrorKind::kRun, "the server lists \"" + printable(twice->key) + "\" twice", name,
         "Check the endpoint: it must be that of an S3 service");
  if (found.empty())
    fail(ErrorKind::kData, "class folder holds no .jpg, .png, .webp or .avif file",
         name + folder.substr(root.size()), "Add images of the class, or remove its folder");
  return found;
}

void append(const std::vector<ListedObject>& objects, uint32_t label, const std::string& name,
            FarImages& out) {
  for (const ListedObject& object : objects) {
    check_far_size(object.size, name + object.key);
    const size_t etag = object.etag.size() <= 200 ? object.etag.size() : 0;
    out.images.push_back(
        {object.size, out.text.size(), label, uint16_t(object.key.size()), uint16_t(etag)});
    out.text += object.key;
    out.text.append(object.etag, 0, etag);
  }
}

std::string id_of(const BucketPlace& place) {
  return place.bucket.url + encode_key(place.key);
}

std::string list_name(const std::string& place) {
  return fmt::format("{:016x}", hash_text(place));
}

std::string list_path(ObjectStore& store, const std::string& place) {
  return fmt::format("{}/{}/{}", store.options().cache_dir, kLists, list_name(place));
}

}  // namespace

FarImages list_far_images(HttpCalls& calls, const BucketPlace& place, const std::string& name) {
  BucketList list(calls, place, name);
  FarImages found;
  const std::string& root = place.key;
  list.each_page(root, true, [&](ListPage&& page) {
    for (const ListedObject& object : page.objects)
      if (is_image_name(object.key.substr(root.size())) && found.outside++ == 0)
        found.first_outside = object.key.substr(root.size());
    for (const std::string& folder : page.folders) {
      std::string in_root = folder.substr(root.size(), folder.size() - root.size() - 1);
      if (!in_root.empty() && in_root.front() != '.') found.classes.push_back(std::move(in_root));
    }
  });
  std::ranges::sort(found.classes);
  if (found.classes.empty())
    fail(ErrorKind::kData, "folder holds no class folders", name,
         "Check the URL, and that the images of each class are in a folder named after the class");
  const auto twice = std::ranges::adjacent_find(found.classes);
  if (twice != found.classes.end())
    fail(ErrorKind::kRun, "the server lists the folder \"" + printable(*twice) + "\" twice", name,
         "Check the endpoint: it must be that of an S3 service");
  std::vector<std::vector<ListedObject>> parts(found.classes.size());
  parallel_for(parts.size(), kListThreads, [&](size_t i) {
    parts[i] = list_class(list, root, root + found.classes[i] + "/", name);
  });
  for (size_t i = 0; i < parts.size(); ++i)
    append(std::exchange(parts[i], {}), uint32_t(i), name, found);
  return found;
}

std::optional<FarImages> kept_far_images(ObjectStore& store, const BucketPlace& place) {
  if (store.options().cache_dir.empty()) return std::nullopt;
  Env& env = store.env();
  const std::string id = id_of(place), path = list_path(store, id);
  store.use_list(list_name(id));
  try {
    if (!env.exists(path)) return std::nullopt;
    return from_list_file(read_file(env, path), id, unix_time_ns(env));
  } catch (const Error&) {
    return std::nullopt;
  }
}

void keep_far_images(ObjectStore& store, const BucketPlace& place, const FarImages& images) {
  if (store.options().cache_dir.empty()) return;
  const std::string id = id_of(place);
  store.keep_list(list_name(id), to_list_file(images, id, unix_time_ns(store.env())));
}

void forget_far_images(ObjectStore& store, const BucketPlace& place) {
  if (!store.options().cache_dir.empty()) discard(store.env(), list_path(store, id_of(place)));
}

std::vector<std::byte> to_list_file(const FarImages& images, const std::string& place,
                                    int64_t unix_ns) {
  std::vector<std::byte> body, file;
  const auto put = [&](const std::string& text) {
    put_number(body, uint64_t{text.size()});
    put_text(body, text);
  };
  put_number(body, uint64_t(unix_ns));
  put(place);
  put_number(body, images.outside);
  put(images.first_outside);
  put_number(body, uint32_t(images.classes.size()));
  put_classes(body, images.classes);
  put(images.text);
  put_number(body, uint64_t{images.images.size()});
  put_bytes(body, std::as_bytes(std::span(images.images)));
  put_text(file, kListMagic);
  put_number(file, checksum_of(body));
  put_bytes(file, body);
  return file;
}

std::optional<FarImages> from_list_file(std::span<const std::byte> file, const std::string& place,
                                        int64_t unix_ns) {
  ByteReader reader(file);
  if (reader.text(kListMagic.size()) != kListMagic) return std::nullopt;
  const uint32_t checksum = reader.number<uint32_t>();
  if (!reader.ok() || checksum_of(file.last(reader.left())) != checksum) return std::nullopt;
  const auto text = [&] { return std::string(reader.text(reader.number<uint64_t>())); };
  const auto made = int64_t(reader.number<uint64_t>());
  if (made > unix_ns || unix_ns - made > kHour || text() != place) return std::nullopt;
  FarImages found;
  found.outside = reader.number<uint64_t>();
  found.first_outside = text();
  found.classes = take_classes(reader, reader.number<uint32_t>());
  found.text = text();
  const uint64_t count = reader.number<uint64_t>();
  if (!reader.ok() || reader.left() / sizeof(FarImage) != count ||
      reader.left() % sizeof(FarImage) != 0)
    return std::nullopt;
  found.images.resize(count);
  const auto bytes = reader.take(reader.left());
  std::memcpy(found.images.data(), bytes.data(), bytes.size());
  for (const FarImage& image : found.images)
    if (image.label >= found.classes.size() || image.begin > found.text.size() ||
        size_t(image.key_size) + image.etag_size > found.text.size() - image.begin)
      return std::nullopt;
  return found;
}

}  // namespace saturate
