#include "record/sample_gallery.h"

#include <ATen/ops/softmax.h>
#include <ATen/ops/where.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>
#include <utility>

#include "record/json_fields.h"
#include "task/cross_entropy.h"

namespace saturate {
namespace {

using nlohmann::ordered_json;

constexpr int kLargestPng = 64;  // pixels a side
constexpr int kJpegQuality = 90;

bool is_small(const Image& image) {
  return std::max(image.width, image.height) <= kLargestPng;
}

std::vector<std::byte> encoded(const Image& image) {
  return is_small(image) ? encode_png(image.pixels.data(), image.width, image.height, 3)
                         : encode_jpeg(image, kJpegQuality, true);
}

}  // namespace

SampleGallery::SampleGallery(Env& env, const std::string& run_folder,
                             std::vector<std::string> classes, const AugmentOptions& augment,
                             int count)
    : env_(env),
      folder_(run_folder + "/samples"),
      classes_(std::move(classes)),
      normalize_(make_normalize(augment)),
      count_(count) {}

Image SampleGallery::image_of(const at::Tensor& pixels) const {
  const at::Tensor planes = pixels.to(at::kFloat).contiguous();
  const float* in = planes.const_data_ptr<float>();
  Image image;
  image.resize(int(planes.size(2)), int(planes.size(1)));
  const size_t area = size_t(image.width) * size_t(image.height);
  for (size_t c = 0; c < 3; ++c)
    for (size_t i = 0; i < area; ++i) {
      const float value = (in[c * area + i] - normalize_.shift[c]) / normalize_.scale[c];
      image.pixels[i * 3 + c] = uint8_t(std::lround(std::clamp(value, 0.0f, 255.0f)));
    }
  return image;
}

std::string SampleGallery::class_of(int64_t label) const {
  return label >= 0 && label < std::ssize(classes_) ? classes_[size_t(label)]
                                                    : std::to_string(label);
}

std::string SampleGallery::write_image(const std::string& kind, size_t number, const Image& image,
                                       std::span<const std::byte> bytes) const {
  const std::string name =
      fmt::format("{}-{:03}.{}", kind, number, is_small(image) ? "png" : "jpg");
  write_atomically(env_, folder_ + "/" + name, {&bytes, 1});
  return name;
}

void SampleGallery::write_list(const std::string& name, int64_t step,
                               const ordered_json& list) const {
  write_atomically(env_, folder_ + "/" + name, json_text({{"step", step}, {"images", list}}, 1));
}

std::vector<TaggedImage> SampleGallery::write_training(int64_t step, const DeviceBatch& batch) {
  env_.make_directories(folder_);
  const int64_t count = std::min(count_, batch.count());
  const at::Tensor images = batch.images.narrow(0, 0, count).to(at::kCPU);
  const at::Tensor labels = batch.labels.to(at::kCPU);
  const at::Tensor mixed =
      batch.mixed_labels.defined() ? batch.mixed_labels.to(at::kCPU) : at::Tensor();
  std::vector<TaggedImage> tagged;
  ordered_json list = ordered_json::array();
  for (int64_t i = 0; i < count; ++i) {
    const Image image = image_of(images.select(0, i));
    auto bytes = encoded(image);
    const double weight = mixed.defined() ? batch.lambda : 1;
    ordered_json shown = ordered_json::array();
    shown.push_back({{"class", class_of(labels.const_data_ptr<int64_t>()[i])}, {"weight", weight}});
    if (weight < 1)
      shown.push_back(
          {{"class", class_of(mixed.const_data_ptr<int64_t>()[i])}, {"weight", 1 - weight}});
    list.push_back({{"file", write_image("training", size_t(i), image, bytes)}, {"labels", shown}});
    tagged.push_back({fmt::format("samples/{}", i), image.width, image.height, std::move(bytes)});
  }
  write_list("training.json", step, list);
  return tagged;
}

void SampleGallery::see(const DeviceBatch& batch, const at::Tensor& logits) {
  const at::Tensor losses =
      cross_entropy(logits, batch.labels, /*smoothing=*/0, at::Reduction::None).to(at::kDouble);
  const at::Tensor predicted = logits.argmax(1);
  // Correct ones sort last, below every loss.
  const at::Tensor wrong = at::where(predicted.eq(batch.labels), -1.0, losses);
  const auto [worst, indices] = wrong.topk(std::min(count_, batch.count()));
  const at::Tensor host = worst.to(at::kCPU), at_host = indices.to(at::kCPU);
  for (int64_t i = 0; i < host.size(0); ++i) {
    const double loss = host.const_data_ptr<double>()[i];
    const bool is_full = std::ssize(mistakes_) == count_;
    if (!(loss >= 0) || (is_full && loss <= mistakes_.back().loss)) break;
    const int64_t at = at_host.const_data_ptr<int64_t>()[i];
    Mistake mistake{image_of(batch.images.select(0, at).to(at::kCPU)),
                    batch.labels.select(0, at).item<int64_t>(),
                    predicted.select(0, at).item<int64_t>(),
                    logits.select(0, at).to(at::kDouble).softmax(0).max().item<double>(),
                    loss,
                    batch.names.empty() ? "" : batch.names[size_t(at)]};
    const auto place = std::ranges::upper_bound(mistakes_, loss, std::greater(), &Mistake::loss);
    mistakes_.insert(place, std::move(mistake));
    if (std::ssize(mistakes_) > count_) mistakes_.pop_back();
  }
}

void SampleGallery::write_mistakes(int64_t step) {
  env_.make_directories(folder_);
  ordered_json list = ordered_json::array();
  for (const Mistake& mistake : mistakes_)
    list.push_back(
        {{"file", write_image("mistake", list.size(), mistake.image, encoded(mistake.image))},
         {"class", class_of(mistake.label)},
         {"predicted", class_of(mistake.predicted)},
         {"probability", mistake.probability},
         {"loss", mistake.loss},
         {"name", mistake.name}});
  write_list("mistakes.json", step, list);
}

}  // namespace saturate
