#include "run/long_work.h"

#include <system_error>

#include "saturate/group.h"

namespace saturate {

LongWork::LongWork(Group* group) : group_(group) {
  if (!group_) return;
  try {
    votes_ = std::async(std::launch::async, [this] { vote(); });
  } catch (const std::system_error&) {
    // The system starts no more threads: this rank votes when its work is done.
  }
}

LongWork::~LongWork() {
  if (!votes_.valid()) return;
  ended_.set_value();
  votes_.wait();
}

void LongWork::wait() {
  if (!group_) return;
  is_done_ = true;
  ended_.set_value();
  votes_.valid() ? votes_.get() : vote();
}

void LongWork::vote() {
  bool works = true;
  do {
    works = end_.wait_for(kVoteEvery) != std::future_status::ready;
    if (!works && !is_done_) return;
  } while (group_->any(works));
}

}  // namespace saturate
