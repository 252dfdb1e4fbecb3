#include "tests/fuzz/fuzz_parsers.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>

#include "data/lmdb_format.h"
#include "data/lmdb_tree.h"
#include "data/safetensors_header.h"
#include "saturate/data/error.h"
#include "saturate/data/recipe.h"
#include "tests/fuzz/memory_env.h"

namespace saturate::testing {
namespace {

void require(bool sound, const char* what) {
  if (!sound) throw std::logic_error(what);
}

// The result of `body`, or 0 if it fails with that kind of error.
template <class Body>
size_t valid_or_refused(ErrorKind kind, const Body& body) {
  try {
    return body();
  } catch (const Error& error) {
    if (error.kind() != kind) throw std::logic_error(error.what());
    return 0;
  }
}

std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

void require_sound(const SafetensorsHeader& header, uint64_t data_bytes) {
  uint64_t end = 0;
  for (const SafetensorsEntry& entry : header.entries) {
    require(entry.begin == end && entry.end >= entry.begin && entry.end <= data_bytes,
            "a tensor that does not follow the one before it");
    end = entry.end;
    int64_t elements = 1;
    for (const int64_t extent : entry.shape) elements *= extent;
    require((end - entry.begin) % std::max<uint64_t>(1, uint64_t(elements)) == 0,
            "a tensor that is not as long as its shape");
  }
  require(end == data_bytes, "data of no tensor");
}

}  // namespace

size_t fuzz_recipe(std::span<const std::byte> bytes) {
  return valid_or_refused(ErrorKind::kUsage, [&] {
    const std::string saved = to_toml(parse_recipe(text_of(bytes), "input"));
    try {
      require(to_toml(parse_recipe(saved, "saved")) == saved, "it changes when saved and read");
    } catch (const Error& error) {
      throw std::logic_error(std::string("what was saved is refused: ") + error.what());
    }
    return 1;
  });
}

size_t fuzz_safetensors(std::span<const std::byte> bytes) {
  uint64_t length = 0;
  if (bytes.size() < sizeof length) return 0;
  std::memcpy(&length, bytes.data(), sizeof length);
  bytes = bytes.subspan(sizeof length);
  if (length > bytes.size()) return 0;
  return valid_or_refused(ErrorKind::kRun, [&] {
    const uint64_t data_bytes = bytes.size() - length;
    require_sound(parse_safetensors_header(text_of(bytes.first(length)), data_bytes, "input"),
                  data_bytes);
    return 1;
  });
}

size_t fuzz_lmdb(std::span<const std::byte> bytes) {
  return valid_or_refused(ErrorKind::kData,
                          [&] {
                            parse_meta(bytes, "input");
                            return 1;
                          }) +
         valid_or_refused(ErrorKind::kData,
                          [&] {
                            const LmdbRecord record = parse_record(bytes, "input");
                            require(record.name.size() + record.bytes.size() <= bytes.size(),
                                    "a record larger than the file");
                            return 1;
                          }) +
         valid_or_refused(ErrorKind::kData, [&] {
           const LmdbTree tree(std::make_unique<MemoryFile>(bytes), "input");
           const auto visit = [&](std::string_view, const LmdbValue& value) {
             require(value.size <= bytes.size() && value.offset <= bytes.size() - value.size,
                     "a value that reaches outside the file");
           };
           tree.visit_last(visit);
           tree.walk(visit);
           return 1;
         });
}

}  // namespace saturate::testing
