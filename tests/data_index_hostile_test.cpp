// Index files that lie about their contents.
#include <gtest/gtest.h>

#include <cstring>

#include "data/index_file.h"
#include "tests/data_testing.h"
#include "tests/fuzz/fuzz_index.h"

namespace saturate {
namespace {

// Sizes that would need all memory are refused before it is asked for.
TEST(IndexFile, LyingSizesAreRefused) {
  const std::string sound = testing::index_of_fuzzed_jpegs();
  const testing::TempDir dir;
  const size_t trailer = sound.size() - 32, record = trailer - 3 * 32;
  struct Lie {
    size_t at, bytes;
  };
  for (const Lie lie :
       {Lie{trailer, 8}, Lie{trailer + 8, 8}, Lie{record + 16, 8}, Lie{record + 24, 4}})
    for (const uint64_t value : {uint64_t{0}, uint64_t{1} << 31, uint64_t{1} << 62, UINT64_MAX}) {
      std::string text = sound;
      std::memcpy(text.data() + lie.at, &value, lie.bytes);
      testing::write_file(dir / "x.points", text);
      IndexState state;
      std::string problem;
      EXPECT_FALSE(IndexFile::open(Env::posix(), dir / "x.points", state, problem))
          << lie.at << " " << value;
      EXPECT_NO_THROW(testing::fuzz_index(std::as_bytes(std::span(text))));
    }
}

}  // namespace
}  // namespace saturate
