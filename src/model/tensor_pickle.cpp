#include "model/tensor_pickle.h"

#include <algorithm>
#include <optional>
#include <set>

#include "model/pickle_machine.h"
#include "saturate/data/error.h"

namespace saturate {
namespace {

using enum PickleKind;

// The magic number of legacy files, 0x1950a86a20f9469cfc6c: its little-endian bytes, or its digits
// in protocol 1.
constexpr std::string_view kMagicBytes("\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19", 10);
constexpr std::string_view kMagicDigits("119547037146038801333356");

// Keys searched for weights, in this order: trained ones before their average.
constexpr std::string_view kContainers[] = {
    "state_dict", "model",          "model_state_dict", "model_state", "net",
    "network",    "weights",        "params",           "model_ema",   "ema",
    "ema_model",  "state_dict_ema", "ema_state_dict",   "params_ema",  "module"};
// Limits against files made to waste memory.
constexpr int kMostNested = 4;
constexpr size_t kMostTables = 10'000;
constexpr size_t kLongestWay = 1'000;

// A dictionary that holds tensors, and the path of keys to it, each followed by a dot.
struct Table {
  std::string way;
  PickleIndex dict;
};

// The pickle's dictionaries of tensors.
class Tables {
 public:
  Tables(const PickleMachine& machine, PickleIndex root, const std::string& path)
      : machine_(machine), path_(path) {
    if (machine.value(root).kind != kDict) fail_pickle("it is not a dictionary of tensors", path);
    collect("", root, 0);
    chosen_ = choose("", 0);
  }

  std::vector<PickledTensor> tensors(const std::string& prefix) const {
    const auto fits = [&](const PickledTensor& tensor) { return tensor.name.starts_with(prefix); };
    std::vector<PickledTensor> found;
    if (chosen_) found = of(*chosen_, "");
    if (!prefix.empty() && std::ranges::none_of(found, fits)) {
      std::vector<PickledTensor> all;
      for (const Table& table : tables_)
        if (table.way.starts_with(prefix) || prefix.starts_with(table.way))
          for (PickledTensor& tensor : of(table, table.way))
            if (fits(tensor)) all.push_back(std::move(tensor));
      if (!all.empty()) return all;
    }
    if (!chosen_) fail_nowhere();
    return found;
  }

 private:
  // A dictionary may occur twice, or contain itself: each is visited once.
  void collect(const std::string& way, PickleIndex dict, int depth) {
    if (!seen_.insert(dict).second) return;
    const auto& items = machine_.value(dict).items;
    bool holds_tensors = false;
    for (size_t i = 0; i + 1 < items.size(); i += 2) {
      const PickleValue& key = machine_.value(items[i]);
      const PickleKind kind = machine_.value(items[i + 1]).kind;
      holds_tensors = holds_tensors || kind == kTensor;
      if (kind == kDict && key.kind == kText && depth < kMostNested &&
          way.size() + key.text.size() < kLongestWay)
        collect(way + key.text + ".", items[i + 1], depth + 1);
    }
    if (!holds_tensors) return;
    if (tables_.size() == kMostTables) fail_pickle("it holds too many dictionaries", path_);
    tables_.push_back({way, dict});
  }

  // Nested ones first: the outer dictionary may hold the best accuracy as a tensor beside them.
  std::optional<Table> choose(const std::string& way, int depth) const {
    for (const std::string_view container : kContainers) {
      const std::string inner = way + std::string(container) + ".";
      if (depth == kMostNested || std::ranges::none_of(tables_, [&](const Table& table) {
            return table.way.starts_with(inner);
          }))
        continue;
      if (auto found = choose(inner, depth + 1)) return found;
    }
    const auto found = std::ranges::find(tables_, way, &Table::way);
    return found == tables_.end() ? std::nullopt : std::optional(*found);
  }

  std::vector<PickledTensor> of(const Table& table, const std::string& way) const {
    const auto& items = machine_.value(table.dict).items;
    std::vector<PickledTensor> tensors;
    std::set<std::string_view> names;
    for (size_t i = 0; i + 1 < items.size(); i += 2) {
      const PickleValue& key = machine_.value(items[i]);
      const PickleValue& value = machine_.value(items[i + 1]);
      if (value.kind != kTensor) continue;
      if (key.kind != kText) fail_pickle("a tensor's name is not text", path_);
      if (!names.insert(key.text).second) fail_pickle("two tensors have the same name", path_);
      tensors.push_back(machine_.tensors()[size_t(value.number)]);
      tensors.back().name = way + key.text;
    }
    return tensors;
  }

  [[noreturn]] void fail_nowhere() const {
    if (tables_.empty()) fail_pickle("it holds no tensors by name", path_);
    fail(ErrorKind::kRun,
         "its tensors are under unknown keys, the first under \"" + tables_.front().way + "\"",
         path_, "Set model.weights_prefix to the path of keys to the weights, each with a dot");
  }

  const PickleMachine& machine_;
  const std::string& path_;
  std::vector<Table> tables_;
  std::set<PickleIndex> seen_;
  std::optional<Table> chosen_;
};

// The value of a dictionary's key; null if missing.
const PickleValue* find(const PickleMachine& machine, const PickleValue& dict,
                        std::string_view key) {
  for (size_t i = 0; i + 1 < dict.items.size(); i += 2) {
    const PickleValue& found = machine.value(dict.items[i]);
    if (found.kind == kText && found.text == key) return &machine.value(dict.items[i + 1]);
  }
  return nullptr;
}

// The magic number, the protocol, and the machine's properties.
void run_legacy_head(PickleMachine& machine, const std::string& path) {
  const PickleValue magic = machine.value(machine.run());
  if (magic.kind != kText || (magic.text != kMagicBytes && magic.text != kMagicDigits))
    fail_pickle("it is a pickle, but not one of torch.save", path);
  machine.run();
  const PickleValue& system = machine.value(machine.run());
  const PickleValue* little =
      system.kind == kDict ? find(machine, system, "little_endian") : nullptr;
  if (!little || little->kind != kBool || little->number != 1)
    fail_pickle("its numbers are not little-endian", path);
}

}  // namespace

void fail_pickle(const std::string& what, const std::string& path) {
  fail(ErrorKind::kRun, "not a file of weights that can be read: " + what, path,
       "Save only tensors, as torch.save(model.state_dict(), FILE) does, or safetensors");
}

TensorPickle read_tensor_pickle(std::span<const std::byte> pickle, const std::string& path,
                                const std::string& prefix) {
  PickleMachine machine(pickle, path);
  const PickleIndex root = machine.run();
  return {Tables(machine, root, path).tensors(prefix), {}, machine.position()};
}

// 0x80 and a protocol from 2 on, or in protocol 1 an integer's digits. A safetensors file may begin
// with the same bytes, as its header length, but has a brace after them.
bool is_legacy_pickle(std::span<const std::byte> begin) {
  constexpr size_t kBrace = 8;
  if (begin.size() <= kBrace || begin[kBrace] == std::byte{'{'}) return false;
  const auto protocol = int(begin[1]);
  return (begin[0] == std::byte{0x80} && protocol >= 2 && protocol <= 5) ||
         begin[0] == std::byte{'L'};
}

// After the header the dictionary, then the storages' keys.
TensorPickle read_legacy_pickles(std::span<const std::byte> file, const std::string& path,
                                 const std::string& prefix) {
  PickleMachine machine(file, path);
  run_legacy_head(machine, path);
  const PickleIndex root = machine.run();
  TensorPickle result{Tables(machine, root, path).tensors(prefix), {}, 0};
  const PickleValue& keys = machine.value(machine.run());
  if (keys.kind != kList) fail_pickle("its list of storages is missing", path);
  for (const PickleIndex index : keys.items) {
    const PickleValue& key = machine.value(index);
    const auto found = machine.storages().find(key.text);
    if (key.kind != kText || found == machine.storages().end())
      fail_pickle("it has data that belongs to no tensor", path);
    result.storages.emplace_back(key.text, found->second);
  }
  result.end = machine.position();
  return result;
}

}  // namespace saturate
