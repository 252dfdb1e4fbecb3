#include "data/zip_directory.h"

#include <zlib.h>

#include <algorithm>
#include <memory>

#include "base/checksum.h"
#include "base/files.h"
#include "data/bytes.h"
#include "data/read_in_steps.h"
#include "data/read_undamaged.h"
#include "saturate/data/error.h"

namespace saturate {
namespace {

constexpr size_t kEndBytes = 22, kLocator64Bytes = 20, kEnd64Bytes = 56, kLocalBytes = 30;
constexpr uint32_t kEndMagic = 0x06054b50, kLocator64Magic = 0x07064b50, kEnd64Magic = 0x06064b50,
                   kEntryMagic = 0x02014b50, kLocalMagic = 0x04034b50;
constexpr uint64_t kDeflateRatio = 1032;  // of deflate, from zlib's technical notes

[[noreturn]] void refuse_zip(const std::string& what, const std::string& path) {
  fail(ErrorKind::kData, what, path, "It may be truncated or damaged: write or fetch it again");
}

std::vector<std::byte> read_part(const ReadableFile& file, uint64_t offset, uint64_t size,
                                 const std::string& path) {
  if (offset > file.size() || size > file.size() - offset)
    refuse_zip("the archive refers to bytes after its end", path);
  return read_in_steps(file, offset, size);
}

struct Directory {
  uint64_t offset = 0, bytes = 0;
};

// Where the record at the end may begin, which a comment may follow.
uint64_t tail_bytes(const ReadableFile& file) {
  return std::min<uint64_t>(file.size(), kEndBytes + 0xffff);
}

Directory find_directory(const ReadableFile& file, const std::string& path) {
  const uint64_t tail = tail_bytes(file);
  const std::vector<std::byte> bytes = read_part(file, file.size() - tail, tail, path);
  for (size_t at = bytes.size(); at-- > 0;) {
    ByteReader reader(std::span<const std::byte>(bytes).subspan(at));
    if (reader.number<uint32_t>() != kEndMagic) continue;
    reader.skip(8);
    Directory found;
    found.bytes = reader.number<uint32_t>();
    found.offset = reader.number<uint32_t>();
    const size_t comment = reader.number<uint16_t>();
    if (!reader.ok() || comment != reader.left()) continue;
    const uint64_t end = file.size() - tail + at;
    if (end < kLocator64Bytes) return found;
    const auto locator = read_part(file, end - kLocator64Bytes, kLocator64Bytes, path);
    ByteReader located(locator);
    if (located.number<uint32_t>() != kLocator64Magic) return found;
    located.skip(4);
    const auto end64 = read_part(file, located.number<uint64_t>(), kEnd64Bytes, path);
    ByteReader large(end64);
    if (large.number<uint32_t>() != kEnd64Magic) refuse_zip("the archive's end is malformed", path);
    large.skip(36);
    found.bytes = large.number<uint64_t>();
    found.offset = large.number<uint64_t>();
    return found;
  }
  refuse_zip("it is not a zip archive, or its end is missing", path);
}

// Sizes that need 64 bits are in an extra field of number 1, in this order.
void read_extra(std::span<const std::byte> extra, ZipMember& member) {
  ByteReader fields(extra);
  while (fields.left() >= 4) {
    const uint16_t number = fields.number<uint16_t>();
    ByteReader field(fields.take(fields.number<uint16_t>()));
    if (number != 1) continue;
    for (uint64_t* value : {&member.size, &member.stored, &member.header_offset})
      if (*value == UINT32_MAX) *value = field.number<uint64_t>();
  }
}

ZipMember read_entry(ByteReader& reader, const std::string& path) {
  ZipMember member;
  if (reader.number<uint32_t>() != kEntryMagic)
    refuse_zip("the archive's directory is malformed", path);
  reader.skip(4);
  const uint16_t flags = reader.number<uint16_t>(), method = reader.number<uint16_t>();
  reader.skip(4);
  member.crc = reader.number<uint32_t>();
  member.stored = reader.number<uint32_t>();
  member.size = reader.number<uint32_t>();
  const size_t name = reader.number<uint16_t>(), extra = reader.number<uint16_t>(),
               comment = reader.number<uint16_t>();
  reader.skip(8);
  member.header_offset = reader.number<uint32_t>();
  member.name = reader.text(name);
  read_extra(reader.take(extra), member);
  reader.skip(comment);
  if (!reader.ok()) refuse_zip("the archive's directory is truncated", path);
  if (flags & 1) refuse_zip("member " + member.name + " is encrypted", path);
  if (method != 0 && method != 8)
    refuse_zip("member " + member.name + " is compressed by another method than deflate", path);
  member.is_deflated = method == 8;
  if (!member.is_deflated && member.stored != member.size)
    refuse_zip("member " + member.name + " has two sizes", path);
  return member;
}

std::vector<ZipMember> read_entries(const Directory& directory, const ReadableFile& file,
                                    const std::string& path) {
  const auto bytes = read_part(file, directory.offset, directory.bytes, path);
  std::vector<ZipMember> members;
  uint64_t stored = 0;
  for (ByteReader reader(bytes); reader.left() > 0;) {
    members.push_back(read_entry(reader, path));
    // Members that share bytes could take any amount of memory.
    if (__builtin_add_overflow(stored, members.back().stored, &stored) || stored > file.size())
      refuse_zip("the archive's members have more bytes than the archive", path);
  }
  return members;
}

uint64_t read_offset(const ZipMember& member, const ReadableFile& file, const std::string& path) {
  const auto header = read_part(file, member.header_offset, kLocalBytes, path);
  ByteReader reader(header);
  if (reader.number<uint32_t>() != kLocalMagic)
    refuse_zip("member " + member.name + " does not begin where the directory says", path);
  reader.skip(22);
  const uint64_t name = reader.number<uint16_t>(), extra = reader.number<uint16_t>();
  const uint64_t offset = member.header_offset + kLocalBytes + name + extra;
  if (offset > file.size() || member.stored > file.size() - offset)
    refuse_zip("member " + member.name + " is truncated", path);
  return offset;
}

std::vector<std::byte> unpacked(const ZipMember& member, std::vector<std::byte> bytes,
                                const std::string& path) {
  if (member.is_deflated) {
    if (member.size / kDeflateRatio > member.stored)
      refuse_zip("member " + member.name + " claims more bytes than it can hold", path);
    require_memory(member.size, path + ":" + member.name, "the member takes");
    std::vector<std::byte> out(member.size);
    z_stream stream{};
    if (inflateInit2(&stream, -15) != Z_OK) throw std::bad_alloc();
    const std::unique_ptr<z_stream, int (*)(z_streamp)> closer(&stream, inflateEnd);
    size_t in = 0, made = 0;
    int result = Z_OK;
    while (result == Z_OK) {  // in parts, since zlib counts in 32 bits
      constexpr size_t kPart = 1 << 30;
      const size_t given = std::min(kPart, bytes.size() - in),
                   room = std::min(kPart, out.size() - made);
      stream.next_in = reinterpret_cast<Bytef*>(bytes.data() + in);
      stream.next_out = reinterpret_cast<Bytef*>(out.data() + made);
      stream.avail_in = uInt(given);
      stream.avail_out = uInt(room);
      result = inflate(&stream, Z_NO_FLUSH);
      in += given - stream.avail_in;
      made += room - stream.avail_out;
    }
    if (result == Z_MEM_ERROR) throw std::bad_alloc();
    if (result != Z_STREAM_END || made != out.size())
      refuse_zip("member " + member.name + " is damaged", path);
    bytes = std::move(out);
  }
  if (checksum_of(bytes) != member.crc)
    refuse_zip("member " + member.name + " is damaged: wrong checksum", path);
  return bytes;
}

}  // namespace

std::vector<ZipMember> read_zip_directory(const ReadableFile& file, const std::string& path) {
  const uint64_t tail = tail_bytes(file);
  return read_undamaged(file, file.size() - tail, tail, [&] {
    const Directory directory = find_directory(file, path);
    return read_undamaged(file, directory.offset, directory.bytes,
                          [&] { return read_entries(directory, file, path); });
  });
}

uint64_t offset_of(const ZipMember& member, const ReadableFile& file, const std::string& path) {
  return read_undamaged(file, member.header_offset, kLocalBytes,
                        [&] { return read_offset(member, file, path); });
}

std::vector<std::byte> read_member(const ZipMember& member, const ReadableFile& file,
                                   const std::string& path) {
  const uint64_t offset = offset_of(member, file, path);
  return read_undamaged(file, offset, member.stored, [&] {
    return unpacked(member, read_part(file, offset, member.stored, path), path);
  });
}

}  // namespace saturate
