// Small language models, and tokens for them, as in tests/oracles/language_goldens.py.
#pragma once

#include <ATen/Context.h>

#include <cmath>
#include <memory>
#include <string>

#include "saturate/model.h"
#include "tests/formula.h"

namespace saturate::testing {

constexpr int kVocabulary = 65, kContext = 16;

inline ModelInput language_input(int vocabulary = kVocabulary, int64_t context = kContext) {
  ModelInput input{vocabulary, 0, Env::posix()};
  input.tensor = {"x", ElementType::kInt64, {context}, false, vocabulary};
  return input;
}

inline std::unique_ptr<Model> language_model(const std::string& name = "gpt_tiny",
                                             Attention attention = Attention::kSdpa,
                                             const ModelInput& input = language_input()) {
  ModelOptions options;
  options.name = name;
  options.attention = attention;
  at::manual_seed(0);
  return make_model(options, input);
}

inline at::Tensor tokens(const std::string& name, int64_t sequences = 2, int64_t count = kContext) {
  return formula_tensor(name, {sequences, count},
                        [](double u) { return std::floor(u * kVocabulary); })
      .to(at::kLong);
}

}  // namespace saturate::testing
