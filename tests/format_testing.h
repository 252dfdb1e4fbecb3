// Helpers of the tests of data formats: goldens written by tests/oracles/format_goldens.py.
#pragma once

#include <zlib.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/data_testing.h"
#include "tests/paths.h"

namespace saturate::testing {

inline std::string format_golden(const std::string& name) {
  return source_path("tests/goldens/formats/" + name);
}

inline std::string gunzip(const std::string& path) {
  const std::unique_ptr<gzFile_s, int (*)(gzFile)> file(gzopen(path.c_str(), "rb"), gzclose);
  std::string text;
  char buffer[4096];
  for (int got; file && (got = gzread(file.get(), buffer, sizeof buffer)) > 0;)
    text.append(buffer, size_t(got));
  return text;
}

// Deflated; `window_bits` as of zlib's deflateInit2.
inline std::string deflated(const std::string& text, int window_bits) {
  z_stream stream{};
  deflateInit2(&stream, 9, Z_DEFLATED, window_bits, 8, Z_DEFAULT_STRATEGY);
  std::string out(deflateBound(&stream, text.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = uInt(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = uInt(out.size());
  deflate(&stream, Z_FINISH);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

inline std::string gzip(const std::string& text) {
  return deflated(text, 15 + 16);
}

// A line of a golden's .tsv.
struct ExpectedSample {
  std::string class_name;
  int width, height, channels;  // 0 for an encoded sample
  uint64_t hash;
  std::string name;
};

inline std::vector<ExpectedSample> expected_samples(const std::string& golden) {
  std::vector<ExpectedSample> expected;
  std::ifstream file(format_golden(golden + ".tsv"));
  for (std::string line; std::getline(file, line);) {
    ExpectedSample e;
    std::istringstream(line) >> e.class_name >> e.width >> e.height >> e.channels >> std::hex >>
        e.hash >> e.name;
    expected.push_back(e);
  }
  return expected;
}

// `prefix` comes before every name.
inline void expect_samples(const Dataset& dataset, const std::string& golden,
                           const std::string& prefix) {
  const auto expected = expected_samples(golden);
  ASSERT_FALSE(expected.empty());
  ASSERT_EQ(dataset.size(), expected.size());
  Sample sample;
  for (size_t i = 0; i < expected.size(); ++i) {
    const ExpectedSample& e = expected[i];
    dataset.read(i, sample);
    EXPECT_EQ(dataset.classes()[size_t(sample.label)], e.class_name) << i;
    EXPECT_EQ(sample.encoding, e.width ? SampleEncoding::kRaw : SampleEncoding::kEncoded) << i;
    if (e.width) {
      EXPECT_EQ(sample.width, e.width) << i;
      EXPECT_EQ(sample.height, e.height) << i;
      EXPECT_EQ(sample.channels, e.channels) << i;
    }
    EXPECT_EQ(hash_bytes(sample.bytes), e.hash) << i;
    EXPECT_EQ(sample.name, prefix + e.name);
  }
}

// The samples that tests/oracles/format_goldens.py writes to its shard and its LMDB.
class OracleDataset : public Dataset {
 public:
  size_t size() const override { return 9; }
  const std::vector<std::string>& classes() const override { return classes_; }
  void read(size_t i, Sample& out) const override {
    constexpr size_t kSizes[] = {0, 1, 63, 64, 65, 700, 1500, 37};
    const bool raw = i == 2 || i == 5;
    out.label = int64_t(i % 3);
    out.name = "/data/set/" + classes_[i % 3] + "/" + std::to_string(i) + ".jpg";
    out.encoding = raw ? SampleEncoding::kRaw : SampleEncoding::kEncoded;
    out.width = i == 2 ? 5 : 7;
    out.height = i == 2 ? 4 : 3;
    out.channels = i == 2 ? 3 : 1;
    out.bytes.resize(raw ? size_t(out.width) * size_t(out.height) * size_t(out.channels)
                         : kSizes[i % 8]);
    for (size_t j = 0; j < out.bytes.size(); ++j)
      out.bytes[j] = std::byte(raw ? (i + j * 11) % 256 : (i * 31 + j * 7 + j / 251) % 256);
  }

 private:
  std::vector<std::string> classes_{"b\u00e4r", "cat", "dog"};
};

// Both hold the same samples in the same order; names may differ.
inline void expect_equal(const Dataset& a, const Dataset& b) {
  ASSERT_EQ(a.size(), b.size());
  EXPECT_EQ(a.classes(), b.classes());
  Sample x, y;
  for (size_t i = 0; i < a.size(); ++i) {
    a.read(i, x);
    b.read(i, y);
    ASSERT_EQ(x.bytes, y.bytes) << x.name;
    ASSERT_EQ(x.label, y.label) << x.name;
    ASSERT_EQ(x.encoding, y.encoding) << x.name;
    if (x.encoding == SampleEncoding::kRaw) {
      ASSERT_EQ(x.width, y.width);
      ASSERT_EQ(x.height, y.height);
      ASSERT_EQ(x.channels, y.channels);
    }
  }
}

}  // namespace saturate::testing
