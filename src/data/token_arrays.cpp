// npy:, npz: and safetensors: with ,vocabulary=N: arrays of tokens as samples of a language model.
#include <algorithm>
#include <cstring>
#include <utility>

#include "data/array_source.h"
#include "data/elements.h"
#include "saturate/data/error.h"

namespace saturate {
namespace {

// x, all tokens but the last, and y, the token after each of them, in the array's type.
class TokenArrays : public WrappedSource<IndexedSource> {
 public:
  // `offset`: of the array `tokens` in a sample of `source`, in bytes.
  TokenArrays(std::unique_ptr<IndexedSource> source, const TensorField& tokens, size_t offset,
              size_t vocabulary)
      : WrappedSource(std::move(source)),
        element_(element_row(tokens.type)),
        offset_(offset),
        field_bytes_(tokens.bytes() - element_.bytes),
        fields_{tokens, tokens} {
    for (TensorField& field : fields_) {
      --field.shape[0];
      field.values = int64_t(vocabulary);
    }
    fields_[1].name = "y";
    fields_[1].is_target = true;
  }

  const std::vector<TensorField>& tensors() const override { return fields_; }
  size_t length(size_t index) const override {
    return fields_[0].is_sequence ? source_->length(index) - 1 : 0;
  }
  uint64_t bytes(size_t) const override { return 2 * field_bytes_; }
  int64_t label(size_t) const override { return 0; }

  void read(size_t index, Sample& out) const override {
    source_->read(index, out);
    const size_t used = length(index) > 0 ? length(index) : size_t(fields_[0].shape[0]);
    const std::byte* const tokens = out.bytes.data() + offset_;
    for (size_t i = 0; i <= used; ++i) require_known(tokens + i * element_.bytes, i, out.name);
    std::memmove(out.bytes.data(), tokens, field_bytes_ + element_.bytes);
    out.bytes.resize(2 * field_bytes_);
    std::byte* const x = out.bytes.data();
    std::memmove(x + field_bytes_, x + element_.bytes, field_bytes_);
  }

 private:
  void require_known(const std::byte* from, size_t place, const std::string& name) const {
    const int64_t token = element_.whole_number(from);
    if (token >= 0 && token < fields_[0].values) return;
    fail(ErrorKind::kData,
         "token " + std::to_string(place) + " is " +
             (token < 0 && element_.number(from) > 0 ? "2^63 or more" : std::to_string(token)) +
             ", and the vocabulary has " + std::to_string(fields_[0].values),
         name, "Correct vocabulary, or the tokens");
  }

  const ElementRow& element_;
  const size_t offset_, field_bytes_;
  std::vector<TensorField> fields_;
};

}  // namespace

std::unique_ptr<Dataset> split_tokens(std::unique_ptr<IndexedSource> source,
                                      const ArrayChoice& choice, const std::string& path) {
  size_t offset = 0, before = 0;
  const TensorField* tokens = nullptr;
  for (const TensorField& field : source->tensors()) {
    // An array may have an empty name.
    const bool is_lengths = !choice.lengths.empty() && field.name == choice.lengths;
    if (!is_lengths && (tokens || field.is_target))
      fail(ErrorKind::kUsage,
           "vocabulary= is for an array of tokens, whose target is the next token, and the source "
           "also has " +
               (field.is_target ? field.name : tokens->name + " and " + field.name),
           path, "Name only the tokens, and the lengths if they vary, with fields=NAME+NAME");
    if (!is_lengths) {
      tokens = &field;
      offset = before;
    }
    before += field.bytes();
  }
  if (tokens->shape.size() != 1 || tokens->shape[0] < 2 || !is_integer(tokens->type) ||
      tokens->name == "y")
    fail(ErrorKind::kUsage, "array \"" + tokens->name + "\" is not one of tokens", path,
         "Give whole numbers [samples, 2 tokens or more], in an array not named y");
  for (size_t i = 0; tokens->is_sequence && i < source->size(); ++i)
    if (source->length(i) < 2)
      fail(ErrorKind::kData, "sample " + std::to_string(i) + " has one token, and none after it",
           path, "Remove samples of one token, or add one that ends each sample");
  return std::make_unique<TokenArrays>(std::move(source), *tokens, offset, choice.vocabulary);
}

}  // namespace saturate
