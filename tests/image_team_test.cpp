// The passes of the CUDA kernel by teams of threads with a barrier each, like blocks: under
// ThreadSanitizer a missing wait between two passes is a data race, whatever its result, and so is
// a value that two teams of one image access.
#include <gtest/gtest.h>

#include <atomic>
#include <barrier>
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

struct Held {
  std::vector<uint8_t> images;
  std::vector<HeldPlace> places;
};

Held held_images(int size, int64_t count) {
  Held held;
  held.images.resize(size_t(2 * size * size * 3));
  for (size_t i = 0; i < held.images.size(); ++i) held.images[i] = uint8_t(i * 73 + i / 7);
  for (int64_t i = 0; i < count; ++i)
    held.places.push_back(
        {uint32_t(i % 2), int16_t(i % 3 - 1), int16_t(i % 5 - 2), int32_t(i % 2)});
  return held;
}

// Cached images as finish(batch) makes them.
template <class Finish>
std::vector<float> finished(const std::vector<EffectList>& lists, int size, const Finish& finish) {
  const auto count = int64_t(lists.size());
  const Held held = held_images(size, count);
  const size_t values = size_t(count) * size_t(size * size * 3);
  std::vector<uint8_t> images(values), spare(values);
  std::vector<float> out(values);
  finish(FinishArguments{images.data(),
                         lists.data(),
                         spare.data(),
                         count,
                         size,
                         {{1, 1, 1}, {0, 0, 0}},
                         out.data(),
                         held.images.data(),
                         held.places.data(),
                         size > 2 ? PadMode::kReflect : PadMode::kZero});
  return out;
}

void expect_as_one_thread(const std::vector<EffectList>& lists, int size,
                          void (*by_teams)(const FinishArguments&)) {
  const auto lone = finished(lists, size, finish_batch_cpu);
  const auto team = finished(lists, size, by_teams);
  const auto values = ptrdiff_t(lone.size() / lists.size());
  for (size_t i = 0; i < lists.size(); ++i) {
    const ptrdiff_t begin = ptrdiff_t(i) * values;
    EXPECT_TRUE(
        std::equal(lone.begin() + begin, lone.begin() + begin + values, team.begin() + begin))
        << "size " << size << ", list " << i;
  }
}

TEST(FinishImage, ATeamOfThreadsEqualsOneThread) {
  for (const int size : {1, 2, 7, 33}) expect_as_one_thread(all_lists(), size, by_team);
}

// Each effect alone, an affine before each, and images of several strips.
TEST(FinishImage, ThreeTeamsAtOnceEqualOneThread) {
  std::vector<EffectList> lists(1);
  for (const Effect& effect : every_effect()) {
    lists.emplace_back().add(effect.kind) = effect;
    EffectList& both = lists.emplace_back();
    both.add(EffectKind::kAffine) = every_effect()[0];
    both.add(effect.kind) = effect;
  }
  for (const int size : {7, 96, 97}) expect_as_one_thread(lists, size, by_three_teams);
}

}  // namespace
}  // namespace saturate
