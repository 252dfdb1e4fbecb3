// The one door between a checkpoint and what the parts of a run keep in it.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "saturate/checkpoint.h"

namespace saturate {

// Each part shows it all that it keeps, in one function for every purpose.
class StateVisitor {
 public:
  enum class Purpose {
    kSave,         // the checkpoint takes the part's state
    kResume,       // the part takes the checkpoint's
    kRestoreBest,  // so, of the weights alone and of what belongs to them
  };

  // `path`: where the checkpoint lies, for errors; not read where it is saved to.
  StateVisitor(Purpose purpose, Checkpoint& checkpoint, std::string path = "")
      : checkpoint(checkpoint), path(std::move(path)), purpose_(purpose) {}

  bool saves() const { return purpose_ == Purpose::kSave; }
  bool resumes() const { return purpose_ == Purpose::kResume; }
  bool restores_best() const { return purpose_ == Purpose::kRestoreBest; }

  // State that does not belong to the weights: unchanged when the best ones are restored.
  template <class T>
  void value(T Checkpoint::*member, T& own) {
    if (saves()) checkpoint.*member = own;
    if (resumes()) own = checkpoint.*member;
  }
  // Tensors of a checkpoint: `get()` gives them, `set(tensors)` takes them.
  template <class Get, class Set>
  void tensors(std::vector<NamedTensor> Checkpoint::*member, const Get& get, const Set& set) {
    if (saves())
      checkpoint.*member = get();
    else
      set(checkpoint.*member);
  }
  // The same of what is not the weights' own.
  template <class Get, class Set>
  void progress_tensors(std::vector<NamedTensor> Checkpoint::*member, const Get& get,
                        const Set& set) {
    if (saves() || resumes()) tensors(member, get, set);
  }

  Checkpoint& checkpoint;
  const std::string path;

 private:
  const Purpose purpose_;
};

}  // namespace saturate
