#include "record/sample_gallery.h"

#include <ATen/ops/softmax.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/files.h"
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
  write_unsynced(env_, folder_ + "/" + name, bytes);  // training waits meanwhile
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

void SampleGallery::Worst::merge(const Worst& more, int64_t most) {
  if (!losses.defined()) {
    *this = more;
    return;
  }
  const at::Tensor all = at::cat({losses, more.losses});
  const auto [highest, kept] = all.topk(std::min(most, all.size(0)));
  const auto chosen = [&kept = kept](const at::Tensor& first, const at::Tensor& second) {
    return at::cat({first, second}).index_select(0, kept);
  };
  losses = highest;
  labels = chosen(labels, more.labels);
  predicted = chosen(predicted, more.predicted);
  probabilities = chosen(probabilities, more.probabilities);
  places = chosen(places, more.places);
  images = chosen(images, more.images);
}

void SampleGallery::see(const DeviceBatch& batch, const at::Tensor& logits) {
  const int64_t first = std::exchange(seen_, seen_ + batch.count());
  if (!batch.names.empty()) {
    names_.resize(size_t(first));
    names_.insert(names_.end(), batch.names.begin(), batch.names.end());
  }
  const at::Tensor losses =
      cross_entropy(logits, batch.labels, /*smoothing=*/0, at::Reduction::None).to(at::kDouble);
  const at::Tensor predicted = logits.argmax(1);
  const at::Tensor wrong = at::where(predicted.eq(batch.labels) | losses.isnan(), -1.0, losses);
  const auto [worst, at] = wrong.topk(std::min(count_, batch.count()));
  // A CPU's tensors can be read at no cost, and copying images has one.
  if (worst.device().is_cpu() && worst_.losses.defined() && worst_.losses.size(0) == count_ &&
      *worst.const_data_ptr<double>() <= worst_.losses.min().item<double>())
    return;
  worst_.merge({worst, batch.labels.index_select(0, at), predicted.index_select(0, at),
                logits.index_select(0, at).to(at::kDouble).softmax(1).amax(1), at + first,
                batch.images.index_select(0, at)},
               count_);
}

void SampleGallery::write_mistakes(int64_t step) {
  env_.make_directories(folder_);
  ordered_json list = ordered_json::array();
  const Worst& all = worst_;
  const int64_t count = all.losses.defined() ? all.losses.size(0) : 0;
  at::Tensor rows, images;  // copied at once
  if (count > 0) {
    const auto column = [](const at::Tensor& values) { return values.to(at::kDouble); };
    rows = at::stack({all.losses, column(all.labels), column(all.predicted), all.probabilities,
                      column(all.places)},
                     1)
               .to(at::kCPU);
    images = all.images.to(at::kCPU);
  }
  for (int64_t i = 0; i < count; ++i) {
    const double* const row = rows.const_data_ptr<double>() + i * rows.size(1);
    if (row[0] < 0) break;
    const Image image = image_of(images.select(0, i));
    const auto place = size_t(row[4]);
    list.push_back({{"file", write_image("mistake", list.size(), image, encoded(image))},
                    {"class", class_of(int64_t(row[1]))},
                    {"predicted", class_of(int64_t(row[2]))},
                    {"probability", row[3]},
                    {"loss", row[0]},
                    {"name", place < names_.size() ? names_[place] : ""}});
  }
  write_list("mistakes.json", step, list);
  begin_evaluation();  // frees the device's memory
}

}  // namespace saturate
