// tokens:FILE[,FILE...][,context=N][,vocabulary=N][,type=uint8|uint16|uint32]: flat files of token
// numbers, of uint8 the bytes of any file. A sample is N tokens, x, and the token after each of
// them, y; the samples of a file follow one another without a gap.
//
// A file of nanoGPT has nothing but tokens. One of llm.c begins with 256 int32: a magic number, a
// version and the number of tokens (its dataloader.h).
#include <algorithm>
#include <array>
#include <cstring>
#include <string_view>
#include <utility>

#include "base/thread_pool.h"
#include "data/path_list.h"
#include "data/sources.h"
#include "saturate/data/error.h"
#include "store/store_url.h"

namespace saturate {
namespace {

constexpr int32_t kMagic16 = 20240520, kMagic32 = 20240801;  // of llm.c
constexpr size_t kLlmcHeaderBytes = 256 * sizeof(int32_t);
constexpr size_t kContext = 1024;  // GPT-2's
constexpr uint64_t kByteTokens = 256;
constexpr std::pair<std::string_view, size_t> kWidths[] = {
    {"", 2}, {"uint8", 1}, {"uint16", 2}, {"uint32", 4}};

struct TokenFile {
  std::string path;
  std::unique_ptr<ReadableFile> file;
  uint64_t offset = 0, tokens = 0;
  size_t width = 2;  // bytes of a token
  size_t end = 0;    // samples of this file and those before it
};

size_t width_of(const std::string& type, const std::string& source) {
  for (const auto& [name, width] : kWidths)
    if (type == name) return width;
  fail(ErrorKind::kUsage, "type=" + type + " is not uint8, uint16 or uint32", source,
       "Write type=uint16, or type=uint8 for the bytes of a text");
}

TokenFile open_token_file(Env& env, const std::string& url, size_t width) {
  const std::string path = store_name(url);
  TokenFile opened;
  opened.path = path;
  opened.file = env.open_readable(url);
  opened.width = width;
  const uint64_t size = opened.file->size();
  std::array<int32_t, 3> header{};
  if (size >= kLlmcHeaderBytes && width > 1)
    opened.file->read_at(0, std::as_writable_bytes(std::span(header)));
  const bool is_16 = header[0] == kMagic16 && header[1] == 1,
             is_32 = header[0] == kMagic32 && header[1] == 7;
  if (!is_16 && !is_32 && (header[0] == kMagic16 || header[0] == kMagic32))
    fail(ErrorKind::kData,
         "the file begins with llm.c's magic number " + std::to_string(header[0]) +
             ", and its version " + std::to_string(header[1]) + " is unknown",
         path, "Write it again in version 1 (20240520, uint16) or 7 (20240801, uint32)");
  if (is_16 || is_32) {
    opened.width = is_16 ? 2 : 4;
    opened.offset = kLlmcHeaderBytes;
  }
  const uint64_t bytes = size - opened.offset;
  opened.tokens = bytes / opened.width;
  if (bytes % opened.width != 0)
    fail(ErrorKind::kData, "the file does not hold a whole number of tokens", path,
         "Check its type: uint16, or with ,type=uint8 or ,type=uint32 another");
  if (opened.offset > 0 && opened.tokens != uint64_t(uint32_t(header[2])))
    fail(ErrorKind::kData,
         "the header claims " + std::to_string(uint32_t(header[2])) + " tokens, and " +
             std::to_string(opened.tokens) + " follow",
         path, "It may be truncated: write or fetch it again");
  return opened;
}

class TokensSource : public IndexedSource {
 public:
  TokensSource(std::vector<TokenFile> files, size_t context, size_t vocabulary)
      : files_(std::move(files)), context_(context), vocabulary_(vocabulary) {
    const std::vector<int64_t> shape = {int64_t(context)};
    fields_ = {{"x", ElementType::kInt64, shape, false, int64_t(vocabulary)},
               {"y", ElementType::kInt64, shape, true, int64_t(vocabulary)}};
    for (TokenFile& file : files_) {
      size_ += size_t(file.tokens > 0 ? (file.tokens - 1) / context : 0);
      file.end = size_;
      look_ahead_ = std::max(look_ahead_, file.file->look_ahead());
    }
    const auto is_empty = [](const TokenFile& file) { return file.tokens == 0; };
    if (const auto file = std::ranges::find_if(files_, is_empty); file != files_.end())
      fail(ErrorKind::kData, "the file holds no tokens", file->path, "Write or upload it again");
    if (size_ == 0)
      fail(ErrorKind::kData,
           "there are fewer tokens than a sample has, " + std::to_string(context) + " and one more",
           files_.front().path, "Lower context");
  }

  size_t size() const override { return size_; }
  const std::vector<std::string>& classes() const override { return classes_; }
  const std::vector<TensorField>& tensors() const override { return fields_; }
  uint64_t bytes(size_t) const override { return bytes_of(std::span(fields_)); }
  int64_t label(size_t) const override { return 0; }

  uint64_t look_ahead() const override { return look_ahead_; }

  void advise(ReadAdvice advice, size_t first, size_t count) const override {
    for (size_t i = first; i < first + count; ++i) {
      const auto [file, token] = place_of(i);
      file->file->advise(advice, file->offset + token * file->width, bytes_at(*file));
    }
  }

  void read(size_t index, Sample& out) const override {
    const auto [file, token] = place_of(index);
    out.name.assign(file->path).append(": token ").append(std::to_string(token));
    out.encoding = SampleEncoding::kTensors;
    out.label = 0;
    out.bytes.resize(2 * context_ * sizeof(int64_t));
    std::vector<std::byte> raw(bytes_at(*file));
    file->file->read_at(file->offset + token * file->width, raw);
    int64_t previous = 0;
    for (size_t i = 0; i <= context_; ++i) {
      uint32_t value = 0;
      std::memcpy(&value, raw.data() + i * file->width, file->width);
      if (vocabulary_ > 0 && value >= vocabulary_)
        fail(ErrorKind::kData,
             "token " + std::to_string(token + i) + " is " + std::to_string(value) +
                 ", and the vocabulary has " + std::to_string(vocabulary_),
             out.name, "Correct vocabulary, or the file's type");
      const int64_t next = value;
      if (i > 0) {
        std::memcpy(out.bytes.data() + (i - 1) * sizeof next, &previous, sizeof next);
        std::memcpy(out.bytes.data() + (context_ + i - 1) * sizeof next, &next, sizeof next);
      }
      previous = next;
    }
  }

 private:
  // The file of a sample, and its first token in it.
  std::pair<std::vector<TokenFile>::const_iterator, uint64_t> place_of(size_t index) const {
    const auto file = std::ranges::upper_bound(files_, index, {}, &TokenFile::end);
    const size_t first = file == files_.begin() ? 0 : std::prev(file)->end;
    return {file, uint64_t(index - first) * context_};
  }
  size_t bytes_at(const TokenFile& file) const { return (context_ + 1) * file.width; }

  std::vector<TokenFile> files_;
  const size_t context_, vocabulary_;  // vocabulary: 0 if not given
  size_t size_ = 0;
  uint64_t look_ahead_ = 0;
  std::vector<TensorField> fields_;
  const std::vector<std::string> classes_;
};

}  // namespace

std::unique_ptr<Dataset> open_tokens(Env& env, const std::string& rest) {
  std::string list = rest;
  const size_t width =
      width_of(take_option(list, "type"), "tokens:" + rest.substr(0, rest.find('?')));
  const auto number = [&](const char* key) {
    return take_number(list, key, 1, kAnyNumber, "Write tokens:FILE,context=256");
  };
  const size_t context = number("context").value_or(kContext),
               vocabulary = number("vocabulary").value_or(width == 1 ? kByteTokens : 0);
  const std::vector<std::string> paths = expand_paths(env, list, "tokens");
  std::vector<TokenFile> files(paths.size());
  parallel_for(files.size(), opening_threads(paths),
               [&](size_t i) { files[i] = open_token_file(env, paths[i], width); });
  return std::make_unique<TokensSource>(std::move(files), context, vocabulary);
}

}  // namespace saturate
