#include "tests/fuzz/fuzz_pickle.h"

#include <algorithm>
#include <stdexcept>

#include "model/tensor_pickle.h"
#include "saturate/data/error.h"

namespace saturate::testing {
namespace {

void require(bool sound, const char* what) {
  if (!sound) throw std::logic_error(what);
}

// Whether a view with that number of elements would be within its storage.
void require_inside(const PickledTensor& tensor) {
  require(tensor.sizes.size() == tensor.strides.size(), "sizes and strides differ in number");
  require(tensor.offset >= 0 && tensor.storage_elements >= 0, "negative");
  if (std::ranges::find(tensor.sizes, 0) != tensor.sizes.end()) return;
  unsigned __int128 last = uint64_t(tensor.offset), count = 1;
  for (size_t i = 0; i < tensor.sizes.size(); ++i) {
    require(tensor.sizes[i] >= 0 && tensor.strides[i] >= 0, "negative");
    count *= uint64_t(tensor.sizes[i]);
    last += (uint64_t(tensor.sizes[i]) - 1) * static_cast<unsigned __int128>(tensor.strides[i]);
    require(count <= uint64_t(tensor.storage_elements), "more elements than there are");
  }
  require(last < uint64_t(tensor.storage_elements), "reaches outside");
}

template <class Read>
size_t count_tensors(const Read& read) {
  try {
    const TensorPickle pickle = read();
    for (const PickledTensor& tensor : pickle.tensors) require_inside(tensor);
    return pickle.tensors.size();
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kRun) throw std::logic_error(error.what());
    return 0;
  }
}

}  // namespace

size_t fuzz_pickle(std::span<const std::byte> bytes) {
  return count_tensors([&] { return read_tensor_pickle(bytes, "input"); }) +
         count_tensors([&] { return read_tensor_pickle(bytes, "input", "ema."); }) +
         count_tensors([&] {
           const TensorPickle pickle = read_legacy_pickles(bytes, "input");
           require(pickle.end <= bytes.size(), "data begin after the end");
           return pickle;
         });
}

}  // namespace saturate::testing
