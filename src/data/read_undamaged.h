// Reading again what came damaged from storage that is far away.
#pragma once

#include <cstdint>

#include "saturate/data/env.h"
#include "saturate/data/error.h"

namespace saturate {

// Returns read(). If that fails with kData, and `source`, a file or a dataset, is far away, bytes
// may have been damaged on the way or in a cache: all copies of what begins in [first, first +
// count) are dropped, and read() is called once more.
template <class Source, class Read>
auto read_undamaged(const Source& source, uint64_t first, uint64_t count, Read&& read) {
  try {
    return read();
  } catch (const Error& error) {
    if (source.look_ahead() == 0 || error.kind() != ErrorKind::kData) throw;
  }
  source.advise(ReadAdvice::kDamaged, first, count);
  return read();
}

}  // namespace saturate
