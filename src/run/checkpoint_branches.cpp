#include "run/checkpoint_branches.h"

#include <nlohmann/json.hpp>

#include "saturate/data/error.h"

namespace saturate {
namespace {

using nlohmann::json;

std::string path_in(const std::string& folder) {
  return folder + "/" + Branches::kFile;
}

}  // namespace

Branches Branches::read(Env& env, const std::string& folder) {
  Branches found;
  const std::string path = path_in(folder);
  if (!env.exists(path)) return found;
  const auto bytes = read_file(env, path);
  try {
    const json record = json::parse(bytes.begin(), bytes.end());
    if (!record.at("branches").is_array()) throw std::invalid_argument("branches");
    for (const json& fork : record.at("branches")) {
      const json &from = fork.at("from"), &step = fork.at("step");
      if (!from.is_number_integer() || !step.is_number_integer())
        throw std::invalid_argument("fork");
      const int64_t branch = from, last = step;
      if (branch < 0 || branch > found.current() || last < -1) throw std::out_of_range("fork");
      found.leave(int(branch), last);
    }
  } catch (const std::exception&) {
    fail(ErrorKind::kRun, "the record of the run's branches is damaged", path,
         "Give the path of a checkpoint, or delete this file to use the newest checkpoint");
  }
  return found;
}

TextFile Branches::file(const std::string& folder) const {
  json forks = json::array();
  for (const Fork& fork : forks_) forks.push_back({{"from", fork.branch}, {"step", fork.step}});
  return {path_in(folder), json{{"branches", forks}}.dump() + "\n"};
}

bool Branches::on_path(int branch, int64_t step) const {
  branch = known(branch);
  for (int at = current(); at != branch; at = forks_[size_t(at - 1)].branch) {
    if (at < branch) return false;
    if (step > forks_[size_t(at - 1)].step) return false;
  }
  return true;
}

}  // namespace saturate
