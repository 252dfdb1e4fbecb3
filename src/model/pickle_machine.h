// The stack machine that executes pickles: see tensor_pickle.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "model/tensor_pickle.h"

namespace saturate {

// The classes and functions that a pickle of weights may name, and how they are interpreted.
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

enum class PickleKind : uint8_t {
  kNone,
  kBool,     // number
  kInteger,  // number
  kFloat,    // its value is not needed
  kText,     // text, up to kMaxPickleName; also the bytes of an integer of more than 64 bits
  kTuple,    // items
  kList,     // items
  kDict,     // items: key, value, key, value, ...
  kGlobal,   // number, a PickleGlobal; text, "module.name"; type, where it is a storage's
  kStorage,  // text, its key; number of elements; type
  kTensor,   // number, its place in PickleMachine::tensors()
  kOther,    // anything else: its contents are not needed
};

// Longest name of a class, a function or a storage's key.
inline constexpr size_t kMaxPickleName = 1000;

using PickleIndex = uint32_t;  // index of a value, in order of creation

struct PickleValue {
  PickleKind kind = PickleKind::kNone;
  int64_t number = 0;
  std::string text = {};
  std::vector<PickleIndex> items = {};
  std::string_view type = {};
};

// Runs one pickle after another. Fails as fail_pickle(). `bytes` and `path` must outlive it.
class PickleMachine {
 public:
  PickleMachine(std::span<const std::byte> bytes, const std::string& path);

  // Runs the pickle at position(), and advances to its end.
  PickleIndex run();
  size_t position() const { return at_; }
  const PickleValue& value(PickleIndex index) const { return values_[index]; }
  // All tensors, without names.
  const std::vector<PickledTensor>& tensors() const { return tensors_; }
  // By key: all storages that the pickles name, used or not.
  const std::map<std::string, PickledStorage>& storages() const { return storages_; }

 private:
  [[noreturn]] void fail(const std::string& what) const;
  // One instruction: each passes a `code` that it does not handle on to the next.
  void run_constant(uint8_t code);
  void run_string(uint8_t code);
  void run_container(uint8_t code);
  void run_memo(uint8_t code);
  void run_call(uint8_t code);

  std::span<const std::byte> take(size_t count);
  uint64_t number(size_t bytes);  // little-endian
  std::string text(uint64_t length);
  std::string line();

  PickleIndex add(PickleValue value);
  // Before copying so many numbers or indices into a value, which a few bytes of the file can ask
  // for again and again.
  void count_copies(size_t count);
  void push(PickleValue value) { stack_.push_back(add(std::move(value))); }
  PickleIndex pop();
  PickleIndex top() const;
  // Pops the values above the last mark.
  std::vector<PickleIndex> pop_to_mark();
  void push_tuple(size_t count);
  void extend(PickleKind kind, const std::vector<PickleIndex>& items);
  void push_text(uint64_t length);
  void push_long(size_t bytes);
  void push_digits(std::string digits);

  void push_global(const std::string& module, const std::string& name);
  void push_storage();
  void call();
  void call(PickleGlobal function, const PickleValue& arguments);
  void push_dict(const PickleValue& arguments);
  bool is_passed_over(const PickleValue& function) const;
  void rebuild_tensor(const PickleValue& arguments);
  std::vector<int64_t> integers(const PickleValue& list) const;
  const PickleValue& item(const PickleValue& tuple, size_t i, PickleKind kind) const;
  void check(const PickledTensor& tensor) const;

  std::span<const std::byte> bytes_;
  const std::string& path_;
  size_t at_ = 0;
  std::vector<PickleValue> values_;
  std::vector<PickleIndex> stack_;
  std::vector<size_t> marks_;  // stack sizes
  std::unordered_map<uint64_t, PickleIndex> memo_;
  std::vector<PickledTensor> tensors_;
  std::map<std::string, PickledStorage> storages_;
  size_t copies_ = 0;
};

}  // namespace saturate
