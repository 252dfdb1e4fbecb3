// Sources that draw their samples: their options, and what those of tensors have in common.
#pragma once

#include <fmt/format.h>

#include <limits>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/text.h"
#include "data/sources.h"
#include "saturate/data/error.h"
#include "saturate/data/random.h"

namespace saturate {

// "KEY=VALUE,...": every key is taken once, then finish() is called. All fail with kUsage.
class SynthArguments {
 public:
  SynthArguments(const char* scheme, std::string_view text)
      : scheme_(scheme), source_(scheme_ + ":" + std::string(text)) {
    if (text.ends_with(',')) text.remove_suffix(1);
    if (text.empty()) return;
    for (const std::string& pair : split_text(text, ',')) {
      const size_t equals = pair.find('=');
      if (equals == std::string::npos)
        fail(ErrorKind::kUsage, scheme_ + " option \"" + pair + "\" has no value", source_,
             "Write " + scheme_ + ":KEY=VALUE,KEY=VALUE");
      given_.emplace_back(pair.substr(0, equals), pair.substr(equals + 1));
    }
  }

  template <class T>
  void take(const char* key, T low, T high, T& out) {
    const bool is_whole = std::is_integral_v<T>;
    const std::string kind = is_whole ? "a whole number" : "a number";
    const std::string range = high == std::numeric_limits<T>::max()
                                  ? fmt::format("{} from {} on", kind, low)
                                  : fmt::format("{} from {} to {}", kind, low, high);
    take_each(key, range, [&](const std::string& text) {
      const auto value = parsed_number<T>(text);
      if (value) out = *value;
      return value && *value >= low && *value <= high;
    });
  }
  // One of two words: whether it is the second.
  template <class Flag>
  void take(const char* key, const char* first, const char* second, Flag& out) {
    take_each(key, fmt::format("{} or {}", first, second), [&](const std::string& text) {
      out = text == second;
      return out || text == first;
    });
  }

  void finish() const {
    for (const auto& [key, value] : given_)
      fail(ErrorKind::kUsage, scheme_ + " has no option \"" + key + "\"", source_,
           suggest(key, known_));
  }

 private:
  template <class Set>
  void take_each(const char* key, const std::string& range, const Set& set) {
    known_.emplace_back(key);
    std::erase_if(given_, [&](const auto& pair) {
      if (pair.first != key) return false;
      if (!set(pair.second))
        fail(ErrorKind::kUsage, scheme_ + " " + key + "=" + pair.second + " is not " + range,
             source_, std::string("Set ") + key + " to " + range);
      return true;
    });
  }

  const std::string scheme_, source_;
  std::vector<std::pair<std::string, std::string>> given_;
  std::vector<std::string> known_;
};

// Which samples are drawn: sample i depends only on seed, split and i.
struct SynthStream {
  const char* scheme;
  size_t count = 0;
  uint64_t seed = 0;
  uint32_t split = 0;  // 0 train, 1 test: disjoint streams
};

// Samples of tensors that are drawn.
class SynthTensors : public IndexedSource {
 public:
  SynthTensors(const SynthStream& stream, std::vector<TensorField> fields,
               std::vector<std::string> classes = {})
      : stream_(stream), fields_(std::move(fields)), classes_(std::move(classes)) {}

  size_t size() const override { return stream_.count; }
  const std::vector<std::string>& classes() const override { return classes_; }
  const std::vector<TensorField>& tensors() const override { return fields_; }
  uint64_t bytes(size_t) const override { return bytes_of(std::span(fields_)); }
  int64_t label(size_t) const override { return 0; }

  void read(size_t index, Sample& out) const override {
    RandomStream random(stream_.seed, stream_.split, index, RandomUse::kSynthetic);
    out.name =
        fmt::format("{}:{}:{}", stream_.scheme, stream_.split == 0 ? "train" : "test", index);
    out.encoding = SampleEncoding::kTensors;
    out.label = 0;
    out.bytes.resize(bytes_of(std::span(fields_)));
    draw(random, out.bytes.data());
  }

 private:
  // Writes a sample's fields. Called by any thread.
  virtual void draw(RandomStream& random, std::byte* out) const = 0;

  const SynthStream stream_;
  const std::vector<TensorField> fields_;
  const std::vector<std::string> classes_;
};

}  // namespace saturate
