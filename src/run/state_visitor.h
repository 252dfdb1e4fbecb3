// Carries the state of a run's components into a checkpoint, and back.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "run/checkpoint.h"

namespace saturate {

// Each component has one visit() for all purposes, which passes every piece of its state.
class StateVisitor {
 public:
  enum class Purpose {
    kSave,         // from the components to the checkpoint
    kResume,       // from the checkpoint to the components
    kRestoreBest,  // likewise, but only the weights and what belongs to them
  };

  // `path`: the checkpoint's file, named in errors; not needed for kSave.
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
  // Tensors that belong to the weights: `get()` returns them, `set(tensors)` loads them.
  template <class Get, class Set>
  void tensors(std::vector<NamedTensor> Checkpoint::*member, const Get& get, const Set& set) {
    if (saves())
      checkpoint.*member = get();
    else
      set(checkpoint.*member);
  }
  // Tensors that do not.
  template <class Get, class Set>
  void progress_tensors(std::vector<NamedTensor> Checkpoint::*member, const Get& get,
                        const Set& set) {
    if (!restores_best()) tensors(member, get, set);
  }

  Checkpoint& checkpoint;
  const std::string path;

 private:
  const Purpose purpose_;
};

}  // namespace saturate
