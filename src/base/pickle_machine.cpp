#include "base/pickle_machine.h"

#include <algorithm>
#include <array>
#include <cstring>

namespace saturate {
namespace {

// More than any model has, and little enough memory for a file made to waste it.
constexpr size_t kMaxValues = size_t{1} << 22;
constexpr size_t kMaxBytes = size_t{1} << 24;
constexpr size_t kMaxDimensions = 64;  // what torch's iterators support
constexpr size_t kMaxName = 1000;

struct StorageType {
  std::string_view global, type;
};
constexpr std::array<StorageType, 10> kStorageTypes{{{"torch.DoubleStorage", "F64"},
                                                     {"torch.FloatStorage", "F32"},
                                                     {"torch.HalfStorage", "F16"},
                                                     {"torch.BFloat16Storage", "BF16"},
                                                     {"torch.LongStorage", "I64"},
                                                     {"torch.IntStorage", "I32"},
                                                     {"torch.ShortStorage", "I16"},
                                                     {"torch.CharStorage", "I8"},
                                                     {"torch.ByteStorage", "U8"},
                                                     {"torch.BoolStorage", "BOOL"}}};

constexpr std::string_view kOrderedDict = "collections.OrderedDict";
constexpr std::string_view kTensor = "torch._utils._rebuild_tensor_v2";
constexpr std::string_view kParameter = "torch._utils._rebuild_parameter";

// A name out of the file, fit for one line of text.
std::string shown(std::string name) {
  name.resize(std::min<size_t>(name.size(), 100));
  for (char& c : name)
    if (c < 0x20 || c == 0x7f) c = '?';
  return name;
}

}  // namespace

void PickleMachine::fail(const std::string& what) const {
  fail_pickle(what + " at byte " + std::to_string(at_), path_);
}

PickleMachine::PickleMachine(std::span<const std::byte> bytes, const std::string& path)
    : bytes_(bytes.first(std::min(kMaxBytes, bytes.size()))), path_(path) {}

PickleIndex PickleMachine::run() {
  stack_.clear();
  marks_.clear();
  memo_.clear();
  for (;;) {
    const auto code = uint8_t(number(1));
    if (code == '.') break;
    if (!run_constant(code) && !run_container(code) && !run_memo(code) && !run_call(code))
      fail("instruction " + std::to_string(code) + " is none that a state_dict needs,");
  }
  return pop();
}

bool PickleMachine::run_constant(uint8_t code) {
  using enum PickleKind;
  switch (code) {
    case 'N':
      push({kNone});
      return true;
    case 0x88:  // NEWTRUE
    case 0x89:  // NEWFALSE
      push({kBool, code == 0x88});
      return true;
    case 'J':
      push({kInteger, int32_t(number(4))});
      return true;
    case 'K':
      push({kInteger, int64_t(number(1))});
      return true;
    case 'M':
      push({kInteger, int64_t(number(2))});
      return true;
    case 0x8a:  // LONG1
      push_long(number(1));
      return true;
    case 'G':
      take(8);
      push({kFloat});
      return true;
    case 'X':
      push({kText, 0, text(number(4))});
      return true;
    case 0x8c:  // SHORT_BINUNICODE
      push({kText, 0, text(number(1))});
      return true;
    default:
      return false;
  }
}

bool PickleMachine::run_container(uint8_t code) {
  using enum PickleKind;
  switch (code) {
    case '(':
      marks_.push_back(stack_.size());
      return true;
    case ')':
      push({kTuple});
      return true;
    case 0x85:  // TUPLE1 to TUPLE3
    case 0x86:
    case 0x87:
      push_tuple(code - 0x84u);
      return true;
    case 't': {
      std::vector<PickleIndex> items = pop_to_mark();
      push({.kind = kTuple, .items = std::move(items)});
      return true;
    }
    case ']':
      push({kList});
      return true;
    case '}':
      push({kDict});
      return true;
    case 'a':
      extend(kList, {pop()});
      return true;
    case 'e':
      extend(kList, pop_to_mark());
      return true;
    case 's': {
      const PickleIndex value = pop(), key = pop();
      extend(kDict, {key, value});
      return true;
    }
    case 'u':
      extend(kDict, pop_to_mark());
      return true;
    default:
      return false;
  }
}

bool PickleMachine::run_memo(uint8_t code) {
  const auto put = [this](uint64_t key) {
    if (memo_.size() == kMaxValues) fail("it has too many values");
    memo_[key] = top();
  };
  const auto get = [this](uint64_t key) {
    const auto found = memo_.find(key);
    if (found == memo_.end()) fail("it recalls what it has not stored");
    stack_.push_back(found->second);
  };
  switch (code) {
    case 'q':
      put(number(1));
      return true;
    case 'r':
      put(number(4));
      return true;
    case 0x94:  // MEMOIZE
      put(memo_.size());
      return true;
    case 'h':
      get(number(1));
      return true;
    case 'j':
      get(number(4));
      return true;
    case 0x80:  // PROTO
      if (const uint64_t version = number(1); version > 5)
        fail("its protocol " + std::to_string(version) + " is unknown");
      return true;
    case 0x95:  // FRAME, whose length adds nothing
      take(8);
      return true;
    default:
      return false;
  }
}

bool PickleMachine::run_call(uint8_t code) {
  switch (code) {
    case 'c': {
      const std::string module = line();
      push_global(module, line());
      return true;
    }
    case 0x93: {  // STACK_GLOBAL
      const PickleIndex name = pop(), module = pop();
      if (value(name).kind != PickleKind::kText || value(module).kind != PickleKind::kText)
        fail("a function has no name");
      push_global(value(module).text, value(name).text);
      return true;
    }
    case 'Q':
      push_storage();
      return true;
    case 'R':
      call();
      return true;
    case 'b':  // BUILD: an OrderedDict's attributes, such as the versions of modules
      pop();
      if (value(top()).kind != PickleKind::kDict) fail("it sets attributes of what has none");
      return true;
    default:
      return false;
  }
}

std::span<const std::byte> PickleMachine::take(size_t count) {
  if (count > bytes_.size() - at_) fail("the pickle ends too early,");
  const auto taken = bytes_.subspan(at_, count);
  at_ += count;
  return taken;
}

uint64_t PickleMachine::number(size_t bytes) {
  uint64_t value = 0;
  std::memcpy(&value, take(bytes).data(), bytes);
  return value;
}

std::string PickleMachine::text(uint64_t length) {
  const auto taken = take(length);
  return {reinterpret_cast<const char*>(taken.data()), taken.size()};
}

std::string PickleMachine::line() {
  const auto rest = bytes_.subspan(at_, std::min(kMaxName, bytes_.size() - at_));
  const auto end = std::ranges::find(rest, std::byte{'\n'});
  if (end == rest.end()) fail("a name has no end");
  std::string name = text(uint64_t(end - rest.begin()));
  take(1);
  return name;
}

PickleIndex PickleMachine::add(PickleValue value) {
  if (values_.size() == kMaxValues) fail("it has too many values");
  values_.push_back(std::move(value));
  return PickleIndex(values_.size() - 1);
}

PickleIndex PickleMachine::top() const {
  if (stack_.size() <= (marks_.empty() ? 0 : marks_.back())) fail("a value is missing");
  return stack_.back();
}

PickleIndex PickleMachine::pop() {
  const PickleIndex index = top();
  stack_.pop_back();
  return index;
}

std::vector<PickleIndex> PickleMachine::pop_to_mark() {
  if (marks_.empty()) fail("a mark is missing");
  const auto begin = stack_.begin() + ptrdiff_t(marks_.back());
  std::vector<PickleIndex> items(begin, stack_.end());
  stack_.erase(begin, stack_.end());
  marks_.pop_back();
  return items;
}

void PickleMachine::push_tuple(size_t count) {
  std::vector<PickleIndex> items(count);
  for (size_t i = count; i > 0; --i) items[i - 1] = pop();
  push({.kind = PickleKind::kTuple, .items = std::move(items)});
}

void PickleMachine::extend(PickleKind kind, const std::vector<PickleIndex>& items) {
  PickleValue& target = values_[top()];
  if (target.kind != kind || (kind == PickleKind::kDict && items.size() % 2 != 0))
    fail("it adds to what holds no such items");
  target.items.insert(target.items.end(), items.begin(), items.end());
}

void PickleMachine::push_long(size_t bytes) {
  if (bytes > 8) return push({PickleKind::kText, 0, text(bytes)});
  uint64_t value = number(bytes);
  const size_t unused = 64 - 8 * bytes;  // the sign is the highest bit there is
  if (bytes > 0) value = uint64_t(int64_t(value << unused) >> unused);
  push({PickleKind::kInteger, int64_t(value)});
}

void PickleMachine::push_global(const std::string& module, const std::string& name) {
  if (module.size() > kMaxName || name.size() > kMaxName) fail("a function's name is too long");
  const std::string global = module + "." + name;
  for (const StorageType& row : kStorageTypes)
    if (row.global == global) return push({PickleKind::kGlobal, 0, global, {}, row.type});
  if (global != kOrderedDict && global != kTensor && global != kParameter)
    fail_pickle("it asks for " + shown(global) + ", which is no part of a state_dict", path_);
  push({PickleKind::kGlobal, 0, global});
}

const PickleValue& PickleMachine::item(const PickleValue& tuple, size_t i, PickleKind kind) const {
  if (tuple.kind != PickleKind::kTuple || i >= tuple.items.size() ||
      value(tuple.items[i]).kind != kind)
    fail("a tensor is not described as torch does");
  return value(tuple.items[i]);
}

// ("storage", type, key, device, elements)
void PickleMachine::push_storage() {
  const PickleValue& tuple = value(pop());
  using enum PickleKind;
  const PickleValue& global = item(tuple, 1, kGlobal);
  const PickleValue& elements = item(tuple, 4, kInteger);
  const std::string& key = item(tuple, 2, kText).text;
  if (item(tuple, 0, kText).text != "storage" || global.type.empty() || elements.number < 0 ||
      key.size() > kMaxName)
    fail("a tensor's memory is not described as torch does");
  push({kStorage, elements.number, key, {}, global.type});
}

void PickleMachine::call() {
  const PickleIndex arguments = pop();
  const PickleValue& function = value(pop());
  if (function.kind != PickleKind::kGlobal || value(arguments).kind != PickleKind::kTuple)
    fail("it calls what is no function");
  if (function.text == kOrderedDict) {
    if (!value(arguments).items.empty()) fail("an OrderedDict is made of something");
    push({PickleKind::kDict});
  } else if (function.text == kTensor) {
    rebuild_tensor(value(arguments));
  } else if (function.text == kParameter) {
    item(value(arguments), 0, PickleKind::kTensor);
    stack_.push_back(value(arguments).items[0]);
  } else {
    fail("it calls " + function.text);
  }
}

// (storage, offset, sizes, strides, requires_grad, hooks)
void PickleMachine::rebuild_tensor(const PickleValue& arguments) {
  using enum PickleKind;
  const PickleValue& storage = item(arguments, 0, kStorage);
  PickledTensor tensor;
  tensor.type = storage.type;
  tensor.storage = storage.text;
  tensor.storage_elements = storage.number;
  tensor.offset = item(arguments, 1, kInteger).number;
  item(arguments, 2, kTuple);
  tensor.sizes = integers(arguments.items[2]);
  item(arguments, 3, kTuple);
  tensor.strides = integers(arguments.items[3]);
  check(tensor);
  tensors_.push_back(std::move(tensor));
  push({kTensor, int64_t(tensors_.size() - 1)});
}

std::vector<int64_t> PickleMachine::integers(PickleIndex tuple) const {
  const PickleValue& list = value(tuple);
  if (list.items.size() > kMaxDimensions) fail("a tensor has too many dimensions");
  std::vector<int64_t> numbers;
  for (size_t i = 0; i < list.items.size(); ++i)
    numbers.push_back(item(list, i, PickleKind::kInteger).number);
  return numbers;
}

// All sizes count as one against overflow where they are zero, because torch multiplies them out.
void PickleMachine::check(const PickledTensor& tensor) const {
  const auto& [name, type, sizes, strides, offset, storage, elements] = tensor;
  bool sound = sizes.size() == strides.size() && offset >= 0, empty = false;
  int64_t count = 1, last = offset;
  for (size_t i = 0; sound && i < sizes.size(); ++i) {
    int64_t along = 0;
    empty = empty || sizes[i] == 0;
    sound = sizes[i] >= 0 && strides[i] >= 0 &&
            !__builtin_mul_overflow(count, std::max<int64_t>(1, sizes[i]), &count) &&
            !__builtin_mul_overflow(std::max<int64_t>(0, sizes[i] - 1), strides[i], &along) &&
            !__builtin_add_overflow(last, along, &last);
  }
  // A view that repeats elements would take more memory than the file has.
  if (!sound || (!empty && (last >= elements || count > elements)))
    fail("a tensor does not lie within its memory,");
}

}  // namespace saturate
