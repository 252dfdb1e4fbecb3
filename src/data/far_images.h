// The images of class folders in a bucket, from its list.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "saturate/data/env.h"
#include "store/object_store.h"

namespace saturate {

// An image; its key and ETag are in FarImages::text.
struct FarImage {
  uint64_t size;   // bytes
  uint64_t begin;  // of the key in the text
  uint32_t label;
  uint16_t key_size, etag_size;
};
static_assert(sizeof(FarImage) == 24);

// In the order of a local folder: by class, folder and name.
struct FarImages {
  std::vector<std::string> classes;  // sorted
  std::vector<FarImage> images;
  std::string text;           // of each image the key below the folder, then the ETag
  uint64_t outside = 0;       // images in the folder itself
  std::string first_outside;  // one of them

  std::string_view key(size_t image) const {
    return std::string_view(text).substr(images[image].begin, images[image].key_size);
  }
  std::string_view etag(size_t image) const {
    const FarImage& at = images[image];
    return std::string_view(text).substr(at.begin + at.key_size, at.etag_size);
  }
};

// Lists `place`, whose key is empty or ends with "/"; `name` is its URL for messages. Folders whose
// names begin with a dot are ignored, ".." among them. Fails as BucketList, and with kData if there
// is no class or a class has no image.
FarImages list_far_images(HttpCalls& calls, const BucketPlace& place, const std::string& name);

// The list that a process made less than an hour ago and kept in the cache folder of `store`.
std::optional<FarImages> kept_far_images(ObjectStore& store, const BucketPlace& place);
// Keeps the list there, if there is such a folder.
void keep_far_images(ObjectStore& store, const BucketPlace& place, const FarImages& images);
// Removes the kept list, if there is one: the bucket has changed.
void forget_far_images(ObjectStore& store, const BucketPlace& place);

// A kept list as a file; nullopt if the file is damaged, of another place or older than an hour.
std::vector<std::byte> to_list_file(const FarImages& images, const std::string& place,
                                    int64_t unix_ns);
std::optional<FarImages> from_list_file(std::span<const std::byte> file, const std::string& place,
                                        int64_t unix_ns);

}  // namespace saturate
