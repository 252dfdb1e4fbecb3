#include <ATen/ops/empty.h>
#include <caffe2/serialize/inline_container.h>

#include <cstring>
#include <exception>
#include <functional>
#include <map>
#include <new>

#include "model/model_files.h"
#include "model/tensor_pickle.h"

namespace saturate {
namespace {

using caffe2::serialize::PyTorchStreamReader;

// Reads the storage of that key into `bytes`, or fails.
using ReadStorage = std::function<void(const std::string& key, std::span<std::byte> bytes)>;
// The size in the file of the storage of that key; UINT64_MAX if missing.
using CountStorage = std::function<uint64_t(const std::string& key)>;

// Reads each storage once, and only if a tensor needs it.
class Storages {
 public:
  Storages(CountStorage bytes_of, ReadStorage read, uint64_t file_bytes, const std::string& path)
      : bytes_of_(std::move(bytes_of)),
        read_(std::move(read)),
        bytes_left_(file_bytes),
        path_(path) {}

  at::Tensor view(const PickledTensor& tensor) {
    auto& storage = storages_[tensor.storage];
    if (!storage.defined()) storage = load(tensor);
    if (storage.scalar_type() != type_named(tensor.type) ||
        storage.numel() != tensor.storage_elements)
      fail_pickle("tensors disagree on the memory that they share", path_);
    return storage.as_strided(tensor.sizes, tensor.strides, tensor.offset);
  }

 private:
  at::Tensor load(const PickledTensor& tensor) {
    const at::ScalarType type = type_named(tensor.type);
    const auto element = uint64_t(c10::elementSize(type));
    const uint64_t bytes = bytes_of_(tensor.storage), elements = uint64_t(tensor.storage_elements);
    if (bytes / element != elements || bytes % element != 0)
      fail_pickle("a tensor's data are missing, or of another length", path_);
    // Records that share bytes, or are compressed, could take any amount of memory.
    if (bytes > bytes_left_) fail_pickle("its tensors have more bytes than the file", path_);
    bytes_left_ -= bytes;
    at::Tensor storage = at::empty({tensor.storage_elements}, type);
    const std::span data(static_cast<std::byte*>(storage.mutable_data_ptr()), size_t(bytes));
    if (!data.empty()) read_(tensor.storage, data);
    if (type == at::kBool && !are_bools(data)) fail_pickle("a bool is neither 0 nor 1", path_);
    return storage;
  }

  CountStorage bytes_of_;
  ReadStorage read_;
  uint64_t bytes_left_;
  const std::string& path_;
  std::map<std::string, at::Tensor> storages_;
};

std::vector<NamedTensor> views_of(const TensorPickle& pickle, Storages& storages) {
  std::vector<NamedTensor> tensors;
  for (const PickledTensor& tensor : pickle.tensors)
    tensors.push_back({tensor.name, storages.view(tensor)});
  return tensors;
}

// A record of the archive, which is stored uncompressed: it cannot be larger than the file.
std::vector<std::byte> read_record(PyTorchStreamReader& archive, const std::string& name,
                                   uint64_t file_bytes, const std::string& path) {
  const size_t size = archive.getRecordSize(name);
  if (size > file_bytes) fail_pickle("its record " + name + " is longer than the file", path);
  std::vector<std::byte> bytes(size);
  if (size > 0) archive.getRecord(name, bytes.data(), size);
  return bytes;
}

std::vector<NamedTensor> read_archive(std::shared_ptr<EnvReader> reader, const std::string& path,
                                      const std::string& prefix) {
  const uint64_t file_bytes = reader->size();
  PyTorchStreamReader archive(std::move(reader));
  if (archive.hasRecord("constants.pkl"))
    fail_pickle("it is a TorchScript program (model.name=torchscript trains those)", path);
  if (!archive.hasRecord("data.pkl")) fail_pickle("it has no data.pkl", path);
  if (archive.hasRecord("byteorder")) {
    const auto order = read_record(archive, "byteorder", file_bytes, path);
    if (order.size() != 6 || std::memcmp(order.data(), "little", 6) != 0)
      fail_pickle("its numbers are not little-endian", path);
  }
  const auto pickle =
      read_tensor_pickle(read_record(archive, "data.pkl", file_bytes, path), path, prefix);
  const auto record = [](const std::string& key) { return "data/" + key; };
  Storages storages(
      [&](const std::string& key) -> uint64_t {
        return archive.hasRecord(record(key)) ? archive.getRecordSize(record(key)) : UINT64_MAX;
      },
      [&](const std::string& key, std::span<std::byte> bytes) {
        archive.getRecord(record(key), bytes.data(), bytes.size());
      },
      file_bytes, path);
  return views_of(pickle, storages);
}

}  // namespace

std::vector<NamedTensor> read_pt_archive(Env& env, const std::string& path,
                                         const std::string& prefix) {
  try {
    return read_archive(std::make_shared<EnvReader>(env.open_readable(path)), path, prefix);
  } catch (const Error&) {
    throw;
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception&) {  // its text comes from torch's zip library
    fail_pickle("it is not a torch archive, or it is truncated or damaged", path);
  }
}

// After the pickles, each storage has its number of elements, 8 bytes, and its data.
std::vector<NamedTensor> read_legacy_pt(Env& env, const std::string& path,
                                        const std::string& prefix) {
  const std::vector<std::byte> file = read_file(env, path);
  const std::span<const std::byte> bytes(file);
  const TensorPickle pickle = read_legacy_pickles(bytes, path, prefix);
  std::map<std::string, std::span<const std::byte>> data;
  size_t at = pickle.end;
  for (const auto& [key, storage] : pickle.storages) {
    const auto element = uint64_t(c10::elementSize(type_named(storage.type)));
    uint64_t count = 0;
    if (bytes.size() - at < sizeof count) fail_pickle("it ends too early", path);
    std::memcpy(&count, bytes.data() + at, sizeof count);
    at += sizeof count;
    if (count != uint64_t(storage.elements) || count > (bytes.size() - at) / element)
      fail_pickle("it ends too early, or a tensor's data are of another length", path);
    data[key] = bytes.subspan(at, count * element);
    at += count * element;
  }
  Storages storages(
      [&](const std::string& key) -> uint64_t {
        return data.contains(key) ? data[key].size() : UINT64_MAX;
      },
      [&](const std::string& key, std::span<std::byte> out) {
        std::memcpy(out.data(), data[key].data(), out.size());
      },
      bytes.size(), path);
  return views_of(pickle, storages);
}

}  // namespace saturate
