#include "run/text_generation.h"

#include <ATen/ops/isfinite.h>
#include <ATen/ops/tensor.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/text.h"
#include "saturate/data/error.h"
#include "saturate/data/random.h"

namespace saturate {
namespace {

constexpr int64_t kByteSymbols = 256;

// Those of the `count` largest logits, in the order of the tokens; of equal ones the first.
std::vector<int64_t> largest_tokens(const float* logits, int64_t tokens, int64_t count) {
  std::vector<int64_t> order(static_cast<size_t>(tokens));
  std::iota(order.begin(), order.end(), 0);
  if (count <= 0 || count >= tokens) return order;
  std::ranges::stable_sort(order, [&](int64_t a, int64_t b) { return logits[a] > logits[b]; });
  order.resize(size_t(count));
  std::ranges::sort(order);
  return order;
}

// The UTF-8 character that has the byte at `at`.
std::string character_at(const std::string& text, size_t at) {
  const auto continues = [&](size_t i) {
    return (static_cast<unsigned char>(text[i]) & 0xc0) == 0x80;
  };
  size_t end = at + 1;
  while (at > 0 && continues(at)) --at;
  while (end < text.size() && continues(end)) ++end;
  return text.substr(at, end - at);
}

[[noreturn]] void fail_prompt(const std::string& what, const std::string& remedy) {
  fail(ErrorKind::kUsage, what, "--generate", remedy);
}

}  // namespace

int64_t drawn_token(const at::Tensor& logits, const GenerationOptions& options, double uniform) {
  const float* const values = logits.const_data_ptr<float>();
  const int64_t tokens = logits.numel();
  const float most = *std::max_element(values, values + tokens);
  if (options.temperature == 0) return std::find(values, values + tokens, most) - values;
  const auto candidates = largest_tokens(values, tokens, options.top_k);
  std::vector<double> sums;
  double sum = 0;
  for (const int64_t token : candidates)
    sums.push_back(sum += std::exp((double(values[token]) - most) / options.temperature));
  const auto found = std::ranges::upper_bound(sums, uniform * sum);
  return candidates[size_t(std::min(found, std::prev(sums.end())) - sums.begin())];
}

void generate_tokens(Model& model, const at::Device& device, int64_t context, int64_t vocabulary,
                     std::vector<int64_t> prompt, const GenerationOptions& options,
                     const std::function<bool(int64_t token)>& each) {
  const c10::InferenceMode inference;
  model.set_training(false);
  RandomStream random(options.seed, 0, 0, RandomUse::kGenerate);
  for (int64_t i = 0; i < options.tokens; ++i) {
    const size_t seen = std::min(prompt.size(), size_t(context));
    const auto last = at::ArrayRef<int64_t>(prompt).slice(prompt.size() - seen);
    const at::Tensor input = at::tensor(last, at::kLong).unsqueeze(0).to(device);
    const at::Tensor logits = model.forward(input)
                                  .select(0, 0)
                                  .select(0, -1)
                                  .narrow(0, 0, vocabulary)
                                  .to(at::kCPU, at::kFloat)
                                  .contiguous();
    if (!at::isfinite(logits).all().item<bool>())
      fail(ErrorKind::kRun, "the model's logits are not finite", "--generate",
           "Choose a checkpoint from before the loss diverged");
    const int64_t token = drawn_token(logits, options, random.next_double());
    prompt.push_back(token);
    if (!each(token)) return;
  }
}

Vocabulary::Vocabulary(int64_t tokens, const std::string& symbols)
    : tokens_(tokens), symbols_(symbols) {
  for (int64_t i = 0; symbols.empty() && tokens == kByteSymbols && i < tokens; ++i)
    symbols_ += char(static_cast<unsigned char>(i));
}

std::vector<int64_t> Vocabulary::tokens(const std::string& prompt) const {
  std::vector<int64_t> found;
  if (is_text()) {
    for (size_t at = 0; at < prompt.size(); ++at) {
      const size_t token = symbols_.find(prompt[at]);
      if (token == std::string::npos)
        fail_prompt("the prompt has the character \"" + character_at(prompt, at) +
                        "\", which the model's vocabulary lacks",
                    "Use characters of \"" + symbols_ + "\"");
      found.push_back(int64_t(token));
    }
    return found;
  }
  constexpr const char* kBlanks = " ,\t\n";
  for (size_t at = 0; (at = prompt.find_first_not_of(kBlanks, at)) != std::string::npos;) {
    const std::string word = prompt.substr(at, prompt.find_first_of(kBlanks, at) - at);
    const int64_t token = parsed_number<int64_t>(word).value_or(-1);
    if (token < 0 || token >= tokens_)
      fail_prompt("\"" + word + "\" is not a token, a number below " + std::to_string(tokens_),
                  "Write the prompt as numbers of the model's vocabulary, like \"17 4\"");
    found.push_back(token);
    at += word.size();
  }
  return found;
}

std::string Vocabulary::text(int64_t token) const {
  if (!is_text()) return std::to_string(token) + " ";
  return token < int64_t(symbols_.size()) ? std::string(1, symbols_[size_t(token)]) : "";
}

int64_t Vocabulary::first() const {
  for (const char symbol : {'\n', ' '})
    if (const size_t token = symbols_.find(symbol); token != std::string::npos)
      return int64_t(token);
  return 0;
}

}  // namespace saturate
