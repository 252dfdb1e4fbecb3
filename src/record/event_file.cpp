#include "record/event_file.h"

#include <isa-l/crc.h>

#include <functional>
#include <protozero/pbf_builder.hpp>
#include <span>

namespace saturate {
namespace {

using FieldTag = protozero::pbf_tag_type;
enum class EventField : FieldTag {
  kWallTime = 1,
  kStep = 2,
  kFileVersion = 3,
  kSummary = 5,
  kSessionLog = 7
};
enum class SessionLog : FieldTag { kStatus = 1 };
constexpr int kStart = 1;  // SessionLog.SessionStatus
enum class Summary : FieldTag { kValue = 1 };
enum class Value : FieldTag {
  kTag = 1,
  kSimpleValue = 2,
  kImage = 4,
  kHistogram = 5,
  kTensor = 8,
  kMetadata = 9
};
enum class ImageField : FieldTag { kHeight = 1, kWidth = 2, kColorspace = 3, kEncoded = 4 };
constexpr int kRgb = 3;  // Summary.Image.colorspace
enum class HistogramField : FieldTag {
  kMin = 1,
  kMax = 2,
  kCount = 3,
  kSum = 4,
  kSumOfSquares = 5,
  kEdges = 6,
  kCounts = 7
};
enum class Metadata : FieldTag { kPluginData = 1 };
enum class PluginData : FieldTag { kPluginName = 1 };
enum class Tensor : FieldTag { kType = 1, kStrings = 8 };
constexpr int kString = 7;  // DataType.DT_STRING

template <class Tag>
using Builder = protozero::pbf_builder<Tag>;

// `add` adds the event's payload. Nested messages are complete once their builders are destroyed.
template <class Add>
std::string make_event(double wall_s, int64_t step, const Add& add) {
  std::string out;
  {
    Builder<EventField> event(out);
    event.add_double(EventField::kWallTime, wall_s);
    if (step != 0) event.add_int64(EventField::kStep, step);
    add(event);
  }
  return out;
}

// An event with a summary: `add` adds the payload of one of `values` after its tag.
template <class Values, class TagOf, class Add>
std::string summary_event(double wall_s, int64_t step, const Values& values, const TagOf& tag_of,
                          const Add& add) {
  return make_event(wall_s, step, [&](Builder<EventField>& event) {
    Builder<Summary> summary(event, EventField::kSummary);
    for (const auto& each : values) {
      Builder<Value> value(summary, Summary::kValue);
      value.add_string(Value::kTag, std::invoke(tag_of, each));
      add(value, each);
    }
  });
}

uint32_t masked_crc(const std::string& bytes) {
  auto* data = reinterpret_cast<unsigned char*>(const_cast<char*>(bytes.data()));
  const uint32_t crc = ~crc32_iscsi(data, int(bytes.size()), 0xffffffffu);
  return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

template <class T>
std::string little_endian(T value) {
  std::string bytes;
  for (size_t i = 0; i < sizeof value; ++i) bytes += char(value >> 8 * i & 0xff);
  return bytes;
}

}  // namespace

std::string file_version_event(double wall_s) {
  return make_event(wall_s, 0, [](Builder<EventField>& event) {
    event.add_string(EventField::kFileVersion, "brain.Event:2");
  });
}

std::string restart_event(double wall_s, int64_t step) {
  return make_event(wall_s, step, [](Builder<EventField>& event) {
    Builder<SessionLog>(event, EventField::kSessionLog).add_enum(SessionLog::kStatus, kStart);
  });
}

std::string scalars_event(double wall_s, int64_t step,
                          const std::vector<std::pair<std::string, float>>& scalars) {
  return summary_event(wall_s, step, scalars, &std::pair<std::string, float>::first,
                       [](Builder<Value>& value, const std::pair<std::string, float>& scalar) {
                         value.add_float(Value::kSimpleValue, scalar.second);
                       });
}

std::string text_event(double wall_s, int64_t step, const std::string& tag,
                       const std::string& markdown) {
  const auto add = [&](Builder<Value>& value, const std::string&) {
    {
      Builder<Tensor> tensor(value, Value::kTensor);
      tensor.add_enum(Tensor::kType, kString);
      tensor.add_bytes(Tensor::kStrings, markdown);
    }
    Builder<Metadata> metadata(value, Value::kMetadata);
    Builder<PluginData>(metadata, Metadata::kPluginData)
        .add_string(PluginData::kPluginName, "text");
  };
  return summary_event(wall_s, step, std::span(&tag, 1), std::identity(), add);
}

std::string images_event(double wall_s, int64_t step, const std::vector<TaggedImage>& images) {
  const auto add = [](Builder<Value>& value, const TaggedImage& given) {
    Builder<ImageField> image(value, Value::kImage);
    image.add_int32(ImageField::kHeight, given.height);
    image.add_int32(ImageField::kWidth, given.width);
    image.add_int32(ImageField::kColorspace, kRgb);
    image.add_bytes(ImageField::kEncoded, reinterpret_cast<const char*>(given.bytes.data()),
                    given.bytes.size());
  };
  return summary_event(wall_s, step, images, &TaggedImage::tag, add);
}

std::string histograms_event(double wall_s, int64_t step,
                             const std::vector<TaggedHistogram>& histograms) {
  const auto add = [](Builder<Value>& value, const TaggedHistogram& histogram) {
    Builder<HistogramField> fields(value, Value::kHistogram);
    fields.add_double(HistogramField::kMin, histogram.min);
    fields.add_double(HistogramField::kMax, histogram.max);
    fields.add_double(HistogramField::kCount, histogram.count);
    fields.add_double(HistogramField::kSum, histogram.sum);
    fields.add_double(HistogramField::kSumOfSquares, histogram.sum_of_squares);
    fields.add_packed_double(HistogramField::kEdges, histogram.edges.begin(),
                             histogram.edges.end());
    fields.add_packed_double(HistogramField::kCounts, histogram.counts.begin(),
                             histogram.counts.end());
  };
  return summary_event(wall_s, step, histograms, &TaggedHistogram::tag, add);
}

std::string framed(const std::string& event) {
  const std::string length = little_endian(uint64_t(event.size()));
  return length + little_endian(masked_crc(length)) + event + little_endian(masked_crc(event));
}

void EventFile::write(const std::string& event) {
  const std::string record = framed(event);
  file_->append(std::as_bytes(std::span(record)));
}

}  // namespace saturate
