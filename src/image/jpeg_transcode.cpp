// Rewrites a JPEG's coefficients, like jpegtran: baseline, one scan, optimised Huffman tables.
#include <jerror.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <string_view>

#include "image/jpeg_decoder.h"

namespace saturate {
namespace {

// libjpeg's output into a vector.
struct Destination {
  jpeg_destination_mgr base{};  // first, so that libjpeg's pointer to it is one to this
  std::vector<std::byte>& out;

  explicit Destination(std::vector<std::byte>& to) : out(to) {
    base.init_destination = [](j_compress_ptr info) { of(info).grow(info, 0); };
    base.empty_output_buffer = [](j_compress_ptr info) -> boolean {
      of(info).grow(info, of(info).out.size());
      return TRUE;
    };
    base.term_destination = [](j_compress_ptr info) {
      of(info).out.resize(of(info).out.size() - info->dest->free_in_buffer);
    };
  }
  static Destination& of(j_compress_ptr info) {
    return *reinterpret_cast<Destination*>(info->dest);
  }
  // Keeps the first `used` bytes.
  void grow(j_compress_ptr info, size_t used) {
    constexpr size_t kLeast = 1 << 16;
    bool enough = true;
    try {
      out.resize(std::max(2 * used, std::max(kLeast, out.capacity())));
    } catch (const std::bad_alloc&) {
      enough = false;  // no exception may pass through libjpeg's frames
    }
    if (!enough) ERREXIT1(info, JERR_OUT_OF_MEMORY, 0);
    base.next_output_byte = reinterpret_cast<JOCTET*>(out.data()) + used;
    base.free_in_buffer = out.size() - used;
  }
};

struct Compressor {
  jpeg_compress_struct info{};
  Destination destination;
  Compressor(jpeg_error_mgr& errors, std::vector<std::byte>& out) : destination(out) {
    info.err = &errors;
  }
  ~Compressor() { jpeg_destroy_compress(&info); }
};

bool begins(const jpeg_marker_struct& marker, std::string_view text) {
  return std::string_view(reinterpret_cast<const char*>(marker.data), marker.data_length)
      .starts_with(text);
}

// All except those that libjpeg writes automatically.
void write_markers(const jpeg_decompress_struct& from, jpeg_compress_struct& to) {
  for (auto* marker = from.marker_list; marker != nullptr; marker = marker->next) {
    if (to.write_JFIF_header && marker->marker == JPEG_APP0 && begins(*marker, {"JFIF\0", 5}))
      continue;
    if (to.write_Adobe_marker && marker->marker == JPEG_APP0 + 14 && begins(*marker, "Adobe"))
      continue;
    jpeg_write_marker(&to, marker->marker, marker->data, marker->data_length);
  }
}

// Blocks of one component, `columns` wide: those of `from`, then padding blocks of the fewest bits,
// which repeat the DC coefficient coded before them.
void copy_blocks(jpeg_decompress_struct& info, const jpeg_component_info& component,
                 jvirt_barray_ptr from, jvirt_barray_ptr to, JDIMENSION columns) {
  const auto common = reinterpret_cast<j_common_ptr>(&info);
  const auto across = JDIMENSION(component.h_samp_factor),
             down = JDIMENSION(component.v_samp_factor);
  const JDIMENSION real = std::min(component.width_in_blocks, columns);
  for (JDIMENSION top = 0; top < component.height_in_blocks; top += down) {
    JBLOCKARRAY in = (*info.mem->access_virt_barray)(common, from, top, down, FALSE);
    JBLOCKARRAY out = (*info.mem->access_virt_barray)(common, to, top, down, TRUE);
    for (JDIMENSION y = 0; y < down; ++y) std::memcpy(out[y], in[y], real * sizeof(JBLOCK));
    JDIMENSION x = real / across * across;  // the first MCU that is not complete
    JCOEF last = x == 0 ? JCOEF{0} : out[down - 1][x - 1][0];
    for (; x < columns; x += across) {
      for (JDIMENSION y = 0; y < down; ++y) {
        for (JDIMENSION i = x; i < x + across; ++i) {
          if (i >= real) out[y][i][0] = last;
          last = out[y][i][0];
        }
      }
    }
  }
}

}  // namespace

std::pair<int, int> JpegDecoder::mcu_size() const {
  return {info_.max_h_samp_factor * DCTSIZE, info_.max_v_samp_factor * DCTSIZE};
}

void JpegDecoder::transcode(const std::string& where, int width, int restart,
                            std::vector<std::byte>& out) {
  Compressor to(errors_.base, out);
  const int mcus = divide_up(width, mcu_size().first);
  bool lacks_bits = false;
  const bool ok = errors_.guarded([&] {
    jvirt_barray_ptr planes[MAX_COMPONENTS] = {};
    JDIMENSION columns[MAX_COMPONENTS] = {};
    for (int c = 0; c < info_.num_components; ++c) {
      const jpeg_component_info& component = info_.comp_info[c];
      const auto down = JDIMENSION(component.v_samp_factor);
      columns[c] = JDIMENSION(mcus * component.h_samp_factor);
      planes[c] = (*info_.mem->request_virt_barray)(
          reinterpret_cast<j_common_ptr>(&info_), JPOOL_IMAGE, TRUE, columns[c],
          (component.height_in_blocks + down - 1) / down * down, down);
    }
    jvirt_barray_ptr* coefficients = jpeg_read_coefficients(&info_);
    lacks_bits = is_incomplete();
    if (lacks_bits) return;
    for (int c = 0; c < info_.num_components; ++c)
      copy_blocks(info_, info_.comp_info[c], coefficients[c], planes[c], columns[c]);
    jpeg_create_compress(&to.info);
    to.info.dest = &to.destination.base;
    jpeg_copy_critical_parameters(&info_, &to.info);
    to.info.image_width = JDIMENSION(width);
    to.info.optimize_coding = TRUE;
    to.info.restart_interval = unsigned(restart);
    jpeg_write_coefficients(&to.info, planes);
    write_markers(info_, to.info);
    jpeg_finish_compress(&to.info);
    jpeg_finish_decompress(&info_);
  });
  if (!ok) report(where);
  if (lacks_bits) fail_image("progressive JPEG lacks scans", where);
}

}  // namespace saturate
