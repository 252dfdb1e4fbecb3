#include "image/fast_decoder.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <iterator>
#include <utility>

#include "base/text.h"

namespace saturate {
namespace {

// After a reduction the crop is still at least this many times as large as the output. libjpeg's
// reduction is sharper than the triangle filter, which the rest of the resize must hide. With 1 the
// worst photograph is 27 dB from exact, with 2 it is 37 dB.
constexpr int kKeptAfterReduction = 2;

// Scale in eighths at which to decode. `coarseness`: as JpegDecoder's.
int choose_scale(const Box& crop, const ImageSize& size, int coarseness = 1) {
  int scale = 8;
  const auto allows = [&](int from, int to, int eighths) {
    return from * eighths >= 8 * kKeptAfterReduction * coarseness * to;
  };
  while (coarseness > 0 && scale > 1 && allows(crop.width, size.width, scale / 2) &&
         allows(crop.height, size.height, scale / 2))
    scale /= 2;
  return scale;
}

// Rows that become columns are written together, so that a column's pixels share cache lines.
constexpr int kColumns = 16;

void interleave(const std::vector<uint8_t> (&channel)[3], int pixels, uint8_t* out) {
  for (size_t x = 0; x < size_t(pixels); ++x)
    for (size_t c = 0; c < 3; ++c) out[3 * x + c] = channel[c][x];
}

void grow(std::vector<uint8_t>& buffer, size_t bytes) {
  if (buffer.size() < bytes) buffer.resize(bytes);
}

}  // namespace

FastDecoder::FastDecoder(int64_t max_pixels, const FastKernels& kernels, ScanIndex* index)
    : kernels_(kernels), max_pixels_(max_pixels), index_(index), taps_(kFastMaxTaps) {}

std::optional<ImageInfo> FastDecoder::open(std::span<const std::byte> bytes,
                                           const std::string& where) {
  if (!as_text(bytes).starts_with("\xff\xd8\xff")) return std::nullopt;
  return open(bytes, nullptr, where);
}

std::optional<ImageInfo> FastDecoder::open(const SegmentedJpeg& segments,
                                           const std::string& where) {
  return open(segments.file(), &segments, where);
}

std::optional<ImageInfo> FastDecoder::open(std::span<const std::byte> bytes,
                                           const SegmentedJpeg* segments,
                                           const std::string& where) {
  bytes_ = bytes;
  segments_ = segments;
  key_.reset();
  has_header_ = false;
  const CodecHeader header = jpeg_.open(bytes, where, segments ? segments->width() : 0);
  if (!jpeg_.can_read_planes() || int64_t{header.width} * header.height > max_pixels_)
    return std::nullopt;
  width_ = header.width;
  height_ = header.height;
  orientation_ = orientation_of(header.orientation);
  // Exact mode shows those as stored.
  if (segments && !orientation_.is_upright()) return std::nullopt;
  ImageInfo info{ImageFormat::kJpeg, width_, height_, header.components};
  if (orientation_.exchanged) std::swap(info.width, info.height);
  return info;
}

std::optional<ImageInfo> FastDecoder::open_to_pack(const SegmentedJpeg& segments) {
  has_header_ = int64_t{segments.width()} * segments.height() <= max_pixels_ &&
                read_scan_header(segments.file(), segments.frame(), header_);
  if (!has_header_) return std::nullopt;
  segments_ = &segments;
  width_ = segments.width();
  height_ = header_.height;
  orientation_ = {};
  return ImageInfo{ImageFormat::kJpeg, width_, height_, header_.components};
}

const ScanKey& FastDecoder::key() {
  return key_ ? *key_ : key_.emplace(scan_key(bytes_));
}

bool FastDecoder::plan_plane(const JpegPlanes::Plane& plane, const SampleTransform& transform,
                             const ImageSize& size, Resize& resize) {
  const Box& crop = transform.crop;
  const auto make = [&](int begin, int length, int out, const JpegPlanes::Axis& from, bool mirrored,
                        FastAxis& axis) {
    return axis_maker_.make({begin, length, out, from.num, from.den, from.samples, from.doubled,
                             mirrored, from.repeated},
                            axis);
  };
  return make(crop.x, crop.width, size.width, plane.across, transform.flip, resize.across) &&
         make(crop.y, crop.height, size.height, plane.down, false, resize.down);
}

// Each output row waits for `bands_for_`; the ring holds decoded rows that are still needed.
void FastDecoder::plan_rings(const JpegPlanes& planes, int height) {
  bands_for_.assign(size_t(height), 0);
  int bands = 0;
  int kept[3] = {0, 0, 0};
  for (int y = 0; y < height; ++y) {
    for (int c = 0; c < planes.count; ++c) {
      const FastAxis& down = resize_of(c).down;
      const int rows = planes.plane[c].band_rows(), end = down.first[size_t(y)] + down.taps;
      bands = std::max(bands, divide_up(end, rows));
    }
    bands = std::min(bands, planes.end_band);
    bands_for_[size_t(y)] = bands;
    for (int c = 0; c < planes.count; ++c)
      kept[c] = std::max(kept[c],
                         bands * planes.plane[c].band_rows() - resize_of(c).down.first[size_t(y)]);
  }
  for (int c = 0; c < planes.count; ++c) {
    Ring& ring = ring_[c];
    ring.pitch = size_t(planes.plane[c].columns) + kFastSlack;
    ring.slots = std::bit_ceil(size_t(std::max(kept[c], planes.plane[c].band_rows())));
    grow(ring.samples, ring.pitch * ring.slots);
  }
}

bool FastDecoder::plan_axes(const JpegPlanes& planes, const SampleTransform& transform,
                            const ImageSize& size) {
  std::fill(std::begin(resize_at_), std::end(resize_at_), 0);
  for (int c = 0; c < planes.count; ++c) {
    const JpegPlanes::Plane& plane = planes.plane[c];
    const auto is_like = [&](const JpegPlanes::Plane& other) {
      return plane.across.has_ratio_of(other.across) && plane.down.has_ratio_of(other.down);
    };
    int& at = resize_at_[c];
    while (at < c && !is_like(planes.plane[at])) ++at;
    if (at == c && !plan_plane(plane, transform, size, resize_[c])) return false;
  }
  return true;
}

bool FastDecoder::plan(const JpegPlanes& planes, const SampleTransform& transform,
                       const ImageSize& size) {
  if (!plan_axes(planes, transform, size)) return false;
  for (int c = 0; c < planes.count; ++c)
    if (resize_at_[c] == c)
      make_fast_gather(resize_[c].across, resize_[c].across.low, resize_[c].gather);
  plan_rings(planes, size.height);
  size_t widest = 0;
  for (int c = 0; c < planes.count; ++c) widest = std::max(widest, size_t(planes.plane[c].columns));
  grow(blended_, widest + kFastSlack);
  for (auto& channel : channel_) {
    grow(channel, size_t(size.width) + kFastSlack);
    // Never overwritten for a grey image.
    if (planes.count == 1) std::fill(channel.begin(), channel.end(), uint8_t{128});
  }
  grow(rgb_, (size_t(size.width) + kFastSlack) * 3 * kColumns);
  return true;
}

size_t FastDecoder::plan_pack(const SampleTransform& transform, const ImageSize& size) {
  if (transform.fitted.width > 0) return 0;
  if (!segments_) {
    if (!index_ || !jpeg_.has_points()) return 0;
    index_->find(key(), points_);
    if (points_.point.empty()) return 0;
  }
  if (!has_header_ && !read_scan_header(jpeg_, header_)) return 0;
  const Cut cut = as_stored(transform, size);
  const Box& crop = cut.transform.crop;
  const JpegPlanes planes = plan_planes(header_, width_, crop, choose_scale(crop, cut.size));
  if (!plan_axes(planes, cut.transform, cut.size)) return 0;
  const int turn =
      (orientation_.exchanged ? kPackedColumns : 0) | (cut.reversed ? kPackedReversed : 0);
  return packer_.plan({header_,
                       planes,
                       segments_,
                       points_,
                       {&resize_[0].across, &resize_of(1).across},
                       {&resize_[0].down, &resize_of(1).down},
                       cut.size,
                       uint8_t(turn)});
}

void FastDecoder::pack(std::byte* out) {
  packer_.write(out);
  jpeg_.close();
}

FastDecoder::Points FastDecoder::find_points(std::span<const std::byte> bytes,
                                             const std::string& where) {
  const CodecSession session(jpeg_);
  if (!open(bytes, where) || !jpeg_.has_points()) return Points::kNone;
  const ScanKey key = scan_key(bytes);
  index_->find(key, points_);
  const size_t known = points_.point.size();
  if (known > 0 && points_.known_rows() == points_.rows) return Points::kKnown;
  bool found = jpeg_.find_points(where, points_);
  if (!found && known > 0) {  // they did not agree with the data
    index_->remove(key);
    points_.point.clear();
    jpeg_.open(bytes, where);
    found = jpeg_.find_points(where, points_);
  } else if (found && points_.point.size() == known) {
    return Points::kKnown;  // the last row has none
  }
  if (!found) return Points::kNone;
  index_->keep(key, points_);
  return Points::kFound;
}

FastDecoder::Cut FastDecoder::as_stored(const SampleTransform& transform,
                                        const ImageSize& size) const {
  Cut cut{transform, size, orientation_.from_bottom};
  Box& crop = cut.transform.crop;
  if (orientation_.exchanged) {
    std::swap(crop.x, crop.y);
    std::swap(crop.width, crop.height);
    std::swap(cut.size.width, cut.size.height);
  }
  if (orientation_.from_right) crop.x = width_ - crop.x - crop.width;
  if (orientation_.from_bottom) crop.y = height_ - crop.y - crop.height;
  cut.transform.flip = orientation_.from_right;
  bool& flipped = orientation_.exchanged ? cut.reversed : cut.transform.flip;
  flipped = flipped != transform.flip;
  return cut;
}

bool FastDecoder::read(const std::string& where, const SampleTransform& transform,
                       const ImageSize& whole, std::byte* out) {
  const CodecSession session(jpeg_);
  const Box filled = transform.filled(whole);
  const ptrdiff_t pitch = ptrdiff_t{whole.width} * 3;
  const int left = transform.flip ? whole.width - filled.x - filled.width : filled.x;
  uint8_t* const pixels = reinterpret_cast<uint8_t*>(out) + filled.y * pitch + ptrdiff_t{left} * 3;
  const Cut cut = as_stored(transform, ImageSize(filled.height, filled.width));
  Place to{pixels, 3, pitch};
  if (orientation_.exchanged) std::swap(to.right, to.down);
  if (cut.reversed) to = {pixels + (cut.size.height - 1) * to.down, to.right, -to.down};
  if (!index_ || segments_ || !jpeg_.has_points()) return read(where, cut, to, nullptr);
  index_->find(key(), points_);
  const size_t known = points_.point.size();
  const bool ok = read(where, cut, to, &points_);
  if (ok && points_.point.size() > known) index_->keep(key(), points_);
  if (ok || known == 0) return ok;
  // They did not agree with the data: the next decoding finds them again.
  index_->remove(key());
  jpeg_.open(bytes_, where);
  return read(where, cut, to, nullptr);
}

bool FastDecoder::read(const std::string& where, const Cut& cut, const Place& to,
                       ScanPoints* points) {
  const Box& crop = cut.transform.crop;
  const std::optional<JpegPlanes> planes = jpeg_.begin_planes(
      where, crop, choose_scale(crop, cut.size, jpeg_.coarseness()), segments_, points);
  if (!planes || !plan(*planes, cut.transform, cut.size)) return false;
  if (!stream(where, *planes, cut.size, to)) return false;
  jpeg_.check_end(where);
  return true;
}

bool FastDecoder::read_band(const std::string& where, const JpegPlanes& planes, int band) {
  constexpr int kMaxRows = MAX_SAMP_FACTOR * DCTSIZE;
  uint8_t* rows[3][kMaxRows] = {};
  for (int c = 0; c < planes.count; ++c) {
    const int count = planes.plane[c].band_rows();
    for (int i = 0; i < count; ++i) rows[c][i] = ring_[c].row(band * count + i);
  }
  uint8_t* const* const pointers[3] = {rows[0], rows[1], rows[2]};
  return jpeg_.read_band(where, pointers);
}

void FastDecoder::resize_row(const JpegPlanes& planes, int c, int y) {
  const Resize& resize = resize_of(c);
  const FastAxis &across = resize.across, &down = resize.down;
  const int offset = across.low - planes.plane[c].first_column;
  const int first = down.first[size_t(y)];
  const uint8_t* row = ring_[c].row(first) + offset;
  if (down.taps > 1) {
    for (int k = 0; k < down.taps; ++k) taps_[size_t(k)] = ring_[c].row(first + k) + offset;
    kernels_.blend_rows(taps_.data(), down.weight.data() + size_t(y) * size_t(down.taps), down.taps,
                        across.high - across.low, blended_.data());
    row = blended_.data();
  }
  kernels_.gather_row(resize.gather, row, channel_[c].data());
}

// Rows [begin, end), from rgb_.
void FastDecoder::put_columns(int begin, int end, int width, const Place& to) {
  const size_t pitch = (size_t(width) + kFastSlack) * 3;
  for (int x = 0; x < width; ++x) {
    const uint8_t* from = rgb_.data() + size_t(x) * 3;
    uint8_t* out = to.first + x * to.right + begin * to.down;
    for (int y = begin; y < end; ++y, from += pitch, out += to.down) std::memcpy(out, from, 3);
  }
}

bool FastDecoder::stream(const std::string& where, const JpegPlanes& planes, const ImageSize& size,
                         const Place& to) {
  const size_t pitch = (size_t(size.width) + kFastSlack) * 3;
  const int together = orientation_.exchanged ? kColumns : 1;
  int band = planes.first_band;
  for (int y = 0; y < size.height; ++y) {
    for (; band < bands_for_[size_t(y)]; ++band)
      if (!read_band(where, planes, band)) return false;
    for (int c = 0; c < planes.count; ++c) resize_row(planes, c, y);
    const int kept = y % together;
    uint8_t* const row = rgb_.data() + size_t(kept) * pitch;
    if (jpeg_.is_rgb())
      interleave(channel_, size.width, row);
    else
      kernels_.ycc_to_rgb(channel_[0].data(), channel_[1].data(), channel_[2].data(), size.width,
                          row);
    if (!orientation_.exchanged)
      std::copy_n(rgb_.data(), size_t(size.width) * 3, to.first + y * to.down);
    else if (kept == together - 1 || y == size.height - 1)
      put_columns(y - kept, y + 1, size.width, to);
  }
  return true;
}

}  // namespace saturate
