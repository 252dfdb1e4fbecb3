// The classes and functions that a pickle of weights may name, and what is made of them here.
#pragma once

#include <string>
#include <string_view>

namespace saturate {

enum class PickleGlobal : uint8_t {
  kUnknown,
  kStorage,    // the type of a tensor's memory
  kTensor,     // rebuilds a tensor out of its memory
  kParameter,  // takes its first argument, a tensor, for the result
  kFromType,   // calls its first argument, one of the two above, with its third
  kDict,       // makes a dictionary
  kOther,      // a plain value beside the tensors, or what makes one: passed over
};

struct KnownGlobal {
  PickleGlobal kind = PickleGlobal::kUnknown;
  std::string_view type = {};  // of a storage's elements, as safetensors names it
};

// Of "module.name", as Python 2 and 3 write it.
KnownGlobal known_global(const std::string& name);

}  // namespace saturate
