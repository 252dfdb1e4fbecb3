// The passes of the CUDA kernel by teams of threads with a barrier each, like blocks: under
// ThreadSanitizer a missing wait between two passes is a data race, whatever its result, and so is
// a value that two teams of one image access.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <iterator>
#include <set>
#include <thread>
#include <vector>

#include "image/finish_passes.h"

namespace saturate {
namespace {

constexpr int kMembers = 7;  // does not divide any image

struct ThreadTeam {
  int member;
  std::barrier<>& barrier;
  int first() const { return member; }
  static constexpr int step() { return kMembers; }
  void wait() const { barrier.arrive_and_wait(); }
  void increment(uint32_t& counter) const {
    std::atomic_ref(counter).fetch_add(1, std::memory_order_relaxed);
  }
};

// One of each kind, with values that change a pixel.
std::vector<Effect> every_effect() {
  return {{EffectKind::kAffine, {0.9f, 0.3f, 1, -0.3f, 0.9f, -1}},
          {EffectKind::kBrightness, {1.3f}},
          {EffectKind::kContrast, {0.7f}},
          {EffectKind::kSaturation, {1.4f}},
          {EffectKind::kHue, {0.1f}},
          {EffectKind::kGrey, {}},
          {EffectKind::kBlur, {1.1f}},
          {EffectKind::kErase, {0, 0, 1, 1, 9, 8, 7}},
          {EffectKind::kSharpness, {1.7f}},
          {EffectKind::kPosterize, {3}},
          {EffectKind::kSolarize, {100}},
          {EffectKind::kAutocontrast, {}},
          {EffectKind::kEqualize, {}},
          {EffectKind::kNoise, {40, 7, 9}}};
}

// Each alone, and each after each.
std::vector<EffectList> all_lists() {
  std::vector<EffectList> lists(1);
  for (const Effect& first : every_effect()) {
    lists.emplace_back().add(first.kind) = first;
    for (const Effect& second : every_effect()) {
      EffectList& both = lists.emplace_back();
      both.add(first.kind) = first;
      both.add(second.kind) = second;
    }
  }
  return lists;
}

// Team `part` of `parts`, over all images.
void run_team(const FinishArguments& batch, int part, int parts) {
  std::barrier<> barrier(kMembers);
  FinishState state;
  const auto work = [&](int member) {
    ThreadTeam team{member, barrier};
    for (int64_t i = 0; i < batch.count; ++i) {
      finish_image(team, batch, i, part, parts, state);
      team.wait();  // a block's state ends with its image
    }
  };
  std::vector<std::thread> threads;
  for (int member = 1; member < kMembers; ++member) threads.emplace_back(work, member);
  work(0);
  for (std::thread& thread : threads) thread.join();
}

void by_team(const FinishArguments& batch) {
  run_team(batch, 0, 1);
}

// All at once, and none waits for another.
void by_three_teams(const FinishArguments& batch) {
  std::vector<std::thread> teams;
  for (int part = 0; part < 3; ++part)
    teams.emplace_back([&batch, part] { run_team(batch, part, 3); });
  for (std::thread& team : teams) team.join();
}

// Where the pixels come from, and what they become.
enum class From { kBatch, kHeld, kPhotographs };
struct Form {
  From from;
  PixelType type;
};

std::vector<uint8_t> pattern(size_t count) {
  std::vector<uint8_t> levels(count);
  for (size_t i = 0; i < count; ++i) levels[i] = uint8_t(i * 73 + i / 7);
  return levels;
}

// Two images, or two whole photographs with crops inside them, some as small as a pixel.
struct Held {
  Held(int size, int64_t count) : levels(pattern(size_t(2 * wide(size) * high(size) * 3))) {
    const int width = wide(size), height = high(size);
    for (int p = 0; p < 2; ++p)
      photos.push_back({levels.data() + ptrdiff_t{p} * width * height * 3, p == 0 ? width : height,
                        p == 0 ? height : width});
    filters = resize_filters(std::max(width, height), size);
    for (int64_t i = 0; i < count; ++i) {
      const HeldPhoto& photo = photos[size_t(i % 2)];
      const int x = int(i % 3), y = int(i % 4);
      const Box crop{x, y, 1 + int(i * 5 % (photo.width - x)), 1 + int(i * 7 % (photo.height - y))};
      places.push_back(
          {uint32_t(i % 2), int16_t(i % 3 - 1), int16_t(i % 5 - 2), int32_t(i % 2), crop});
    }
  }
  static int wide(int size) { return 2 * size + 5; }
  static int high(int size) { return size + 4; }

  std::vector<uint8_t> levels;
  std::vector<HeldPhoto> photos;
  ResizeFilters filters;
  std::vector<HeldPlace> places;
};

// The bytes that finish(batch) makes.
template <class Finish>
std::vector<std::byte> finished(const std::vector<EffectList>& lists, int size, const Form& form,
                                const Finish& finish) {
  const auto count = int64_t(lists.size());
  const Held held(size, count);
  const size_t values = size_t(count) * size_t(size * size * 3);
  std::vector<uint8_t> images = pattern(values), spare(values);
  std::vector<float> rows(values);
  std::vector<std::byte> out(values * bytes_of(form.type));
  FinishArguments batch{images.data(), lists.data(), spare.data(),
                        count,         size,         {{1.5f, 0.25f, 1}, {-3, 2, 0}},
                        out.data()};
  batch.type = form.type;
  batch.pad_mode = size > 2 ? PadMode::kReflect : PadMode::kZero;
  if (form.type != PixelType::kFloat32) batch.rows = rows.data();
  if (form.from != From::kBatch) batch.places = held.places.data();
  if (form.from == From::kHeld) batch.held = held.levels.data();
  if (form.from == From::kPhotographs) {
    batch.photos = held.photos.data();
    batch.filters = held.filters.by_length.data();
    batch.filter_values = held.filters.values.data();
  }
  finish(batch);
  return out;
}

void expect_as_one_thread(const std::vector<EffectList>& lists, int size, const Form& form,
                          void (*by_teams)(const FinishArguments&)) {
  const auto lone = finished(lists, size, form, finish_batch_cpu);
  const auto team = finished(lists, size, form, by_teams);
  const auto bytes = ptrdiff_t(lone.size() / lists.size());
  for (size_t i = 0; i < lists.size(); ++i) {
    const ptrdiff_t begin = ptrdiff_t(i) * bytes;
    EXPECT_TRUE(
        std::equal(lone.begin() + begin, lone.begin() + begin + bytes, team.begin() + begin))
        << "size " << size << ", list " << i << ", from " << int(form.from) << " to "
        << int(form.type);
  }
}

constexpr Form kHeldToFloat{From::kHeld, PixelType::kFloat32};
constexpr Form kOtherForms[] = {
    {From::kHeld, PixelType::kBfloat16},        {From::kBatch, PixelType::kFloat32},
    {From::kBatch, PixelType::kFloat16},        {From::kPhotographs, PixelType::kFloat32},
    {From::kPhotographs, PixelType::kBfloat16}, {From::kPhotographs, PixelType::kFloat16}};

// Each effect alone, and an affine before each.
std::vector<EffectList> some_lists() {
  std::vector<EffectList> lists(1);
  for (const Effect& effect : every_effect()) {
    lists.emplace_back().add(effect.kind) = effect;
    EffectList& both = lists.emplace_back();
    both.add(EffectKind::kAffine) = every_effect()[0];
    both.add(effect.kind) = effect;
  }
  return lists;
}

TEST(FinishImage, ByATeamOfThreadsEqualsOneThread) {
  for (const int size : {1, 2, 7, 33})
    expect_as_one_thread(all_lists(), size, kHeldToFloat, by_team);
}

TEST(FinishImage, ByATeamOfThreadsEqualsOneThreadInEveryForm) {
  for (const Form& form : kOtherForms)
    for (const int size : {1, 7, 33}) expect_as_one_thread(some_lists(), size, form, by_team);
}

// Images of several strips.
TEST(FinishImage, ByThreeTeamsAtOnceEqualsOneThread) {
  for (const int size : {7, 96, 97})
    expect_as_one_thread(some_lists(), size, kHeldToFloat, by_three_teams);
  for (const Form& form : kOtherForms) expect_as_one_thread(some_lists(), 47, form, by_three_teams);
}

// The forms differ from each other, or the tests above compare nothing.
TEST(FinishImage, ByATeamIsNotTheSameInEveryForm) {
  std::set<std::vector<std::byte>> found;
  for (const Form& form : kOtherForms) found.insert(finished(some_lists(), 7, form, by_team));
  EXPECT_EQ(found.size(), std::size(kOtherForms));
}

}  // namespace
}  // namespace saturate
