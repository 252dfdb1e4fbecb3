// The note in a JPEG in segments from which the original's bytes are restored,
// docs/shard_format.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace saturate {

// The bytes of a file that its coefficients do not determine.
struct RestoreNote {
  std::vector<std::byte> header;     // up to the scan's entropy-coded data
  std::span<const std::byte> after;  // what follows these data
  uint32_t checksum = 0;             // of the whole file
};

// Adds a note to `stored`, a JPEG of the same markers whose frame may be wider than the image's
// `width`, in pixels. False, and `stored` is unchanged, if a marker cannot hold the note, `after`
// has more than 512 bytes, or the header cannot be restored from the note.
bool add_restore_note(const RestoreNote& note, int width, std::vector<std::byte>& stored);

// Empty if there is no note, or one that is not valid. `after` points into `stored`.
std::optional<RestoreNote> read_restore_note(std::span<const std::byte> stored, int width);

}  // namespace saturate
