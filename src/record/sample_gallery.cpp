#include "record/sample_gallery.h"

#include <ATen/ops/softmax.h>
#include <ATen/ops/where.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>

#include "saturate/data/image.h"
#include "task/cross_entropy.h"

namespace saturate {
namespace {

using nlohmann::ordered_json;

constexpr int kLargestPng = 64;  // pixels a side
constexpr int kJpegQuality = 90;

struct Mistake {
  Image image;
  int64_t label, predicted;
  double probability, loss;
  std::string name;
};

std::string dumped(const ordered_json& json) {
  return json.dump(1, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace

struct SampleGallery::State {
  Env& env;
  const std::string folder;
  const std::vector<std::string> classes;
  const Normalize normalize;
  const int64_t count;
  std::vector<Mistake> mistakes;  // highest loss first, at most `count`

  // Undoes the normalisation. `pixels`: [3, S, S] on the host.
  Image image_of(const at::Tensor& pixels) const {
    const at::Tensor planes = pixels.to(at::kFloat).contiguous();
    const float* in = planes.const_data_ptr<float>();
    Image image;
    image.resize(int(planes.size(2)), int(planes.size(1)));
    const size_t area = size_t(image.width) * size_t(image.height);
    for (size_t c = 0; c < 3; ++c)
      for (size_t i = 0; i < area; ++i) {
        const float value = (in[c * area + i] - normalize.shift[c]) / normalize.scale[c];
        image.pixels[i * 3 + c] = uint8_t(std::lround(std::clamp(value, 0.0f, 255.0f)));
      }
    return image;
  }

  static bool is_png(const Image& image) {
    return std::max(image.width, image.height) <= kLargestPng;
  }
  static std::vector<std::byte> encoded(const Image& image) {
    return is_png(image) ? encode_png(image.pixels.data(), image.width, image.height, 3)
                         : encode_jpeg(image, kJpegQuality, true);
  }

  std::string class_of(int64_t label) const {
    return label >= 0 && label < std::ssize(classes) ? classes[size_t(label)]
                                                     : std::to_string(label);
  }

  // Writes one image; returns its file's name.
  std::string write(const std::string& kind, size_t number, const Image& image,
                    const std::vector<std::byte>& bytes) const {
    const std::string name =
        fmt::format("{}-{:03}.{}", kind, number, is_png(image) ? "png" : "jpg");
    const std::span<const std::byte> piece(bytes);
    write_atomically(env, folder + "/" + name, {&piece, 1});
    return name;
  }
};

SampleGallery::SampleGallery(Env& env, const std::string& run_folder,
                             std::vector<std::string> classes, const AugmentOptions& augment,
                             int count)
    : state_(new State{
          env, run_folder + "/samples", std::move(classes), make_normalize(augment), count, {}}) {}
SampleGallery::~SampleGallery() = default;

std::vector<TaggedImage> SampleGallery::write_training(int64_t step, const DeviceBatch& batch) {
  State& state = *state_;
  state.env.make_directories(state.folder);
  const int64_t count = std::min(state.count, batch.count());
  const at::Tensor images = batch.images.narrow(0, 0, count).to(at::kCPU);
  const at::Tensor labels = batch.labels.to(at::kCPU);
  const at::Tensor mixed =
      batch.mixed_labels.defined() ? batch.mixed_labels.to(at::kCPU) : at::Tensor();
  std::vector<TaggedImage> tagged;
  ordered_json list = ordered_json::array();
  for (int64_t i = 0; i < count; ++i) {
    const Image image = state.image_of(images.select(0, i));
    auto bytes = State::encoded(image);
    const double weight = mixed.defined() ? batch.lambda : 1;
    ordered_json shown = ordered_json::array();
    shown.push_back(
        {{"class", state.class_of(labels.const_data_ptr<int64_t>()[i])}, {"weight", weight}});
    if (weight < 1)
      shown.push_back(
          {{"class", state.class_of(mixed.const_data_ptr<int64_t>()[i])}, {"weight", 1 - weight}});
    list.push_back({{"file", state.write("training", size_t(i), image, bytes)}, {"labels", shown}});
    tagged.push_back({fmt::format("samples/{}", i), image.width, image.height, std::move(bytes)});
  }
  write_atomically(state.env, state.folder + "/training.json",
                   dumped({{"step", step}, {"images", list}}));
  return tagged;
}

void SampleGallery::begin_evaluation() {
  state_->mistakes.clear();
}

void SampleGallery::see(const DeviceBatch& batch, const at::Tensor& logits) {
  State& state = *state_;
  const at::Tensor losses =
      cross_entropy(logits, batch.labels, /*smoothing=*/0, at::Reduction::None).to(at::kDouble);
  const at::Tensor predicted = logits.argmax(1);
  // Correct ones sort last, below every loss.
  const at::Tensor wrong = at::where(predicted.eq(batch.labels), -1.0, losses);
  const auto [worst, places] = wrong.topk(std::min(state.count, batch.count()));
  const at::Tensor host = worst.to(at::kCPU), at_host = places.to(at::kCPU);
  for (int64_t i = 0; i < host.size(0); ++i) {
    const double loss = host.const_data_ptr<double>()[i];
    const bool is_full = std::ssize(state.mistakes) == state.count;
    if (!(loss >= 0) || (is_full && loss <= state.mistakes.back().loss)) break;
    const int64_t at = at_host.const_data_ptr<int64_t>()[i];
    Mistake mistake{state.image_of(batch.images.select(0, at).to(at::kCPU)),
                    batch.labels.select(0, at).item<int64_t>(),
                    predicted.select(0, at).item<int64_t>(),
                    logits.select(0, at).to(at::kDouble).softmax(0).max().item<double>(),
                    loss,
                    batch.names.empty() ? "" : batch.names[size_t(at)]};
    const auto place =
        std::upper_bound(state.mistakes.begin(), state.mistakes.end(), loss,
                         [](double value, const Mistake& other) { return value > other.loss; });
    state.mistakes.insert(place, std::move(mistake));
    if (std::ssize(state.mistakes) > state.count) state.mistakes.pop_back();
  }
}

void SampleGallery::write_mistakes(int64_t step) {
  State& state = *state_;
  state.env.make_directories(state.folder);
  ordered_json list = ordered_json::array();
  for (const Mistake& mistake : state.mistakes)
    list.push_back({{"file", state.write("mistake", list.size(), mistake.image,
                                         State::encoded(mistake.image))},
                    {"class", state.class_of(mistake.label)},
                    {"predicted", state.class_of(mistake.predicted)},
                    {"probability", mistake.probability},
                    {"loss", mistake.loss},
                    {"name", mistake.name}});
  write_atomically(state.env, state.folder + "/mistakes.json",
                   dumped({{"step", step}, {"images", list}}));
}

}  // namespace saturate
