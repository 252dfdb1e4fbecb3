// The classes and functions that a pickle of weights may name, and how they are interpreted.
#pragma once

#include <string>
#include <string_view>

namespace saturate {

enum class PickleGlobal : uint8_t {
  kUnknown,
  kStorage,    // the type of a tensor's memory
  kTensor,     // rebuilds a tensor from its memory
  kParameter,  // returns its first argument, a tensor
  kFromType,   // calls its first argument, one of the two above, with its third
  kDict,       // makes a dictionary
  kOther,      // a plain value beside the tensors, or its constructor: ignored
};

struct KnownGlobal {
  PickleGlobal kind = PickleGlobal::kUnknown;
  std::string_view type = {};  // of a storage's elements, in safetensors' naming
};

// For "module.name", in Python 2's or 3's naming.
KnownGlobal known_global(const std::string& name);

}  // namespace saturate
