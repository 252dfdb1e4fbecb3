// Rewrites a JPEG's coefficients, like jpegtran: baseline, one scan, Huffman tables that are
// optimised or given.
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
  // For the coefficients of `from`, in a frame of that width. REQUIRES: within guarded().
  void begin(jpeg_decompress_struct& from, JDIMENSION width) {
    jpeg_create_compress(&info);
    info.dest = &destination.base;
    jpeg_copy_critical_parameters(&from, &info);
    info.image_width = width;
#if JPEG_LIB_VERSION >= 70
    info.jpeg_width = width;
#endif
  }
};

// Without a table libjpeg has decoded with the standard one, which it also encodes with.
void copy_huffman_table(const JHUFF_TBL* from, JHUFF_TBL*& to, jpeg_compress_struct& info) {
  if (from == nullptr) return;
  if (to == nullptr) to = jpeg_alloc_huff_table(reinterpret_cast<j_common_ptr>(&info));
  std::memcpy(to->bits, from->bits, sizeof to->bits);
  std::memcpy(to->huffval, from->huffval, sizeof to->huffval);
}

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
    // Memory for the planes, if reading them before has made none.
    (*info_.mem->realize_virt_arrays)(reinterpret_cast<j_common_ptr>(&info_));
    lacks_bits = is_incomplete();
    if (lacks_bits) return;
    for (int c = 0; c < info_.num_components; ++c)
      copy_blocks(info_, info_.comp_info[c], coefficients[c], planes[c], columns[c]);
    to.begin(info_, JDIMENSION(width));
    to.info.optimize_coding = TRUE;
    to.info.restart_interval = unsigned(restart);
    jpeg_write_coefficients(&to.info, planes);
    write_markers(info_, to.info);
    jpeg_finish_compress(&to.info);
  });
  if (!ok) report(where);
  if (lacks_bits) fail_image("progressive JPEG lacks scans", where);
}

bool JpegDecoder::transcode_like(const std::string& where, const JpegDecoder& like,
                                 std::vector<std::byte>& out) {
  const jpeg_decompress_struct& from = like.info_;
  if (from.progressive_mode || from.arith_code || from.data_precision != info_.data_precision ||
      from.num_components != info_.num_components || from.comps_in_scan != from.num_components ||
      from.image_width > info_.image_width || from.image_height != info_.image_height)
    return false;
  for (int c = 0; c < from.num_components; ++c)
    if (std::max(from.comp_info[c].dc_tbl_no, from.comp_info[c].ac_tbl_no) >= NUM_HUFF_TBLS)
      return false;
  jvirt_barray_ptr* coefficients = nullptr;
  if (!errors_.guarded([&] { coefficients = jpeg_read_coefficients(&info_); })) report(where);
  Compressor to(errors_.base, out);
  const bool ok = errors_.guarded([&] {
    to.begin(info_, from.image_width);
    to.info.optimize_coding = FALSE;
    to.info.restart_interval = from.restart_interval;
    for (int i = 0; i < NUM_HUFF_TBLS; ++i) {
      copy_huffman_table(from.dc_huff_tbl_ptrs[i], to.info.dc_huff_tbl_ptrs[i], to.info);
      copy_huffman_table(from.ac_huff_tbl_ptrs[i], to.info.ac_huff_tbl_ptrs[i], to.info);
    }
    for (int c = 0; c < from.num_components; ++c) {
      to.info.comp_info[c].dc_tbl_no = from.comp_info[c].dc_tbl_no;
      to.info.comp_info[c].ac_tbl_no = from.comp_info[c].ac_tbl_no;
    }
    jpeg_write_coefficients(&to.info, coefficients);
    jpeg_finish_compress(&to.info);
  });
  if (!ok && errors_.base.msg_code == JERR_OUT_OF_MEMORY) throw std::bad_alloc();
  return ok;
}

}  // namespace saturate
