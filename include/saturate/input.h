// A source as a recipe asks for it: opened, perhaps copied to faster storage, perhaps kept in
// memory. Both are Datasets around another one, and change no sample.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "saturate/data_options.h"
#include "saturate/dataset.h"
#include "saturate/inspect.h"

namespace saturate {

// open_dataset(), then what options.stage and options.cache ask for. `progress` is told how far the
// copying is, on the caller's thread, and may throw to give up. `env` must outlive the result.
std::unique_ptr<Dataset> open_input(Env& env, const std::string& uri, const DataOptions& options,
                                    const ProgressCallback& progress = {});

// Copies every sample of `source` (opened from `uri`, for messages) to a file in options.folder,
// which has no name once this returns, so that it is gone when the result is, or the process,
// however it ends; names, labels and errors of samples stay the source's. Returns `source` itself
// for kNone. Fails with kUsage where the space is too small, before anything is copied.
std::unique_ptr<Dataset> stage_dataset(Env& env, std::unique_ptr<Dataset> source,
                                       const std::string& uri, const StageOptions& options,
                                       int threads, const ProgressCallback& progress = {});

// Keeps samples in memory once they have been read: their bytes (kEncoded), or their pixels as
// decode_sample() gives them (kDecoded), which decoded() then hands out without a copy. What goes
// beyond the budget, which all caches of the process share, is read from `source` every time.
// Returns `source` itself for kNone and for kDevice, whose place is after decoding.
std::unique_ptr<Dataset> cache_dataset(std::unique_ptr<Dataset> source,
                                       const CacheOptions& options);

// Bytes of memory that this process can still take without pushing others out, as far as the system
// tells.
uint64_t available_memory();

// Bytes that caches hold at the moment.
uint64_t cached_bytes();

}  // namespace saturate
