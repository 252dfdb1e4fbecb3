#include "run/device_decoding.h"

#include <fmt/format.h>

#include <cmath>
#include <optional>
#include <utility>

#include "base/printable.h"
#include "saturate/data/registry.h"

namespace saturate {
namespace {

constexpr double kGoodShare = 0.9;
constexpr int64_t kSmallArea = 200 * 200;  // crops that are often smaller than a JPEG's parts

std::optional<double> device_share(int64_t on_device, int64_t by_loader) {
  const int64_t all = on_device + by_loader;
  return all > 0 ? std::optional(double(on_device) / double(all)) : std::nullopt;
}

class DecodedShare : public Observer {
 public:
  explicit DecodedShare(const Feeder& feeder)
      : feeder_(feeder), begin_(feeder.decoded()), closed_(begin_) {}
  void on_record(MetricsRecord& record, ObserverContext& context) override {
    const bool is_epoch = record.kind == "epoch";
    if (!is_epoch && record.kind != "end") return;
    const DecodedImages now = feeder_.decoded();
    const DecodedImages begin = is_epoch ? std::exchange(closed_, now) : begin_;
    if (const auto share =
            device_share(now.on_device - begin.on_device, now.by_loader - begin.by_loader))
      context.log("gpu_decoded", *share);
  }

 private:
  const Feeder& feeder_;
  const DecodedImages begin_;  // of the initialisation
  DecodedImages closed_;       // up to the last "epoch" record
};

// From the recipe alone: the loader does not count its images by what keeps them from the GPU.
std::string reason_of_few(const Recipe& recipe) {
  const std::string& source = recipe.data.source;
  const CropKind crop = recipe.augment.crop;
  if (crop == CropKind::kPad || crop == CropKind::kLetterbox)
    return fmt::format("with augment.crop={} they decode all. Set data.decode_device=cpu",
                       crop == CropKind::kPad ? "pad" : "letterbox");
  const bool is_small = recipe.augment.size.area() < kSmallArea;
  const std::string larger =
      fmt::format("at augment.size {}, parts of a JPEG are often larger than the crop's pixels",
                  text_of(recipe.augment.size));
  if (is_small && source.starts_with("shard:"))
    return larger + ". Raise it, or set data.decode_device=cpu";
  const IndexOptions& index = recipe.data.index;
  const bool is_off = index.mode == IndexMode::kOff;
  std::string text = is_off
                         ? "data.index is off, and these images have no segments"
                         : "these images had neither segments nor an entry in data.index, which "
                           "a baseline JPEG without restart markers gets when it is first decoded";
  if (is_small) text += "; and " + larger;
  text += ". ";
  if (source == fmt::format("{}:", kOwnObject))
    return text + "Train on what `saturate data pack` writes";
  const std::string out =
      index.mode == IndexMode::kFile ? " --out " + shell_word(index.path) : std::string();
  if (is_off) text += "Set data.index=auto. ";
  return text + fmt::format(
                    "`saturate data index {}{}` makes all entries beforehand, and `saturate data "
                    "pack` writes segments",
                    shell_word(without_queries(source)), out);
}

}  // namespace

std::shared_ptr<Observer> make_decoding_observer(const Feeder& feeder) {
  return std::make_shared<DecodedShare>(feeder);
}

std::string decoding_line(const DecodedImages& decoded, const Recipe& recipe) {
  if (recipe.data.decode_device == DecodeDevice::kCuda &&
      recipe.data.cache.mode == CacheMode::kDevice)
    return "no effect, since data.cache=device holds decoded images";
  const auto [on_device, by_loader] = decoded;
  const auto share = device_share(on_device, by_loader);
  if (!share) return "";
  std::string text = fmt::format("the GPU decoded {:.1f} % of {} images",
                                 std::floor(1000 * *share) / 10, on_device + by_loader);
  if (by_loader > 0) text += ", loader threads the others";
  return *share < kGoodShare ? text + ": " + reason_of_few(recipe) : text;
}

}  // namespace saturate
