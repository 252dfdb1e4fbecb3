#include "image/quick_png.h"

#include <libdeflate.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <string_view>

#include "base/checksum.h"
#include "image/codec.h"

namespace saturate {
namespace {

constexpr size_t kSignature = 8, kChunkHead = 8, kChunkEnd = 4;
constexpr size_t kSlack = 4;  // bytes that may be read and written after a row's last pixel

enum ColourType : uint8_t { kGrey = 0, kRgb = 2, kPalette = 3, kRgba = 6 };

uint32_t big32(const uint8_t* at) {
  return uint32_t(at[0]) << 24 | uint32_t(at[1]) << 16 | uint32_t(at[2]) << 8 | at[3];
}

// A pixel of up to four bytes, in lanes of 16 bits.
using Lanes = int16_t __attribute__((vector_size(16)));
using Bytes = uint8_t __attribute__((vector_size(8)));

[[gnu::always_inline]] inline Lanes load(const uint8_t* at) {
  Bytes bytes{};
  std::memcpy(&bytes, at, 4);
  return __builtin_convertvector(bytes, Lanes);
}

[[gnu::always_inline]] inline void store(uint8_t* at, Lanes value) {
  const Bytes bytes = __builtin_convertvector(value, Bytes);
  std::memcpy(at, &bytes, 4);
}

[[gnu::always_inline]] inline Lanes magnitude(Lanes value) {
  return value < 0 ? -value : value;
}

[[gnu::always_inline]] inline Lanes paeth(Lanes left, Lanes above, Lanes corner) {
  const Lanes up = above - corner, back = left - corner;
  const Lanes to_left = magnitude(up), to_above = magnitude(back), to_corner = magnitude(up + back);
  const Lanes other = to_above <= to_corner ? above : corner;
  return ((to_left <= to_above) & (to_left <= to_corner)) ? left : other;
}

// Undoes a row's filter; `above` is the row before. All have kSlack bytes after their end.
template <int kBytes>
bool unfilter(int filter, const uint8_t* in, const uint8_t* above, size_t bytes, uint8_t* out) {
  const Lanes low = Lanes{} + 255;
  Lanes left{}, corner{};
  switch (filter) {
    case 0:
      std::memcpy(out, in, bytes);
      return true;
    case 1:
      for (size_t i = 0; i < bytes; i += kBytes) store(out + i, left = (load(in + i) + left) & low);
      return true;
    case 2:
      for (size_t i = 0; i < bytes; ++i) out[i] = uint8_t(in[i] + above[i]);
      return true;
    case 3:
      for (size_t i = 0; i < bytes; i += kBytes)
        store(out + i, left = (load(in + i) + ((left + load(above + i)) >> 1)) & low);
      return true;
    case 4:
      for (size_t i = 0; i < bytes; i += kBytes) {
        const Lanes up = load(above + i);
        store(out + i, left = (load(in + i) + paeth(left, up, corner)) & low);
        corner = up;
      }
      return true;
  }
  return false;
}

}  // namespace

struct QuickPng::Chunks {
  uint8_t colour = 0;
  std::span<const uint8_t> palette, exif;
  std::vector<std::span<const uint8_t>> data;
};

void QuickPng::Free::operator()(libdeflate_decompressor* made) const {
  libdeflate_free_decompressor(made);
}

// False if a chunk is damaged, or the file is of another kind.
bool QuickPng::find_chunks(std::span<const std::byte> file, Chunks& chunks) {
  const auto* const begin = reinterpret_cast<const uint8_t*>(file.data());
  size_t at = kSignature;
  for (bool first = true, ended = false; !ended; first = false) {
    if (file.size() < at + kChunkHead + kChunkEnd) return false;
    const size_t size = big32(begin + at);
    if (size > file.size() - at - kChunkHead - kChunkEnd) return false;
    const std::string_view name(reinterpret_cast<const char*>(begin + at + 4), 4);
    const std::span<const uint8_t> body(begin + at + kChunkHead, size);
    const uint32_t crc = checksum_of(file.subspan(at + 4, 4 + size));
    if (crc != big32(body.data() + size)) return false;
    if (first != (name == "IHDR")) return false;
    if (first) {
      if (size != 13 || body[8] != 8 || body[12] != 0) return false;  // bits, interlacing
      chunks.colour = body[9];
    } else if (name == "PLTE") {
      if (!chunks.palette.empty() || !chunks.data.empty() || size == 0 || size > 768 ||
          size % 3 != 0)
        return false;
      chunks.palette = body;
    } else if (name == "eXIf") {
      if (!chunks.exif.empty()) return false;
      chunks.exif = body;
    } else if (name == "IDAT") {
      const uint8_t* const before =
          chunks.data.empty() ? begin + at : chunks.data.back().data() + chunks.data.back().size();
      if (!chunks.data.empty() && before + kChunkEnd != begin + at) return false;
      chunks.data.push_back(body);
    } else if (name == "IEND") {
      ended = true;
    } else if (!(name[0] & 32)) {
      return false;  // a critical chunk that is not known
    }
    at += kChunkHead + size + kChunkEnd;
  }
  const uint8_t colour = chunks.colour;
  return !chunks.data.empty() && (colour == kGrey || colour == kRgb || colour == kRgba ||
                                  (colour == kPalette && !chunks.palette.empty()));
}

// To rows_; false unless the data fill exactly `bytes`.
bool QuickPng::inflate(const Chunks& chunks, size_t bytes) {
  std::span<const uint8_t> data = chunks.data.front();
  if (chunks.data.size() > 1) {
    deflated_.clear();
    for (const auto& part : chunks.data)
      deflated_.insert(deflated_.end(), part.begin(), part.end());
    data = deflated_;
  }
  if (!inflater_) inflater_.reset(libdeflate_alloc_decompressor());
  if (!inflater_) throw std::bad_alloc();
  if (rows_.size() < bytes + kSlack) rows_.resize(bytes + kSlack);
  return libdeflate_zlib_decompress(inflater_.get(), data.data(), data.size(), rows_.data(), bytes,
                                    nullptr) == LIBDEFLATE_SUCCESS;
}

bool QuickPng::convert(const Chunks& chunks, Image& out) {
  const size_t width = size_t(out.width);
  const size_t pixel = chunks.colour == kRgb ? 3 : chunks.colour == kRgba ? 4 : 1;
  const size_t bytes = width * pixel;
  for (auto& line : line_) line.assign(bytes + kSlack, 0);
  const uint8_t* in = rows_.data();
  for (int y = 0; y < out.height; ++y, in += bytes) {
    const int filter = *in++;
    const uint8_t* const above = line_[(y + 1) % 2].data();
    uint8_t* const line = line_[y % 2].data();
    const bool ok = pixel == 3   ? unfilter<3>(filter, in, above, bytes, line)
                    : pixel == 4 ? unfilter<4>(filter, in, above, bytes, line)
                                 : unfilter<1>(filter, in, above, bytes, line);
    if (!ok) return false;
    uint8_t* to = out.row(y);
    if (chunks.colour == kRgb) {
      std::memcpy(to, line, bytes);
      continue;
    }
    for (size_t x = 0; x < width; ++x, to += 3) {
      const uint8_t* from = line + x * pixel;
      if (chunks.colour == kGrey) {
        to[0] = to[1] = to[2] = *from;
        continue;
      }
      if (chunks.colour == kPalette) {
        if (size_t{*from} * 3 >= chunks.palette.size()) return false;
        from = chunks.palette.data() + size_t{*from} * 3;
      }
      std::copy_n(from, 3, to);
    }
  }
  return true;
}

std::optional<int> QuickPng::read(std::span<const std::byte> file, int width, int height,
                                  Image& out) {
  Chunks chunks;
  if (!find_chunks(file, chunks)) return std::nullopt;
  out.resize(width, height);
  const size_t pixel = chunks.colour == kRgb ? 3 : chunks.colour == kRgba ? 4 : 1;
  if (!inflate(chunks, (size_t(width) * pixel + 1) * size_t(height)) || !convert(chunks, out))
    return std::nullopt;
  return exif_orientation(std::as_bytes(chunks.exif)).value_or(1);
}

}  // namespace saturate
