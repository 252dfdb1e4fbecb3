// synth:KEY=VALUE,...: images rendered on the fly and encoded as JPEG, to exercise the whole path
// of a real dataset. Sample i depends only on (seed, split, i) and the image options.
#include <charconv>
#include <optional>

#include "data/sources.h"
#include "data/synth_render.h"
#include "saturate/data/error.h"

namespace saturate {
namespace {

struct SynthOptions {
  int64_t size = 32;     // side, pixels
  int64_t count = 2000;  // images
  int64_t classes = 10;
  double difficulty = 0.3;
  uint64_t seed = 0;
  uint32_t split = 0;  // 0 train, 1 test: disjoint streams
  int64_t quality = 90;
  bool masks = false;
};

class SynthSource : public IndexedSource {
 public:
  explicit SynthSource(const SynthOptions& options)
      : options_(options), classes_(kShapeNames, kShapeNames + options.classes) {
    if (options.masks) classes_.insert(classes_.begin(), "background");
  }

  size_t size() const override { return size_t(options_.count); }
  const std::vector<std::string>& classes() const override { return classes_; }
  bool has_masks() const override { return options_.masks; }

  int64_t label(size_t index) const override { return options_.masks ? 0 : shape_of(index); }

  void read(size_t index, Sample& out) const override {
    thread_local Image image;
    RandomStream random(options_.seed, options_.split, index, RandomUse::kSynthetic);
    const int shape = shape_of(index);
    out.label = label(index);
    out.encoding = SampleEncoding::kEncoded;
    out.name = (options_.split == 0 ? "synth:train:" : "synth:test:") + std::to_string(index);
    render_shape(shape, int(options_.size), options_.difficulty, random, image, mask_of(out));
    out.bytes = encode_jpeg(image, int(options_.quality), true);
  }

 private:
  int shape_of(size_t index) const { return int(int64_t(index) % options_.classes); }

  // The mask's buffer, or null if there is none.
  uint8_t* mask_of(Sample& out) const {
    if (!options_.masks) return nullptr;
    out.mask.is_raw = true;
    out.mask.width = out.mask.height = int(options_.size);
    out.mask.name = out.name;
    out.mask.bytes.resize(size_t(options_.size * options_.size));
    return reinterpret_cast<uint8_t*>(out.mask.bytes.data());
  }

  SynthOptions options_;
  std::vector<std::string> classes_;
};

[[noreturn]] void fail_range(const std::string& key, std::string_view value, const char* range) {
  fail(ErrorKind::kUsage, "synth " + key + "=" + std::string(value) + " is not " + range,
       "data.source", "Set " + key + " to " + range);
}

template <class T>
std::optional<T> parse(std::string_view text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

template <class T>
void set_number(const std::string& key, std::string_view text, T low, T high, const char* range,
                T& out) {
  const auto value = parse<T>(text);
  if (!value || !(*value >= low && *value <= high)) fail_range(key, text, range);
  out = *value;
}

void set_option(SynthOptions& options, const std::string& key, std::string_view value) {
  constexpr auto kAny = UINT64_MAX;
  if (key == "size") {
    set_number<int64_t>(key, value, 8, 1024, "a whole number from 8 to 1024", options.size);
  } else if (key == "count") {
    set_number<int64_t>(key, value, 1, 100'000'000, "a whole number from 1 to 100000000",
                        options.count);
  } else if (key == "classes") {
    set_number<int64_t>(key, value, 2, kShapeCount, "a whole number from 2 to 10", options.classes);
  } else if (key == "difficulty") {
    set_number<double>(key, value, 0, 1, "a number from 0 to 1", options.difficulty);
  } else if (key == "seed") {
    set_number<uint64_t>(key, value, 0, kAny, "a whole number from 0 on", options.seed);
  } else if (key == "quality") {
    set_number<int64_t>(key, value, 1, 100, "a whole number from 1 to 100", options.quality);
  } else if (key == "split") {
    if (value != "train" && value != "test") fail_range(key, value, "train or test");
    options.split = value == "test";
  } else if (key == "masks") {
    if (value != "true" && value != "false") fail_range(key, value, "true or false");
    options.masks = value == "true";
  } else {
    const std::string known[] = {"size", "count", "classes", "difficulty",
                                 "seed", "split", "quality", "masks"};
    fail(ErrorKind::kUsage, "synth has no option \"" + key + "\"", "data.source",
         suggest(key, known));
  }
}

SynthOptions parse_spec(std::string_view spec) {
  SynthOptions options;
  while (!spec.empty()) {
    const auto comma = std::min(spec.find(','), spec.size());
    const std::string_view pair = spec.substr(0, comma);
    const auto equals = pair.find('=');
    if (equals == std::string_view::npos)
      fail(ErrorKind::kUsage, "synth option \"" + std::string(pair) + "\" has no value",
           "data.source", "Write synth:KEY=VALUE,KEY=VALUE");
    set_option(options, std::string(pair.substr(0, equals)), pair.substr(equals + 1));
    spec.remove_prefix(std::min(comma + 1, spec.size()));
  }
  return options;
}

}  // namespace

std::unique_ptr<Dataset> open_synth(Env&, const std::string& rest) {
  return std::make_unique<SynthSource>(parse_spec(rest));
}

}  // namespace saturate
