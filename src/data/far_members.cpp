#include "data/far_members.h"

#include <fmt/format.h>

#include <functional>
#include <utility>

#include "base/files.h"
#include "base/user_cache.h"
#include "data/bytes.h"
#include "data/sources.h"
#include "data/tar_labels.h"
#include "saturate/data/error.h"
#include "store/cache_names.h"
#include "store/object_store.h"
#include "store/store_env.h"
#include "store/store_url.h"

namespace saturate {
namespace {

constexpr std::string_view kMembersMagic = "SATTARS3";
constexpr uint64_t kLeastMember = 30;    // bytes of one in the file
constexpr size_t kLeastList = 16 << 10;  // bytes of a file that is kept without data.cache_dir

// By the URL, so that the list of another version takes the place of this one.
std::string members_name(const std::string& identity) {
  return fmt::format("{:016x}", hash_text(identity.substr(0, identity.find('\n')), kHashStart));
}

// Empty if there is none.
std::string lists_folder(const ObjectStore& store) {
  const std::string& cache = store.options().cache_dir;
  return cache.empty() ? user_cache_folder("archives") : fmt::format("{}/{}", cache, kLists);
}

// Images and labels, and the others that begin with a new key, which end the group before. `keep`
// gets the images that lie between headers that are read together.
std::vector<FarMember> read_members(
    TarScanner& scanner, const std::string& path,
    const std::function<void(uint64_t, std::span<const std::byte>)>& keep) {
  std::vector<FarMember> members;
  std::optional<std::string> key;
  int archive = 0;
  for (FarMember member; scanner.next(member);) {
    const SplitName split = split_name(member.name);
    const bool is_image = is_image_name(split.base);
    if (is_image && scanner.file().look_ahead() > 0) check_far_size(member.size, store_name(path));
    if (const auto bytes = scanner.bytes_read(member); is_image && !bytes.empty())
      keep(member.offset, bytes);
    const bool is_label = is_label_ending(split.ending) && member.type == '0';
    member.label = is_label ? scanner.text(member) : std::nullopt;
    if (member.label && is_json_ending(split.ending)) member.label = reduced_json(*member.label);
    const bool is_another = std::exchange(archive, member.archive) != member.archive;
    if (is_image || is_label || is_another || key != split.key) members.push_back(member);
    key = split.key;
  }
  return members;
}

std::optional<std::vector<FarMember>> kept_members(ObjectStore& store, const std::string& identity,
                                                   uint64_t size) {
  const std::string path = lists_folder(store) + "/" + members_name(identity);
  try {
    store.use_list(members_name(identity));
    if (!store.env().exists(path)) return std::nullopt;
    return from_members_file(read_file(store.env(), path), identity, size);
  } catch (const Error&) {
    return std::nullopt;
  }
}

// A failure is ignored: the next start reads the headers again.
void keep_members(ObjectStore& store, const FarArchive& archive) {
  const std::string name = members_name(archive.identity), folder = lists_folder(store);
  const auto file = to_members_file(archive.members, archive.identity);
  if (!store.options().cache_dir.empty()) return store.keep_list(name, file);
  if (file.size() < kLeastList || folder.empty()) return;
  try {
    store.env().make_directories(folder);
    write_atomically(store.env(), folder + "/" + name, std::string(as_text(file)));
  } catch (const Error&) {
  }
}

}  // namespace

FarArchive open_far_archive(Env& env, const std::string& path) {
  auto* const stores = is_store_url(path) ? dynamic_cast<StoreEnv*>(&env) : nullptr;
  std::shared_ptr<StoreObject> object;
  auto file = stores ? stores->open_object(path, object) : env.open_readable(path);
  const std::string identity = object ? object->identity() : "";
  if (!identity.empty())
    if (auto known = kept_members(*stores->store(), identity, file->size()))
      return {std::move(file), std::move(*known), identity};
  if (object) object->is_cached = false;
  TarScanner scanner(std::move(file), path);
  auto members =
      read_members(scanner, path, [&](uint64_t offset, std::span<const std::byte> bytes) {
        if (object) stores->store()->keep(*object, offset, bytes);
      });
  if (object) object->is_cached = true;
  FarArchive archive{scanner.release(), std::move(members), identity};
  if (!identity.empty()) keep_members(*stores->store(), archive);
  return archive;
}

void forget_members(Env& env, const FarArchive& archive) {
  if (archive.identity.empty()) return;
  const ObjectStore& store = *dynamic_cast<StoreEnv&>(env).store();
  discard(store.env(), lists_folder(store) + "/" + members_name(archive.identity));
}

std::vector<std::byte> to_members_file(const std::vector<FarMember>& members,
                                       const std::string& identity) {
  std::vector<std::byte> body, file;
  put_sized(body, identity);
  put_number(body, uint64_t{members.size()});
  for (const FarMember& member : members) {
    put_sized(body, member.name);
    put_number(body, member.offset);
    put_number(body, member.size);
    put_number(body, uint8_t(member.type));
    put_number(body, uint32_t(member.archive));
    put_number(body, uint8_t{member.label.has_value()});
    put_sized(body, member.label.value_or(""));
  }
  put_text(file, kMembersMagic);
  put_number(file, checksum_of(body));
  put_bytes(file, body);
  return file;
}

std::optional<std::vector<FarMember>> from_members_file(std::span<const std::byte> file,
                                                        const std::string& identity,
                                                        uint64_t size) {
  ByteReader reader(file);
  if (reader.text(kMembersMagic.size()) != kMembersMagic) return std::nullopt;
  const uint32_t checksum = reader.number<uint32_t>();
  if (!reader.ok() || checksum_of(file.last(reader.left())) != checksum ||
      take_sized(reader) != identity)
    return std::nullopt;
  const uint64_t count = reader.number<uint64_t>();
  if (count > reader.left() / kLeastMember) return std::nullopt;
  std::vector<FarMember> members(count);
  for (FarMember& member : members) {
    member.name = take_sized(reader);
    member.offset = reader.number<uint64_t>();
    member.size = reader.number<uint64_t>();
    member.type = char(reader.number<uint8_t>());
    member.archive = int(reader.number<uint32_t>());
    const bool has_label = reader.number<uint8_t>() != 0;
    std::string label = take_sized(reader);
    if (has_label) member.label = std::move(label);
    if (member.offset > size || member.size > size - member.offset) return std::nullopt;
  }
  return reader.ok() && reader.left() == 0 ? std::optional(std::move(members)) : std::nullopt;
}

}  // namespace saturate
