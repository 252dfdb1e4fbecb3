#include "base/tensor_pickle.h"

#include <set>

#include "base/pickle_machine.h"
#include "saturate/error.h"

namespace saturate {
namespace {

using enum PickleKind;

// The number that legacy files begin with, 0x1950a86a20f9469cfc6c, as its pickle.
constexpr std::string_view kLegacyBegin("\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.",
                                        15);

// The value under a key of a dictionary; null where it has none.
const PickleValue* find(const PickleMachine& machine, const PickleValue& dict,
                        std::string_view key) {
  for (size_t i = 0; i + 1 < dict.items.size(); i += 2) {
    const PickleValue& found = machine.value(dict.items[i]);
    if (found.kind == kText && found.text == key) return &machine.value(dict.items[i + 1]);
  }
  return nullptr;
}

bool holds_tensors(const PickleMachine& machine, const PickleValue& dict) {
  for (size_t i = 1; i < dict.items.size(); i += 2)
    if (machine.value(dict.items[i]).kind == kTensor) return true;
  return false;
}

const PickleValue& find_tensors(const PickleMachine& machine, const PickleValue& root,
                                const std::string& path) {
  if (root.kind != kDict) fail_pickle("it is no dictionary of tensors", path);
  // Before the dictionary itself, which may hold the best accuracy as a tensor beside them.
  for (const char* key : {"state_dict", "model", "model_state_dict"}) {
    const PickleValue* found = find(machine, root, key);
    if (found && found->kind == kDict && holds_tensors(machine, *found)) return *found;
  }
  if (holds_tensors(machine, root)) return root;
  fail_pickle("it holds no tensors by name", path);
}

std::vector<PickledTensor> tensors_of(const PickleMachine& machine, const PickleValue& root,
                                      const std::string& path) {
  const PickleValue& dict = find_tensors(machine, root, path);
  std::vector<PickledTensor> tensors;
  std::set<std::string_view> names;
  for (size_t i = 0; i + 1 < dict.items.size(); i += 2) {
    const PickleValue& key = machine.value(dict.items[i]);
    const PickleValue& value = machine.value(dict.items[i + 1]);
    if (value.kind != kTensor) continue;
    if (key.kind != kText) fail_pickle("a tensor's name is no text", path);
    if (!names.insert(key.text).second) fail_pickle("two tensors have one name", path);
    tensors.push_back(machine.tensors()[size_t(value.number)]);
    tensors.back().name = key.text;
  }
  return tensors;
}

}  // namespace

void fail_pickle(const std::string& what, const std::string& path) {
  fail(ErrorKind::kRun, "not a file of weights that can be read: " + what, path,
       "Save tensors alone, as torch.save(model.state_dict(), FILE) does, or safetensors");
}

TensorPickle read_tensor_pickle(std::span<const std::byte> pickle, const std::string& path) {
  PickleMachine machine(pickle, path);
  const PickleIndex root = machine.run();
  return {tensors_of(machine, machine.value(root), path), {}, machine.position()};
}

bool is_legacy_pickle(std::span<const std::byte> file) {
  return file.size() >= 2 && file[0] == std::byte{0x80} && file[1] == std::byte{2};
}

// The magic number, the protocol, what machine it was, the dictionary, the keys of the storages.
TensorPickle read_legacy_pickles(std::span<const std::byte> file, const std::string& path) {
  const std::string_view begin(reinterpret_cast<const char*>(file.data()), file.size());
  if (!begin.starts_with(kLegacyBegin)) fail_pickle("it is a pickle, but not by torch.save", path);
  PickleMachine machine(file, path);
  for (int i = 0; i < 2; ++i) machine.run();
  const PickleValue& system = machine.value(machine.run());
  const PickleValue* little =
      system.kind == kDict ? find(machine, system, "little_endian") : nullptr;
  if (!little || little->kind != kBool || little->number != 1)
    fail_pickle("its numbers are not little-endian", path);
  const PickleIndex root = machine.run();
  TensorPickle result{tensors_of(machine, machine.value(root), path), {}, 0};
  const PickleValue& keys = machine.value(machine.run());
  if (keys.kind != kList) fail_pickle("its list of storages is missing", path);
  for (const PickleIndex index : keys.items) {
    if (machine.value(index).kind != kText) fail_pickle("a storage has no name", path);
    result.storages.push_back(machine.value(index).text);
  }
  result.end = machine.position();
  return result;
}

}  // namespace saturate
