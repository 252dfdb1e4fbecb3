// Lines of metrics.jsonl and a run's folder, for tests of what reads them.
#pragma once

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "report/run_reading.h"
#include "tests/data_testing.h"

namespace saturate::testing {

// A "step" line: `seconds` by phase until time_s.
inline std::string step_line(int step, double time_s, double wait, double forward,
                             double loss = 1) {
  MetricsRecord record;
  record.kind = "step";
  record.step = step;
  record.epoch = step / 100.0;
  record.samples = step * 10;
  record.time_s = time_s;
  record.loss = loss;
  record.images_per_s = 50;
  record.memory_peak_bytes = 1 << 20;
  record.phases.emplace().seconds[size_t(Phase::kWait)] = wait;
  record.phases->seconds[size_t(Phase::kForward)] = forward;
  return to_json_line(record) + "\n";
}

inline std::string line_of(const std::string& kind, int step, double time_s, double accuracy) {
  MetricsRecord record;
  record.kind = kind;
  record.step = step;
  record.time_s = time_s;
  record.accuracy = accuracy;
  return to_json_line(record) + "\n";
}

// Steps from 1 s to 3 s and, after an evaluation until 5 s, from 6 s to 8 s; the end at 9 s.
inline const std::string kTwoEpochs = step_line(10, 3, 0.5, 1.5) + line_of("eval", 10, 5, 0.7) +
                                      step_line(20, 8, 1, 1) + line_of("eval", 20, 8.5, 0.6) +
                                      line_of("end", 20, 9, 0.6);

// The document inside a report's page: up to the first end tag, as a browser reads it.
inline nlohmann::json data_of_page(const std::string& page) {
  const std::string tag = "<script type=\"application/json\" id=\"report-data\">";
  const size_t begin = page.find(tag) + tag.size();
  return nlohmann::json::parse(page.substr(begin, page.find("</script>", begin) - begin));
}

class RunFolder : public ::testing::Test {
 protected:
  RunReading read(const std::string& metrics) {
    write_file(dir / "run/metrics.jsonl", metrics);
    return read_run(Env::posix(), dir / "run");
  }
  TempDir dir;
};

}  // namespace saturate::testing
