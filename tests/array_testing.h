// Files of arrays, tables and tokens for tests, written as numpy, zip and llm.c define them.
#pragma once

#include <zlib.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "saturate/data/dataset.h"
#include "tests/format_testing.h"

namespace saturate::testing {

// For batches of tensors.
inline LoaderOptions tensor_options(size_t batch, int threads = 1) {
  LoaderOptions options;
  options.batch = batch;
  options.threads = threads;
  options.output = BatchOutput::kTensors;
  options.seed = 6;
  return options;
}

template <class T>
std::string raw(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

template <class T>
std::vector<T> values_of(std::span<const std::byte> bytes, size_t count, size_t offset = 0) {
  std::vector<T> values(count);
  std::memcpy(values.data(), bytes.data() + offset, count * sizeof(T));
  return values;
}

// numpy.save's file, version 1.0.
inline std::string npy_of(const std::string& header, const std::string& values) {
  std::string text = header;
  while ((text.size() + 11) % 64 != 0) text += ' ';
  text += '\n';
  const auto length = uint16_t(text.size());
  std::string out("\x93NUMPY\x01\x00", 8);
  out.append(reinterpret_cast<const char*>(&length), 2);
  return out + text + values;
}

inline std::string npy(const std::string& type, const std::string& shape, const std::string& values,
                       bool fortran = false) {
  return npy_of("{'descr': '" + type + "', 'fortran_order': " + (fortran ? "True" : "False") +
                    ", 'shape': (" + shape + "), }",
                values);
}

// numpy.savez's archive, or with `deflated` numpy.savez_compressed's.
class ZipText {
 public:
  explicit ZipText(bool deflated) : deflated_(deflated) {}
  void add(const std::string& name, const std::string& bytes) {
    const std::string stored = deflated_ ? deflated(bytes, -15) : bytes;
    const auto crc =
        uint32_t(crc32(0, reinterpret_cast<const Bytef*>(bytes.data()), uInt(bytes.size())));
    begin_ = number<uint16_t>(20) + number<uint16_t>(0) + number<uint16_t>(deflated_ ? 8 : 0) +
             number<uint32_t>(0) + number(crc) + number(uint32_t(stored.size())) +
             number(uint32_t(bytes.size()));
    offset_ = uint32_t(members_.size());
    members_ += "PK\x03\x04" + with_name_length(name) + name + stored;
    add_name(name);
  }
  // One more name for the member that was added last.
  void add_name(const std::string& name) {
    directory_ += "PK\x01\x02" + number<uint16_t>(20) + with_name_length(name) +
                  number<uint16_t>(0) + number<uint16_t>(0) + number<uint16_t>(0) +
                  number<uint32_t>(0) + number(offset_) + name;
    ++count_;
  }
  std::string text() const {
    return members_ + directory_ + "PK\x05\x06" + number<uint32_t>(0) + number(count_) +
           number(count_) + number(uint32_t(directory_.size())) +
           number(uint32_t(members_.size())) + number<uint16_t>(0);
  }

 private:
  template <class T>
  static std::string number(T value) {
    return {reinterpret_cast<const char*>(&value), sizeof value};
  }
  std::string with_name_length(const std::string& name) const {
    return begin_ + number(uint16_t(name.size())) + number<uint16_t>(0);
  }

  const bool deflated_;
  std::string members_, directory_;
  std::string begin_;    // of the last member's headers, up to its sizes
  uint32_t offset_ = 0;  // of the last member
  uint16_t count_ = 0;
};

// x [5, 2] float32 with x[i] = {i, i + 0.5}, and y [5] int64 with y[i] = i % 3.
inline std::string small_npz(bool deflated) {
  ZipText zip(deflated);
  std::vector<float> x;
  std::vector<int64_t> y;
  for (int i = 0; i < 5; ++i) {
    x.push_back(float(i));
    x.push_back(float(i) + 0.5f);
    y.push_back(i % 3);
  }
  zip.add("x.npy", npy("<f4", "5, 2", raw(x)));
  zip.add("y.npy", npy("<i8", "5,", raw(y)));
  return zip.text();
}

// x [samples, longest] uint16 and its lengths n, from 2 on: sample i counts from i modulo 11, and
// after its end has 7777.
inline std::string counting_npz(int samples, int longest) {
  std::vector<uint16_t> x;
  std::vector<int32_t> n;
  for (int i = 0; i < samples; ++i) {
    n.push_back(2 + i * 7919 % (longest - 1));
    for (int j = 0; j < longest; ++j) x.push_back(uint16_t(j < n.back() ? (i + j) % 11 : 7777));
  }
  const std::string count = std::to_string(samples);
  ZipText zip(/*deflated=*/false);
  zip.add("x.npy", npy("<u2", count + ", " + std::to_string(longest), raw(x)));
  zip.add("n.npy", npy("<i4", count + ",", raw(n)));
  return zip.text();
}

inline std::string llmc_tokens(const std::vector<uint16_t>& tokens, uint32_t claimed) {
  std::vector<int32_t> header(256);
  header[0] = 20240520;
  header[1] = 1;
  header[2] = int32_t(claimed);
  return raw(header) + raw(tokens);
}

inline std::string small_safetensors(const std::string& type = "F32") {
  std::string header = R"({"x":{"dtype":")" + type +
                       R"(","shape":[3,2],"data_offsets":[0,24]},)"
                       R"("y":{"dtype":"U8","shape":[3],"data_offsets":[24,27]}})";
  const uint64_t length = header.size();
  return std::string(reinterpret_cast<const char*>(&length), 8) + header +
         raw(std::vector<float>{0, 1, 2, 3, 4, 5}) + std::string("\0\1\1", 3);
}

}  // namespace saturate::testing
