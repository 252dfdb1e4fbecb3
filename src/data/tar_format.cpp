#include "data/tar_format.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/text.h"
#include "saturate/data/error.h"
#include "store/store_url.h"

namespace saturate {
namespace {

// Offsets and lengths of the header's fields.
constexpr size_t kNameAt = 0, kNameLength = 100;
constexpr size_t kSizeAt = 124, kSizeLength = 12;
constexpr size_t kChecksumAt = 148, kChecksumLength = 8;
constexpr size_t kTypeAt = 156;
constexpr size_t kMagicAt = 257;
constexpr size_t kPrefixAt = 345, kPrefixLength = 155;
// GNU's sparse files: whether a block with more of the map follows the header, or such a block.
constexpr size_t kMapContinuesAt = 482, kBlockContinuesAt = 504;

[[noreturn]] void fail_header(const std::string& what, const std::string& path, uint64_t offset) {
  fail(ErrorKind::kData, what, path + " at byte " + std::to_string(offset),
       "It is not a tar archive, or it is damaged: fetch or create it again");
}

std::string_view field(std::string_view block, size_t at, size_t length) {
  const std::string_view bytes = block.substr(at, length);
  return bytes.substr(0, std::min(bytes.find('\0'), length));
}

// Octal digits between optional spaces, or GNU's big-endian base 256 with the top bit set.
std::optional<uint64_t> parse_field(std::string_view bytes) {
  const auto first = static_cast<unsigned char>(bytes.front());
  uint64_t value = 0;
  if (first & 0x80) {
    if (first & 0x40) return std::nullopt;  // negative
    value = first & 0x3f;
    for (char c : bytes.substr(1)) {
      if (value >> 55) return std::nullopt;
      value = value << 8 | static_cast<unsigned char>(c);
    }
    return value;
  }
  size_t i = 0;
  while (i < bytes.size() && bytes[i] == ' ') ++i;
  const size_t digits = i;
  for (; i < bytes.size() && bytes[i] >= '0' && bytes[i] <= '7'; ++i)
    value = value << 3 | uint64_t(bytes[i] - '0');
  const bool ended = i == bytes.size() || bytes[i] == ' ' || bytes[i] == '\0';
  if (!ended || (i == digits && i < bytes.size() && bytes[i] != '\0')) return std::nullopt;
  return value;
}

// The sum of all bytes, with spaces in place of the checksum itself.
int64_t checksum(std::string_view block, bool as_signed) {
  int64_t sum = int64_t(' ') * int64_t(kChecksumLength);
  for (size_t i = 0; i < block.size(); ++i) {
    if (i >= kChecksumAt && i < kChecksumAt + kChecksumLength) continue;
    sum += as_signed ? int64_t(static_cast<signed char>(block[i]))
                     : int64_t(static_cast<unsigned char>(block[i]));
  }
  return sum;
}

std::optional<uint64_t> parse_decimal(std::string_view text) {
  return text.size() > 18 ? std::nullopt : parsed_number<uint64_t>(text);
}

}  // namespace

bool is_tar_header(std::span<const std::byte, kTarBlock> block) {
  const std::string_view text = as_text(block);
  const auto sum = parse_field(text.substr(kChecksumAt, kChecksumLength));
  // Some old archivers summed signed characters.
  return sum && (int64_t(*sum) == checksum(text, false) || int64_t(*sum) == checksum(text, true));
}

TarHeader parse_tar_header(std::span<const std::byte, kTarBlock> block, const std::string& path,
                           uint64_t offset) {
  const std::string_view text = as_text(block);
  if (!is_tar_header(block)) fail_header("bad tar header: wrong checksum", path, offset);
  const auto size = parse_field(text.substr(kSizeAt, kSizeLength));
  if (!size || *size > uint64_t{1} << 62)
    fail_header("bad tar header: size is not a number", path, offset);

  TarHeader header;
  header.type = text[kTypeAt] == '\0' ? '0' : text[kTypeAt];
  header.size = *size;
  // GNU's own magic ("ustar  ") uses the prefix field for other things.
  if (text.substr(kMagicAt, 6) == std::string_view("ustar\0", 6)) {
    header.name = field(text, kPrefixAt, kPrefixLength);
    if (!header.name.empty()) header.name += '/';
  }
  header.name += field(text, kNameAt, kNameLength);
  header.map_continues =
      header.type == 'S' && text.substr(kMagicAt, 6) == "ustar " && text[kMapContinuesAt] != '\0';
  return header;
}

PaxFields parse_pax(std::string_view records, const std::string& path, uint64_t offset) {
  PaxFields fields;
  while (!records.empty() && records.front() != '\0') {
    // "LENGTH KEY=VALUE\n", where LENGTH counts the whole record.
    const auto space = records.find(' ');
    const auto length = parse_decimal(records.substr(0, std::min(space, records.size())));
    if (!length || *length <= space + 1 || *length > records.size() || records[*length - 1] != '\n')
      fail_header("bad pax header: record length is wrong", path, offset);
    const std::string_view record = records.substr(space + 1, *length - space - 2);
    const auto equals = record.find('=');
    if (equals == std::string_view::npos)
      fail_header("bad pax header: record without \"=\"", path, offset);
    const std::string_view key = record.substr(0, equals), value = record.substr(equals + 1);
    if (key == "path") fields.path = std::string(value);
    if (key == "size") {
      fields.size = parse_decimal(value);
      if (!fields.size) fail_header("bad pax header: size is not a number", path, offset);
    }
    if (key.starts_with("GNU.sparse.")) fields.sparse = true;
    records.remove_prefix(*length);
  }
  return fields;
}

std::vector<std::byte> make_tar_header(const std::string& name, uint64_t size) {
  std::string prefix, rest = name;
  if (name.size() > kNameLength) {
    const auto slash = name.find('/', name.size() - kNameLength - 1);
    if (slash == std::string::npos || slash > kPrefixLength || slash == 0)
      fail(ErrorKind::kUsage, "name is too long for a tar archive", name,
           "Write to a folder instead");
    prefix = name.substr(0, slash);
    rest = name.substr(slash + 1);
  }
  std::string block(kTarBlock, '\0');
  const auto put = [&](size_t at, std::string_view value) {
    std::memcpy(block.data() + at, value.data(), value.size());
  };
  const auto octal = [](uint64_t value, int digits) {
    return fmt::format("{:0{}o}", value, digits);
  };
  if (size >= uint64_t{1} << 33)
    fail(ErrorKind::kUsage, "file is too large for a tar archive", name,
         "Write to a folder instead");
  put(kNameAt, rest);
  put(100, octal(0644, 7));  // mode
  put(108, octal(0, 7));     // owner
  put(116, octal(0, 7));     // group
  put(kSizeAt, octal(size, 11));
  put(136, octal(0, 11));  // time: the epoch, so that equal data gives equal archives
  block[kTypeAt] = '0';
  put(kMagicAt, std::string_view("ustar\00000", 8));
  put(kPrefixAt, prefix);
  put(kChecksumAt, octal(uint64_t(checksum(block, false)), 6) + std::string("\0 ", 2));
  const auto bytes = std::as_bytes(std::span(block));
  return {bytes.begin(), bytes.end()};
}

// Headers that are close to each other are read in windows that grow; larger payloads are skipped,
// so that little of the archive is read.
namespace {

constexpr uint64_t kNear = 32 << 10;
constexpr uint64_t kWindow = 1 << 20;
constexpr uint64_t kSeekWindow = 4 << 10;  // a header, its pax header and a long name
constexpr uint64_t kMaxMetadata = 1 << 20;

constexpr const char* kDamaged = "It is truncated or damaged: fetch or create it again";

bool is_zero(std::span<const std::byte, kTarBlock> block) {
  return std::all_of(block.begin(), block.end(), [](std::byte b) { return b == std::byte{0}; });
}

}  // namespace

TarScanner::TarScanner(std::unique_ptr<ReadableFile> file, const std::string& path)
    : path_(store_name(path)), file_(std::move(file)) {
  refuse_compressed();
  if (file_->size() < kTarBlock)
    fail(ErrorKind::kData, "file is too short for a tar archive", path_, kDamaged);
}

void TarScanner::refuse_compressed() {
  struct Compression {
    std::string_view magic, name, command;
  };
  constexpr Compression kKnown[] = {
      {std::string_view("\x1f\x8b"), "gzip", "gunzip"},
      {std::string_view("BZh"), "bzip2", "bunzip2"},
      {std::string_view("\xfd\x37zXZ"), "xz", "unxz"},
      {std::string_view("\x28\xb5\x2f\xfd"), "zstd", "unzstd"},
  };
  const std::string text = text_at(0, std::min<uint64_t>(file_->size(), 6));
  for (const auto& known : kKnown)
    if (text.starts_with(known.magic))
      fail(ErrorKind::kData,
           "archive is compressed with " + std::string(known.name) +
               ", so its members cannot be read in place",
           path_, "Unpack it first: " + std::string(known.command) + " " + path_);
}

void TarScanner::fail_truncated(uint64_t offset) const {
  fail(ErrorKind::kData,
       "tar archive is truncated: it has " + std::to_string(file_->size()) +
           " bytes but continues to " + std::to_string(offset) + " at least",
       path_, "Fetch or create it again");
}

uint64_t TarScanner::near() const {
  const uint64_t worth = file_->request_bytes();
  return worth == UINT64_MAX ? kNear : std::clamp(worth, kNear, kWindow / 4);
}

std::span<const std::byte, kTarBlock> TarScanner::block_at(uint64_t offset) {
  if (offset > file_->size() || file_->size() - offset < kTarBlock)
    fail_truncated(offset + kTarBlock);
  const uint64_t before = std::exchange(last_block_, offset);
  if (offset < window_start_ || offset + kTarBlock > window_start_ + window_.size()) {
    const bool is_near = offset >= before && offset - before <= near();
    const uint64_t want =
        is_near ? std::clamp<uint64_t>(4 * window_.size(), kSeekWindow, kWindow) : kSeekWindow;
    window_.resize(size_t(std::min(want, file_->size() - offset)));
    window_start_ = offset;
    file_->read_at(offset, window_);
  }
  return std::span<const std::byte, kTarBlock>(window_.data() + (offset - window_start_),
                                               kTarBlock);
}

// The end of the blocks from `offset` on that have the map of a sparse file.
uint64_t TarScanner::behind_sparse_map(uint64_t offset) {
  bool continues = true;
  for (; continues; offset += kTarBlock)
    continues = block_at(offset)[kBlockContinuesAt] != std::byte{0};
  return offset;
}

void TarScanner::check_payload(uint64_t offset, uint64_t size) const {
  if (offset > file_->size() || size > file_->size() - offset) fail_truncated(offset + size);
}

std::string TarScanner::text_at(uint64_t offset, uint64_t size) {
  if (size > kMaxMetadata)
    fail(ErrorKind::kData,
         "bad tar header: a name or pax header of " + std::to_string(size) + " bytes",
         path_ + " at byte " + std::to_string(offset), kDamaged);
  check_payload(offset, size);
  std::string text(size, '\0');
  const auto bytes = std::as_writable_bytes(std::span(text));
  if (offset >= window_start_ && offset + size <= window_start_ + window_.size())
    std::copy_n(window_.begin() + ptrdiff_t(offset - window_start_), size, bytes.begin());
  else
    file_->read_at(offset, bytes);
  return text;
}

std::optional<std::string> TarScanner::text(const TarMember& member) {
  if (member.size > kMaxMetadata) return std::nullopt;
  return text_at(member.offset, member.size);
}

std::span<const std::byte> TarScanner::bytes_read(const TarMember& member) const {
  const uint64_t at = member.offset - window_start_;
  const bool is_whole =
      member.offset >= window_start_ && at <= window_.size() && member.size <= window_.size() - at;
  return is_whole ? std::span(window_).subspan(size_t(at), size_t(member.size))
                  : std::span<const std::byte>();
}

void TarScanner::skip_zeros() {
  while (file_->size() - position_ >= kTarBlock && is_zero(block_at(position_)))
    position_ += kTarBlock;
}

// Skips an end marker: to the next header, if another archive was appended, or to the end of the
// file. Any other data is an error. Zeros of a far file may be damage, which would hide members:
// they are read twice, unless there is no room for a member.
bool TarScanner::skip_end_marker() {
  const uint64_t marker_at = position_;
  if (file_->look_ahead() > 0 && file_->size() - position_ > 2 * kTarBlock) {
    skip_zeros();
    position_ = marker_at;
    window_.clear();
  }
  skip_zeros();
  if (position_ == marker_at) return true;  // a header after all
  ++archives_;
  if (file_->size() - position_ >= kTarBlock) {
    if (is_tar_header(block_at(position_))) return true;
    fail_behind(marker_at);
  }
  if (position_ == file_->size()) return false;
  const std::string rest = text_at(position_, file_->size() - position_);
  if (rest.find_first_not_of('\0') != std::string::npos) fail_behind(marker_at);
  return false;
}

void TarScanner::fail_behind(uint64_t marker_at) const {
  fail(ErrorKind::kData,
       "the tar archive ends at byte " + std::to_string(marker_at) +
           ", and what follows from byte " + std::to_string(position_) + " on is not an archive: " +
           std::to_string(file_->size() - position_) + " bytes would be left unread",
       path_,
       "It is damaged: fetch or create it again; if nothing is missing, cut it off with truncate "
       "-s " +
           std::to_string(position_) + " " + path_);
}

// Bytes of a far file may have come damaged: what was read for this member is read again, for as
// long as that gets further.
bool TarScanner::next(TarMember& out) {
  const uint64_t begin = position_;
  const int archives = archives_;
  for (std::optional<uint64_t> reached;;) {
    try {
      return read_next(out);
    } catch (const Error& error) {
      const bool is_further = !reached || position_ > *reached;
      if (error.kind() != ErrorKind::kData || file_->look_ahead() == 0 || !is_further) throw;
      reached = position_;
    }
    position_ = begin;
    archives_ = archives;
    window_.clear();
  }
}

bool TarScanner::read_next(TarMember& out) {
  std::optional<std::string> name;
  PaxFields pax;
  while (true) {
    const uint64_t header_at = position_;
    const auto block = block_at(header_at);
    if (is_zero(block)) {
      if (name || pax.path || pax.size || pax.sparse)
        fail(ErrorKind::kData, "tar archive ends after the name of a member that is missing",
             path_ + " at byte " + std::to_string(header_at), kDamaged);
      if (!skip_end_marker()) return false;
      continue;
    }
    TarHeader header = parse_tar_header(block, path_, header_at);
    uint64_t payload_at = header_at + kTarBlock;
    if (header.map_continues) payload_at = behind_sparse_map(payload_at);
    const bool about_next =
        header.type == 'L' || header.type == 'K' || header.type == 'x' || header.type == 'g';
    // A link's size is its target's; it has no payload.
    if (header.type == '1' || header.type == '2') header.size = 0;
    if (!about_next && pax.size) header.size = *pax.size;
    check_payload(payload_at, header.size);
    position_ = payload_at + tar_padded(header.size);

    if (header.type == 'L') {
      name = text_at(payload_at, header.size);
      name->resize(std::min(name->find('\0'), name->size()));
    } else if (header.type == 'x') {
      pax = parse_pax(text_at(payload_at, header.size), path_, header_at);
    } else if (!about_next) {
      if (pax.path) name = pax.path;
      if (name) header.name = *std::exchange(name, std::nullopt);
      const bool sparse = std::exchange(pax, {}).sparse;
      const bool folder = header.type == '0' && header.name.ends_with('/');
      const bool wanted = std::string_view("0127S").find(header.type) != std::string_view::npos;
      if (!wanted || folder) continue;
      out.name = std::move(header.name);
      out.archive = archives_;
      out.offset = payload_at;
      out.size = header.size;
      out.type = sparse ? 'S' : header.type == '7' ? '0' : header.type;
      return true;
    }
  }
}

}  // namespace saturate
