// Texts from a language model, token by token.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "saturate/model.h"

namespace saturate {

struct GenerationOptions {
  int64_t tokens = 200;    // after the prompt
  double temperature = 1;  // divides the logits; 0: always the likeliest token
  int64_t top_k = 0;       // draws among so many of the likeliest tokens; 0: among all
  uint64_t seed = 0;
};

// Draws `options.tokens` tokens after `prompt`, which is not empty, and calls `each` with every one
// of them; stops when it returns false. Each is predicted from the last `context` tokens at most.
// Draws only tokens below `vocabulary`; the model may have more outputs. The same seed gives the
// same tokens on the same device. Fails with kRun on logits that are not finite. Leaves the model
// in evaluation mode. REQUIRES: a model on `device`, and a prompt of its tokens.
void generate_tokens(Model& model, const at::Device& device, int64_t context, int64_t vocabulary,
                     std::vector<int64_t> prompt, const GenerationOptions& options,
                     const std::function<bool(int64_t token)>& each);

// The token at `uniform` in [0, 1) of the distribution that `logits` [V] float on the CPU give
// under the options: of the probabilities in the order of the tokens.
int64_t drawn_token(const at::Tensor& logits, const GenerationOptions& options, double uniform);

// Between texts and tokens of a vocabulary.
class Vocabulary {
 public:
  // `symbols`: the byte of each token; empty: bytes if there are 256 tokens, else numbers.
  Vocabulary(int64_t tokens, const std::string& symbols);
  bool is_text() const { return !symbols_.empty(); }
  // The tokens of a text, or of numbers separated by blanks or commas. Fails with kUsage on
  // anything that the vocabulary lacks.
  std::vector<int64_t> tokens(const std::string& prompt) const;
  // A token as text, or as a number and a blank.
  std::string text(int64_t token) const;
  // The token to start from without a prompt: a line end, else a blank, else the first.
  int64_t first() const;

 private:
  int64_t tokens_;
  std::string symbols_;
};

}  // namespace saturate
