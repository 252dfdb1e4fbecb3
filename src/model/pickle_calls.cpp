// Calls of a pickle: the part of the machine in pickle_machine.h that handles tensors.
#include <algorithm>

#include "model/pickle_machine.h"

namespace saturate {
namespace {

constexpr size_t kMostDimensions = 64;  // what torch's iterators support

// A name from the file, shortened for one line of text.
std::string shown_name(std::string name) {
  name.resize(std::min<size_t>(name.size(), 100));
  for (char& c : name)
    if (c < 0x20 || c == 0x7f) c = '?';
  return name;
}

}  // namespace

void PickleMachine::push_global(const std::string& module, const std::string& name) {
  if (module.size() > kMaxPickleName || name.size() > kMaxPickleName)
    fail("a function's name is too long");
  const std::string global = module + "." + name;
  const KnownGlobal known = known_global(global);
  if (known.kind == PickleGlobal::kUnknown)
    fail_pickle("it asks for " + shown_name(global) + ", which no state_dict needs", path_);
  push({PickleKind::kGlobal, int64_t(known.kind), global, {}, known.type});
}

bool PickleMachine::is_passed_over(const PickleValue& function) const {
  return function.kind == PickleKind::kGlobal &&
         PickleGlobal(function.number) == PickleGlobal::kOther;
}

const PickleValue& PickleMachine::item(const PickleValue& tuple, size_t i, PickleKind kind) const {
  if (tuple.kind != PickleKind::kTuple || i >= tuple.items.size() ||
      value(tuple.items[i]).kind != kind)
    fail("a tensor is not described as torch does");
  return value(tuple.items[i]);
}

// ("storage", type, key, device, elements), and before torch 0.4 a view of another storage
void PickleMachine::push_storage() {
  const PickleValue& tuple = value(pop());
  using enum PickleKind;
  const PickleValue& global = item(tuple, 1, kGlobal);
  if (is_passed_over(global)) return push({kOther});
  const PickleValue& elements = item(tuple, 4, kInteger);
  const std::string& key = item(tuple, 2, kText).text;
  if (item(tuple, 0, kText).text != "storage" || global.type.empty() || elements.number < 0 ||
      key.size() > kMaxPickleName ||
      (tuple.items.size() > 5 && value(tuple.items[5]).kind != kNone))
    fail("a tensor's memory is not described as torch does");
  count_copies(key.size() / sizeof(PickleIndex));
  const PickledStorage storage{global.type, elements.number};
  const auto [known, is_new] = storages_.try_emplace(key, storage);
  if (!is_new && (known->second.type != storage.type || known->second.elements != storage.elements))
    fail_pickle("tensors disagree on the memory that they share", path_);
  push({kStorage, elements.number, key, {}, global.type});
}

void PickleMachine::call() {
  const PickleIndex arguments = pop();
  const PickleValue& function = value(pop());
  if (function.kind != PickleKind::kGlobal || value(arguments).kind != PickleKind::kTuple)
    fail("it calls something that is not a function");
  auto kind = PickleGlobal(function.number);
  const PickleValue* given = &value(arguments);
  if (kind == PickleGlobal::kFromType) {
    kind = PickleGlobal(item(*given, 0, PickleKind::kGlobal).number);
    given = &item(*given, 2, PickleKind::kTuple);
    if (kind != PickleGlobal::kTensor && kind != PickleGlobal::kParameter)
      fail("a tensor is not described as torch does");
  }
  call(kind, *given);
}

void PickleMachine::call(PickleGlobal function, const PickleValue& arguments) {
  switch (function) {
    case PickleGlobal::kDict:
      return push_dict(arguments);
    case PickleGlobal::kTensor:
      return rebuild_tensor(arguments);
    case PickleGlobal::kParameter:
      item(arguments, 0, PickleKind::kTensor);
      return stack_.push_back(arguments.items[0]);
    case PickleGlobal::kOther:
      return push({PickleKind::kOther});
    default:
      fail("it calls something that is not a function");
  }
}

// Python 2 stores all its pairs here; a defaultdict's argument is only a factory.
void PickleMachine::push_dict(const PickleValue& arguments) {
  std::vector<PickleIndex> items;
  if (!arguments.items.empty() && value(arguments.items[0]).kind == PickleKind::kList)
    for (const PickleIndex index : value(arguments.items[0]).items) {
      count_copies(2);
      const std::vector<PickleIndex>& pair = value(index).items;
      if (pair.size() != 2) fail("a dictionary is not made of pairs");
      items.insert(items.end(), pair.begin(), pair.end());
    }
  push({.kind = PickleKind::kDict, .items = std::move(items)});
}

// (storage, offset, sizes, strides, requires_grad, hooks); old files have the first four
void PickleMachine::rebuild_tensor(const PickleValue& arguments) {
  using enum PickleKind;
  if (!arguments.items.empty() && value(arguments.items[0]).kind == kOther) return push({kOther});
  const PickleValue& storage = item(arguments, 0, kStorage);
  PickledTensor tensor;
  tensor.type = storage.type;
  tensor.storage = storage.text;
  tensor.storage_elements = storage.number;
  tensor.offset = item(arguments, 1, kInteger).number;
  tensor.sizes = integers(item(arguments, 2, kTuple));
  tensor.strides = integers(item(arguments, 3, kTuple));
  count_copies(storage.text.size() / sizeof(PickleIndex) +
               2 * (tensor.sizes.size() + tensor.strides.size()));
  check(tensor);
  tensors_.push_back(std::move(tensor));
  push({kTensor, int64_t(tensors_.size() - 1)});
}

std::vector<int64_t> PickleMachine::integers(const PickleValue& list) const {
  if (list.items.size() > kMostDimensions) fail("a tensor has too many dimensions");
  std::vector<int64_t> numbers;
  for (size_t i = 0; i < list.items.size(); ++i)
    numbers.push_back(item(list, i, PickleKind::kInteger).number);
  return numbers;
}

// Zero sizes count as one in the overflow check, because torch multiplies them out.
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
  if (!sound || (!empty && last >= elements)) fail("a tensor does not lie within its memory,");
  // It would take more memory than the file.
  if (!empty && count > elements)
    fail("a tensor repeats its values, as expand() does without contiguous(),");
}

}  // namespace saturate
