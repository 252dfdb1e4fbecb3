#include "record/metrics.h"

#include <algorithm>
#include <span>

#include "record/json_fields.h"

namespace saturate {
namespace {

using nlohmann::ordered_json;

ordered_json to_json(const Telemetry& telemetry) {
  ordered_json json = ordered_json::object();
  for (const auto& field : telemetry_fields()) json[field.name] = or_null(telemetry.*field.member);
  const std::string& reasons = telemetry.throttle_reasons;
  json["throttle_reasons"] = reasons.empty() ? ordered_json(nullptr) : ordered_json(reasons);
  return json;
}

ordered_json to_json(const std::vector<StreamTime>& streams) {
  ordered_json json = ordered_json::object();
  for (const auto& time : streams)
    json[time.stream] = {{"busy_s", time.busy_s}, {"idle_s", time.idle_s}};
  return json;
}

ordered_json to_json(const std::optional<PhaseTimes>& phases) {
  return phases ? phases_json(*phases) : ordered_json();
}

std::vector<StreamTime> streams_of(const nlohmann::json& json) {
  std::vector<StreamTime> streams;
  for (const auto& [name, time] : object_at(json, "streams").items())
    if (time.is_object())
      streams.push_back(
          {name, number_at(time, "busy_s").value_or(0), number_at(time, "idle_s").value_or(0)});
  return streams;
}

std::optional<Telemetry> telemetry_of(const nlohmann::json& json) {
  const auto found = json.find("telemetry");
  if (found == json.end() || !found->is_object()) return std::nullopt;
  Telemetry telemetry;
  for (const auto& field : telemetry_fields())
    telemetry.*field.member = number_at(*found, field.name);
  telemetry.throttle_reasons = text_at(*found, "throttle_reasons");
  return telemetry;
}

}  // namespace

std::string to_json_line(const MetricsRecord& record) {
  ordered_json tensor_peaks = nullptr;
  if (record.tensor_peak_bytes) {
    tensor_peaks = ordered_json::object();
    for (int i = 0; i < kPhaseCount; ++i)
      if (const int64_t bytes = (*record.tensor_peak_bytes)[Phase(i)]; bytes > 0)
        tensor_peaks[std::string(phase_name(Phase(i)))] = bytes;
  }
  ordered_json json = {{"kind", record.kind},
                       {"step", record.step},
                       {"epoch", record.epoch},
                       {"samples", record.samples},
                       {"time_s", record.time_s},
                       {"loss", or_null(record.loss)},
                       {"accuracy", or_null(record.accuracy)},
                       {"accuracy5", or_null(record.accuracy5)},
                       {"lr", or_null(record.lr)},
                       {"images_per_s", or_null(record.images_per_s)},
                       {"phases", to_json(record.phases)},
                       {"memory_peak_bytes", or_null(record.memory_peak_bytes)},
                       {"tensor_peak_bytes", tensor_peaks},
                       {"telemetry", nullptr},
                       {"streams", nullptr},
                       {"device_phases", to_json(record.device_phases)}};
  if (record.telemetry) json["telemetry"] = to_json(*record.telemetry);
  if (!record.streams.empty()) json["streams"] = to_json(record.streams);
  if (record.phases && record.phases->network_wait > 0)
    json["network_wait_s"] = record.phases->network_wait;
  if (record.mean_iou) json["mean_iou"] = *record.mean_iou;
  if (record.plain_loss) json["plain_loss"] = *record.plain_loss;
  if (record.plain_accuracy) json["plain_accuracy"] = *record.plain_accuracy;
  for (const auto& [name, value] : record.values) {
    json["metrics"].push_back(name);
    json[name] = value;
  }
  for (const auto& [name, value] : record.scalars) json[name] = value;
  return json.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

bool is_record_key(const std::string& name) {
  static const ordered_json all = [] {
    MetricsRecord record;
    record.mean_iou = record.plain_loss = record.plain_accuracy = 0;
    record.values = {{"metrics", 0}};
    record.phases.emplace().network_wait = 1;
    ordered_json json = ordered_json::parse(to_json_line(record));
    for (const auto& field : telemetry_fields()) json[field.name] = nullptr;
    return json;
  }();
  return all.contains(name);
}

std::optional<MetricsRecord> from_json_line(const std::string& line) {
  const auto json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains("kind") || !json["kind"].is_string()) return std::nullopt;
  const auto step = integer_at(json, "step");
  if (json.contains("step") && !step) return std::nullopt;
  MetricsRecord record;
  record.kind = json["kind"];
  record.step = step.value_or(0);
  record.epoch = number_at(json, "epoch").value_or(0);
  record.samples = integer_at(json, "samples").value_or(0);
  record.time_s = number_at(json, "time_s").value_or(0);
  for (const auto& [name, member] : kRecordMeans) record.*member = number_at(json, name);
  for (const auto& name : array_at(json, "metrics"))
    if (const auto value =
            name.is_string() ? number_at(json, name.get<std::string>().c_str()) : std::nullopt)
      record.values.push_back({name, *value});
  record.phases = phases_at(json);
  if (record.phases) record.phases->network_wait = number_at(json, "network_wait_s").value_or(0);
  record.memory_peak_bytes = integer_at(json, "memory_peak_bytes");
  record.telemetry = telemetry_of(json);
  record.streams = streams_of(json);
  record.device_phases = phases_at(json, "device_phases");
  return record;
}

uint64_t end_of_records(Env& env, const std::string& path, int64_t last_step) {
  constexpr uint64_t kBlock = 1 << 16;
  const auto file = env.open_readable(path);
  uint64_t begin = file->size();
  std::string tail;  // from `begin` to the end of the last line that may stay
  while (true) {
    size_t end = tail.rfind('\n');
    while (end != std::string::npos) {
      const size_t before = end == 0 ? std::string::npos : tail.rfind('\n', end - 1);
      if (before == std::string::npos && begin > 0) break;  // the line begins earlier
      const size_t first = before + 1;
      const auto record = from_json_line(tail.substr(first, end - first));
      if (record && record->step <= last_step && record->kind != "end") return begin + end + 1;
      end = before;
    }
    if (begin == 0) return 0;
    tail.resize(end + 1);  // without a newline nothing: a crash has truncated the last line
    std::string block(std::min(begin, std::max<uint64_t>(kBlock, tail.size())), '\0');
    begin -= block.size();
    file->read_at(begin, std::as_writable_bytes(std::span(block)));
    tail.insert(0, block);
  }
}

void MetricsWriter::write(const MetricsRecord& record) {
  const std::string line = to_json_line(record) + "\n";
  file_->append(std::as_bytes(std::span(line)));
}

}  // namespace saturate
