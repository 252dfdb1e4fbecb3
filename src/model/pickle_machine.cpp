#include "model/pickle_machine.h"

#include <algorithm>
#include <charconv>
#include <cstring>

namespace saturate {
namespace {

// Above any model's needs, but small enough to bound the memory that a malicious file can take.
constexpr size_t kMaxValues = size_t{1} << 22;
constexpr size_t kMaxCopies = size_t{1} << 24;
constexpr size_t kMaxBytes = size_t{256} << 20;  // MMEngine writes tens of MB

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
  for (uint8_t code; (code = uint8_t(number(1))) != '.';) run_constant(code);
  return pop();
}

void PickleMachine::run_constant(uint8_t code) {
  using enum PickleKind;
  switch (code) {
    case 'N':
      return push({kNone});
    case 0x88:  // NEWTRUE
    case 0x89:  // NEWFALSE
      return push({kBool, code == 0x88});
    case 'J':
      return push({kInteger, int32_t(number(4))});
    case 'K':
      return push({kInteger, int64_t(number(1))});
    case 'M':
      return push({kInteger, int64_t(number(2))});
    case 'I':
    case 'L':
      return push_digits(line());
    case 0x8a:  // LONG1
      return push_long(number(1));
    case 0x8b:  // LONG4
      return push_long(number(4));
    case 'G':
      take(8);
      return push({kFloat});
    default:
      run_string(code);
  }
}

// Text, including Python 2's, and bytes, whose contents are not needed.
void PickleMachine::run_string(uint8_t code) {
  using enum PickleKind;
  switch (code) {
    case 'X':
    case 'T':
      return push_text(number(4));
    case 0x8c:  // SHORT_BINUNICODE
    case 'U':
      return push_text(number(1));
    case 0x8d:  // BINUNICODE8
      return push_text(number(8));
    case 'B':
    case 'C':
      take(number(code == 'B' ? 4 : 1));
      return push({kOther});
    case 0x8e:  // BINBYTES8
    case 0x96:  // BYTEARRAY8
      take(number(8));
      return push({kOther});
    default:
      run_container(code);
  }
}

void PickleMachine::run_container(uint8_t code) {
  using enum PickleKind;
  switch (code) {
    case '(':
      if (marks_.size() == kMaxValues) fail("it has too many values");
      return marks_.push_back(stack_.size());
    case ')':
      return push({kTuple});
    case 0x85:  // TUPLE1 to TUPLE3
    case 0x86:
    case 0x87:
      return push_tuple(code - 0x84u);
    case 't':
      return push({.kind = kTuple, .items = pop_to_mark()});
    case ']':
      return push({kList});
    case '}':
      return push({kDict});
    case 'a':
      return extend(kList, {pop()});
    case 'e':
      return extend(kList, pop_to_mark());
    case 's': {
      const PickleIndex value = pop(), key = pop();
      return extend(kDict, {key, value});
    }
    case 'u':
      return extend(kDict, pop_to_mark());
    case 0x8f:  // EMPTY_SET
      return push({kOther});
    case 0x90:  // ADDITEMS
      return extend(kOther, pop_to_mark());
    case 0x91:  // FROZENSET
      pop_to_mark();
      return push({kOther});
    default:
      run_memo(code);
  }
}

void PickleMachine::run_memo(uint8_t code) {
  const auto put = [this](uint64_t key) {
    if (memo_.size() == kMaxValues) fail("it has too many values");
    memo_[key] = top();
  };
  const auto get = [this](uint64_t key) {
    const auto found = memo_.find(key);
    if (found == memo_.end()) fail("it reads a memo entry that was never stored");
    count_copies(1);
    stack_.push_back(found->second);
  };
  switch (code) {
    case 'q':
      return put(number(1));
    case 'r':
      return put(number(4));
    case 0x94:  // MEMOIZE
      return put(memo_.size());
    case 'h':
      return get(number(1));
    case 'j':
      return get(number(4));
    case 0x80:  // PROTO
      if (const uint64_t version = number(1); version > 5)
        fail("its protocol " + std::to_string(version) + " is unknown");
      return;
    case 0x95:  // FRAME: its length is redundant
      take(8);
      return;
    default:
      run_call(code);
  }
}

void PickleMachine::run_call(uint8_t code) {
  switch (code) {
    case 'c': {
      const std::string module = line();
      return push_global(module, line());
    }
    case 0x93: {  // STACK_GLOBAL
      const PickleIndex name = pop(), module = pop();
      if (value(name).kind != PickleKind::kText || value(module).kind != PickleKind::kText)
        fail("a function has no name");
      return push_global(value(module).text, value(name).text);
    }
    case 'Q':
      return push_storage();
    case 'R':
      return call();
    case 0x92:  // NEWOBJ_EX
      pop();    // the keyword arguments
      [[fallthrough]];
    case 0x81:  // NEWOBJ
      if (value(pop()).kind != PickleKind::kTuple || !is_passed_over(value(pop())))
        fail("it constructs something other than a plain value");
      return push({PickleKind::kOther});
    case 'b':  // BUILD: an OrderedDict's attributes, such as the versions of modules
      pop();
      if (const PickleKind kind = value(top()).kind;
          kind != PickleKind::kDict && kind != PickleKind::kOther)
        fail("it sets attributes of a value that has none");
      return;
    default:
      fail("instruction " + std::to_string(code) + " is not used by a state_dict,");
  }
}

std::span<const std::byte> PickleMachine::take(size_t count) {
  if (count > bytes_.size() - at_)
    fail(bytes_.size() < kMaxBytes ? "the pickle ends too early," : "it is longer than 256 MiB,");
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
  const auto rest = bytes_.subspan(at_, std::min(kMaxPickleName, bytes_.size() - at_));
  const auto end = std::ranges::find(rest, std::byte{'\n'});
  if (end == rest.end()) fail("a name is not terminated");
  std::string name = text(uint64_t(end - rest.begin()));
  take(1);
  return name;
}

PickleIndex PickleMachine::add(PickleValue value) {
  if (values_.size() == kMaxValues) fail("it has too many values");
  values_.push_back(std::move(value));
  return PickleIndex(values_.size() - 1);
}

void PickleMachine::count_copies(size_t count) {
  copies_ += count;
  if (copies_ > kMaxCopies) fail("it repeats too many values");
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
  if (target.kind == PickleKind::kOther) return;
  if (target.kind != kind || (kind == PickleKind::kDict && items.size() % 2 != 0))
    fail("it adds items to a value that cannot hold them");
  target.items.insert(target.items.end(), items.begin(), items.end());
}

// A longer one is no name, as are the values of arrays: it need not be kept.
void PickleMachine::push_text(uint64_t length) {
  if (length <= kMaxPickleName) return push({PickleKind::kText, 0, text(length)});
  take(length);
  push({PickleKind::kOther});
}

// Protocol 1: an integer, or 00 and 01 for a bool. Integers above 64 bits stay text.
void PickleMachine::push_digits(std::string digits) {
  if (digits == "00" || digits == "01") return push({PickleKind::kBool, digits == "01"});
  if (digits.ends_with('L')) digits.pop_back();
  int64_t value = 0;
  const char* const end = digits.data() + digits.size();
  const auto [at, error] = std::from_chars(digits.data(), end, value);
  if (at != end || error == std::errc::invalid_argument) fail("an integer is malformed");
  if (error == std::errc()) return push({PickleKind::kInteger, value});
  push({PickleKind::kText, 0, digits});
}

void PickleMachine::push_long(size_t bytes) {
  if (bytes > 8) return push({PickleKind::kText, 0, text(bytes)});
  uint64_t value = number(bytes);
  const size_t unused = 64 - 8 * bytes;  // the highest bit is the sign
  if (bytes > 0) value = uint64_t(int64_t(value << unused) >> unused);
  push({PickleKind::kInteger, int64_t(value)});
}

}  // namespace saturate
