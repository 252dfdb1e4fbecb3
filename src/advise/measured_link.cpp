#include "advise/measured_link.h"

#include <algorithm>

#include "data/crop_rows.h"
#include "data/sources.h"
#include "store/store_env.h"

namespace saturate {

MeasuredLink::MeasuredLink(Env& env, const Recipe& recipe, const Dataset& source)
    : env_(env), recipe_(recipe), source_(source) {}

void MeasuredLink::begin() {
  if (source_.look_ahead() > 0) before_ = store_counts(env_, recipe_.data.store_options());
  begin_ns_ = env_.now_ns();
}

void MeasuredLink::end() {
  if (!before_) return;
  const auto after = store_counts(env_, recipe_.data.store_options());
  add_use(use_, *before_, after.value_or(*before_));
  seconds_ += double(env_.now_ns() - begin_ns_) * 1e-9;
}

std::optional<LinkUse> MeasuredLink::result(const PhaseTimes& step) const {
  if (seconds_ <= 0) return std::nullopt;
  const DataOptions& data = recipe_.data;
  const double wait = step[Phase::kWait];
  LinkUse link = link_use(use_, seconds_);
  link.is_packed = !has_file_per_sample(env_, data.source);
  link.in_random_order = data.shuffle.mode == ShuffleMode::kFull;
  if (data.cache.mode == CacheMode::kNone)  // else whole samples are read
    link.crop_share = crop_share_of(source_, recipe_.augment);
  link.network_share = wait > 0 ? std::min(1.0, step.network_wait / wait) : 0;
  link.most = step.total() / std::max(step.total() - wait, 1e-9);
  return link;
}

}  // namespace saturate
