// SPDX-License-Identifier: BSD-3-Clause
// Opens a recipe's source, optionally copied to faster storage, optionally cached in memory, and
// with an index of its JPEGs. Each is a Dataset that wraps another one, and changes no sample.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "saturate/data/data_options.h"
#include "saturate/data/dataset.h"

namespace saturate {

// Called from any thread, one call at a time, with increasing `done`, occasionally and at the end.
using ProgressCallback = std::function<void(size_t done, size_t total)>;

// open_dataset(), then options.stage, options.cache, and with DecodeMode::kFast options.index,
// whose file is written after epochs and when the result and its copies are destroyed. `progress`
// reports the copying, on the caller's thread, and may throw to cancel. `env` must outlive the
// result. If options.source is a table, any other table has its statistics and categories, and must
// have its columns.
std::unique_ptr<Dataset> open_input(Env& env, const std::string& uri, const DataOptions& options,
                                    const ProgressCallback& progress = {});

// Copies every sample of `source` (opened from `uri`, for messages) to a file in options.folder,
// which has no name once this returns, so that it is freed with the result or the process, however
// it ends; names, labels and errors of samples stay the source's. Returns `source` itself for
// kNone. Fails with kUsage if space is insufficient, before anything is copied, and with kRun if
// its thread is cancelled.
std::unique_ptr<Dataset> stage_dataset(Env& env, std::unique_ptr<Dataset> source,
                                       const std::string& uri, const StageOptions& options,
                                       int threads, const ProgressCallback& progress = {});

// Caches samples in memory after they are read: their bytes (kEncoded), or their pixels as returned
// by decode_sample() (kDecoded), which decoded() then returns without a copy. Samples beyond the
// budget, shared by all caches of the process, are read from `source` every time. Returns `source`
// itself for kNone and for kDevice, which caches after decoding.
std::unique_ptr<Dataset> cache_dataset(std::unique_ptr<Dataset> source,
                                       const CacheOptions& options);

// Bytes that this process can still allocate without evicting others, as far as the system reports.
uint64_t available_memory();

// Bytes presently in caches.
uint64_t cached_bytes();

}  // namespace saturate
