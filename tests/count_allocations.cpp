#include "tests/count_allocations.h"

#include <cstdlib>
#include <new>

#if SATURATE_ASAN || SATURATE_TSAN

std::optional<size_t> saturate::testing::allocation_count() {
  return std::nullopt;
}

#else

namespace {
thread_local size_t count = 0;
}  // namespace

std::optional<size_t> saturate::testing::allocation_count() {
  return count;
}

void* operator new(size_t size) {
  ++count;
  if (void* memory = std::malloc(size)) return memory;
  throw std::bad_alloc();
}

void operator delete(void* memory) noexcept {
  std::free(memory);
}

void operator delete(void* memory, size_t) noexcept {
  std::free(memory);
}

#endif
