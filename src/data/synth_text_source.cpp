// synth-text:KEY=VALUE,...: texts of a Markov chain, to train language models on data whose best
// loss is known. Text i depends only on (seed, split, i), and the chain on (seed, symbols).
#include <cmath>
#include <cstdio>
#include <cstring>

#include "data/markov_text.h"
#include "data/path_list.h"
#include "data/sources.h"
#include "saturate/data/error.h"

namespace saturate {
namespace {

// Sorted, so that symbols keep their order as text.
constexpr std::string_view kLetters =
    " .0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

struct TextOptions {
  size_t symbols = kLetters.size();
  size_t count = 10'000;  // texts
  size_t context = 128;   // symbols of a text, and one more
  uint64_t seed = 0;
  uint32_t split = 0;  // 0 train, 1 test: disjoint streams
};

class SynthTextSource : public IndexedSource {
 public:
  explicit SynthTextSource(const TextOptions& options)
      : options_(options), text_(int(options.symbols), options.seed) {
    const std::vector<int64_t> shape = {int64_t(options.context)};
    const std::string letters(kLetters.substr(0, options.symbols));
    fields_ = {{"x", ElementType::kInt64, shape, false, int64_t(options.symbols), letters},
               {"y", ElementType::kInt64, shape, true, int64_t(options.symbols), letters}};
  }

  size_t size() const override { return options_.count; }
  const std::vector<std::string>& classes() const override { return classes_; }
  const std::vector<TensorField>& tensors() const override { return fields_; }
  uint64_t bytes(size_t) const override { return bytes_of(std::span(fields_)); }
  int64_t label(size_t) const override { return 0; }

  std::string note() const override {
    char text[160];
    const double loss = text_.least_loss(options_.context);
    std::snprintf(text, sizeof text,
                  "entropy %.4f nats a symbol; the least loss for texts of this length is %.4f, "
                  "perplexity %.4f",
                  text_.entropy_rate(), loss, std::exp(loss));
    return text;
  }

  void read(size_t index, Sample& out) const override {
    RandomStream random(options_.seed, options_.split, index, RandomUse::kSynthetic);
    thread_local std::vector<uint16_t> symbols;
    symbols.resize(options_.context + 1);
    text_.draw(random, symbols);
    out.name = (options_.split == 0 ? "synth-text:train:" : "synth-text:test:");
    out.name += std::to_string(index);
    out.encoding = SampleEncoding::kTensors;
    out.label = 0;
    out.bytes.resize(2 * options_.context * sizeof(int64_t));
    for (size_t i = 0; i < symbols.size(); ++i) {
      const int64_t value = symbols[i];
      if (i > 0)
        std::memcpy(out.bytes.data() + (options_.context + i - 1) * sizeof value, &value,
                    sizeof value);
      if (i < options_.context)
        std::memcpy(out.bytes.data() + i * sizeof value, &value, sizeof value);
    }
  }

 private:
  TextOptions options_;
  MarkovText text_;
  std::vector<TensorField> fields_;
  std::vector<std::string> classes_;
};

}  // namespace

std::unique_ptr<Dataset> open_synth_text(Env&, const std::string& given) {
  std::string rest = "," + given;
  TextOptions options;
  const auto number = [&](const char* key, uint64_t least, uint64_t most, uint64_t otherwise) {
    return take_number(rest, key, least, most, "Write synth-text:count=4096,context=128")
        .value_or(otherwise);
  };
  options.symbols = number("symbols", 2, kLetters.size(), options.symbols);
  options.count = number("count", 1, 1'000'000'000, options.count);
  options.context = number("context", 1, 1 << 20, options.context);
  options.seed = number("seed", 0, UINT64_MAX, options.seed);
  options.split = take_word(rest, "split", "train", "test") == "test";
  if (rest.find_first_not_of(',') != std::string::npos) {
    const std::string key = rest.substr(1, rest.find('=') - 1);
    const std::string known[] = {"symbols", "count", "context", "seed", "split"};
    fail(ErrorKind::kUsage, "synth-text has no option \"" + key + "\"", "data.source",
         suggest(key, known));
  }
  return std::make_unique<SynthTextSource>(options);
}

}  // namespace saturate
