#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <sstream>

#include "base/printable.h"
#include "base/wall_clock.h"
#include "record/event_file.h"
#include "record/sinks.h"
#include "trace/host.h"

namespace saturate {
namespace {

constexpr const char* kPrefix = "events.out.tfevents.";

bool has_events(Env& env, const std::string& folder) {
  return std::ranges::any_of(env.list(folder),
                             [](const FileInfo& file) { return file.name.starts_with(kPrefix); });
}

// Later files sort after earlier ones, the order in which readers take them, even if the clock was
// set back between two processes.
std::string new_path(Env& env, const std::string& folder) {
  int64_t seconds = unix_time_ns(env) / 1'000'000'000;
  for (const auto& file : env.list(folder))
    if (file.name.starts_with(kPrefix))
      seconds = std::max<int64_t>(
          seconds, 1 + std::strtoll(file.name.c_str() + std::strlen(kPrefix), nullptr, 10));
  char host[256] = "localhost";
  gethostname(host, sizeof host - 1);
  return fmt::format("{}/{}{:010}.{}.{}", folder, kPrefix, seconds, host, getpid());
}

// A code block, which Markdown shows unchanged.
std::string code_block(const std::string& text) {
  std::istringstream lines(text);
  std::string block;
  for (std::string line; std::getline(lines, line);) block += "    " + line + "\n";
  return block;
}

// "train" and "eval", drawn as two lines of one chart.
std::string line_of(const MetricsRecord& record) {
  return "/" + (record.kind == "step" ? "train" : record.kind);
}

class TensorBoardSink : public MetricsSink {
 public:
  TensorBoardSink(Env& env, const Recipe& recipe, const std::string& folder, int64_t begin_step)
      : env_(env), begin_step_(begin_step), recipe_(without_queries(to_toml(recipe))) {
    env.make_directories(folder);
    repeats_ = begin_step > 0 || has_events(env, folder);
    file_ = std::make_unique<EventFile>(env, new_path(env, folder));
  }

  void start() override {
    file_->write(file_version_event(now_s()));
    if (repeats_) file_->write(restart_event(now_s(), begin_step_ + 1));
    file_->write(text_event(now_s(), begin_step_, "recipe", code_block(recipe_)));
    file_->write(text_event(now_s(), begin_step_, "host", code_block(host_json())));
  }

  void write(const MetricsRecord& record) override {
    // The end has values of observers alone.
    std::vector<std::pair<std::string, float>> scalars;
    for (const auto& [name, value] : record.kind == "end" ? record.scalars : values_of(record))
      scalars.emplace_back(name + line_of(record), float(value));
    if (record.kind == "step" && record.phases) {
      const double total = record.phases->total();
      for (int i = 0; i < kPhaseCount && total > 0; ++i)
        scalars.emplace_back(fmt::format("share_of_time/{}", phase_name(Phase(i))),
                             float((*record.phases)[Phase(i)] / total));
    }
    if (!scalars.empty()) file_->write(scalars_event(now_s(), record.step, scalars));
  }

  void write_images(int64_t step, const std::vector<TaggedImage>& images) override {
    file_->write(images_event(now_s(), step, images));
  }
  void write_histograms(int64_t step, const std::vector<TaggedHistogram>& histograms) override {
    file_->write(histograms_event(now_s(), step, histograms));
  }

 private:
  double now_s() { return double(unix_time_ns(env_)) * 1e-9; }

  Env& env_;
  const int64_t begin_step_;
  bool repeats_ = false;  // earlier processes may have written later steps
  const std::string recipe_;
  std::unique_ptr<EventFile> file_;
};

}  // namespace

std::unique_ptr<MetricsSink> make_tensorboard_sink(Env& env, const Recipe& recipe,
                                                   const std::string& folder, int64_t begin_step) {
  return std::make_unique<TensorBoardSink>(env, recipe, folder + "/tb", begin_step);
}

}  // namespace saturate
