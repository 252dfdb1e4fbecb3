// The members of an archive in an object store. Finding them reads every header, one after the
// other, so their list is kept: in data.cache_dir or, without one, in the user's cache folder.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "data/tar_format.h"
#include "saturate/data/env.h"

namespace saturate {

struct FarMember : TarMember {
  // The text of a .cls file, or reduced_json() of a .json file; none if that is too large.
  std::optional<std::string> label;
};

struct FarArchive {
  std::unique_ptr<ReadableFile> file;
  std::vector<FarMember> members;  // without those that TarSource does not need
  std::string identity = {};       // StoreObject::identity(), or empty
};

// Opens the archive. Uses the list that is kept of an object of the same URL, size and strong
// ETag (else date). Otherwise reads the headers, which do not go into the cache on disk, and keeps
// their list, unless the object has no identity, as a local file, or, without data.cache_dir, fewer
// than some hundred members.
FarArchive open_far_archive(Env& env, const std::string& path);

// Removes the list of an archive whose labels cannot be right. Labels have no checksum, so they may
// have come damaged: the next start reads them again.
void forget_members(Env& env, const FarArchive& archive);

// The file of such a list.
std::vector<std::byte> to_members_file(const std::vector<FarMember>& members,
                                       const std::string& identity);
// Empty for another object, a damaged file, or a member beyond `size`, the bytes of the archive.
std::optional<std::vector<FarMember>> from_members_file(std::span<const std::byte> file,
                                                        const std::string& identity, uint64_t size);

}  // namespace saturate
