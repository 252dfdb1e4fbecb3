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

#include "model/pickle_globals.h"
#include "model/tensor_pickle.h"

namespace saturate {

enum class PickleKind : uint8_t {
  kNone,
  kBool,     // number
  kInteger,  // number
  kFloat,    // its value is not needed
  kText,     // text; also the bytes of an integer of more than 64 bits
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
  // Each returns false if `code` is not one of its instructions.
  bool run_constant(uint8_t code);
  bool run_string(uint8_t code);
  bool run_container(uint8_t code);
  bool run_memo(uint8_t code);
  bool run_call(uint8_t code);

  std::span<const std::byte> take(size_t count);
  uint64_t number(size_t bytes);  // little-endian
  std::string text(uint64_t length);
  std::string line();

  PickleIndex add(PickleValue value);
  void push(PickleValue value) { stack_.push_back(add(std::move(value))); }
  PickleIndex pop();
  PickleIndex top() const;
  // Pops the values above the last mark.
  std::vector<PickleIndex> pop_to_mark();
  void push_tuple(size_t count);
  void extend(PickleKind kind, const std::vector<PickleIndex>& items);
  void push_long(size_t bytes);
  void push_digits(std::string digits);

  void push_global(const std::string& module, const std::string& name);
  void push_storage();
  void call();
  void call(PickleGlobal function, const PickleValue& arguments);
  void push_dict(const PickleValue& arguments);
  bool is_passed_over(const PickleValue& function) const;
  void rebuild_tensor(const PickleValue& arguments);
  std::vector<int64_t> integers(PickleIndex tuple) const;
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
};

}  // namespace saturate
