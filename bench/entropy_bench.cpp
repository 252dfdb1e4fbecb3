// Entropy decoding of baseline JPEGs alone, on one thread: BaselineScan and libjpeg-turbo.
//   saturate_entropy_bench FOLDER SECONDS
// Prints one JSON object: files, pixels, entropy-coded bytes, and for each way of decoding the
// seconds of a pass over the files. tools/peers/entropy_peers.py runs it beside other decoders.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "base/files.h"
#include "image/baseline_scan.h"
#include "saturate/data/error.h"
#include "tests/scan_testing.h"

namespace saturate {
namespace {

struct Files {
  std::vector<std::vector<std::byte>> file;
  double pixels = 0, coded_bytes = 0;
};

// The JPEGs below `folder` that BaselineScan decodes.
Files read_files(const std::string& folder) {
  Files files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (!entry.is_regular_file()) continue;
    auto file = read_file(Env::posix(), entry.path().string());
    testing::TestDecompressor header(file);
    if (!header.ok || !BaselineScan::supports(header.info)) continue;
    files.pixels += double(header.info.image_width) * header.info.image_height;
    files.coded_bytes += double(header.info.src->bytes_in_buffer);
    files.file.push_back(std::move(file));
  }
  if (files.file.empty())
    fail(ErrorKind::kData, "no baseline JPEG", folder, "Give a folder of photographs");
  return files;
}

void no_transform(const int16_t*, const uint16_t*, int, uint8_t* const*, size_t) {}

// Reads all coefficients; stores them unless it `parses` only.
bool scan_file(BaselineScan& scan, const std::vector<std::byte>& file, bool parses) {
  testing::TestDecompressor from(file);
  if (!from.ok || !scan.start(from.info, {0, from.mcus()}, nullptr, nullptr)) return false;
  uint8_t* const no_rows[8 * MAX_SAMP_FACTOR] = {};
  uint8_t* const* const rows[4] = {no_rows, no_rows, no_rows, no_rows};
  for (int left = from.mcu_rows(); left > 0; --left)
    if (!scan.read_band(rows, parses)) return false;
  return true;
}

bool read_by_libjpeg(const std::vector<std::byte>& file) {
  testing::TestDecompressor from(file);
  return from.ok && from.errors.guarded([&] { jpeg_read_coefficients(&from.info); });
}

// The mean time of a pass over the files; passes for at least `seconds`.
double pass_seconds(const Files& files, double seconds,
                    const std::function<bool(const std::vector<std::byte>&)>& decode) {
  using Clock = std::chrono::steady_clock;
  const auto begin = Clock::now();
  for (int passes = 1;; ++passes) {
    for (const auto& file : files.file)
      if (!decode(file))
        fail(ErrorKind::kData, "a JPEG is damaged", "entropy_bench", "Give whole ones");
    const double spent = std::chrono::duration<double>(Clock::now() - begin).count();
    if (spent >= seconds) return spent / passes;
  }
}

nlohmann::json measured(const std::string& folder, double seconds) {
  const Files files = read_files(folder);
  BaselineScan scan([](int) -> InverseDct { return no_transform; });
  const auto scanned = [&](bool parses) {
    return pass_seconds(files, seconds,
                        [&](const auto& file) { return scan_file(scan, file, parses); });
  };
  return {
      {"files", files.file.size()},
      {"pixels", files.pixels},
      {"coded_bytes", files.coded_bytes},
      {"seconds",
       {{"saturate, coefficients stored", scanned(false)},
        {"saturate, parsed only", scanned(true)},
        {"libjpeg-turbo, jpeg_read_coefficients", pass_seconds(files, seconds, read_by_libjpeg)}}}};
}

}  // namespace
}  // namespace saturate

int main(int count, char** arguments) {
  if (count != 3) {
    std::fprintf(stderr, "usage: saturate_entropy_bench FOLDER SECONDS\n");
    return 2;
  }
  try {
    std::puts(saturate::measured(arguments[1], std::atof(arguments[2])).dump().c_str());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
