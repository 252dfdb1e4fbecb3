// Work for which the other ranks wait longer than one may wait for another in a collective.
#pragma once

#include <chrono>
#include <future>

namespace saturate {

class Group;

// Between two collectives of ranks that wait: shorter than any distributed.timeout_s.
constexpr std::chrono::milliseconds kVoteEvery{250};

// While a rank works, another thread votes with the others, so that none waits in one collective
// for long. All ranks make it together; nothing else uses the group before wait() has returned.
class LongWork {
 public:
  // `group`: null if there are no other ranks.
  explicit LongWork(Group* group);
  // Without wait(), since the work has failed, this rank votes no more: the others fail when its
  // process ends.
  ~LongWork();
  LongWork(const LongWork&) = delete;
  LongWork& operator=(const LongWork&) = delete;

  // Returns once the work of all ranks is done. Collective. To be called once.
  void wait();

 private:
  void vote();

  Group* const group_;
  bool is_done_ = false;      // set before `ended_`
  std::promise<void> ended_;  // the work, done or not
  const std::future<void> end_ = ended_.get_future();
  std::future<void> votes_;  // last: its thread uses all of the above
};

}  // namespace saturate
