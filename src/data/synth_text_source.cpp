// synth-text:KEY=VALUE,...: texts of a Markov chain, to train language models on data whose best
// loss is known. Text i depends only on (seed, split, i), and the chain on (seed, symbols).
#include <cmath>
#include <cstring>

#include "data/markov_text.h"
#include "data/synth_tensors.h"

namespace saturate {
namespace {

// Sorted, so that symbols keep their order as text.
constexpr std::string_view kLetters =
    " .0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

struct TextOptions {
  SynthStream stream{"synth-text", 10'000};
  size_t symbols = kLetters.size();
  size_t context = 128;  // symbols of a text, and one more
};

std::vector<TensorField> fields_of(const TextOptions& options) {
  const std::vector<int64_t> shape = {int64_t(options.context)};
  const std::string letters(kLetters.substr(0, options.symbols));
  return {{"x", ElementType::kInt64, shape, false, int64_t(options.symbols), letters},
          {"y", ElementType::kInt64, shape, true, int64_t(options.symbols), letters}};
}

class SynthTextSource : public SynthTensors {
 public:
  explicit SynthTextSource(const TextOptions& options)
      : SynthTensors(options.stream, fields_of(options)),
        context_(options.context),
        text_(int(options.symbols), options.stream.seed) {}

  std::string note() const override {
    const double loss = text_.least_loss(context_);
    return fmt::format(
        "entropy {:.4f} nats a symbol; the least loss for texts of this length is {:.4f}, "
        "perplexity {:.4f}",
        text_.entropy_rate(), loss, std::exp(loss));
  }

 private:
  void draw(RandomStream& random, std::byte* out) const override {
    thread_local std::vector<uint16_t> symbols;
    thread_local std::vector<int64_t> values;
    symbols.resize(context_ + 1);
    text_.draw(random, symbols);
    values.assign(symbols.begin(), symbols.end());
    const size_t bytes = context_ * sizeof(int64_t);
    std::memcpy(out, values.data(), bytes);
    std::memcpy(out + bytes, values.data() + 1, bytes);
  }

  const size_t context_;
  const MarkovText text_;
};

}  // namespace

std::unique_ptr<Dataset> open_synth_text(Env&, const std::string& rest) {
  TextOptions options;
  SynthArguments arguments("synth-text", rest);
  arguments.take<size_t>("symbols", 2, kLetters.size(), options.symbols);
  arguments.take<size_t>("count", 1, 1'000'000'000, options.stream.count);
  arguments.take<size_t>("context", 1, 1 << 20, options.context);
  arguments.take<uint64_t>("seed", 0, UINT64_MAX, options.stream.seed);
  arguments.take("split", "train", "test", options.stream.split);
  arguments.finish();
  return std::make_unique<SynthTextSource>(options);
}

}  // namespace saturate
