// The caller of a function. A lookup in torch's symbol tables takes a millisecond, so it is cached.
#include <cxxabi.h>
#include <dlfcn.h>
#include <execinfo.h>

#include <cstdlib>
#include <unordered_map>

#include "tests/fake_cuda/state.h"

namespace saturate::fake_cuda {
namespace {

constexpr int kDepth = 64;

std::string plain_name(const char* mangled) {
  int status = 0;
  char* const text = abi::__cxa_demangle(mangled, nullptr, nullptr, &status);
  std::string name = text ? text : mangled;
  std::free(text);
  return name.substr(0, name.find('('));
}

// Empty for the fake's own functions and if there is none.
const std::string& name_of(void* frame) {
  thread_local std::unordered_map<void*, std::string> known;
  const auto [found, is_new] = known.try_emplace(frame);
  if (!is_new) return found->second;
  Dl_info own{}, place{};
  dladdr(reinterpret_cast<void*>(&plain_name), &own);
  if (dladdr(frame, &place) != 0 && place.dli_sname && place.dli_fbase != own.dli_fbase)
    found->second = plain_name(place.dli_sname);
  return found->second;
}

bool is_program(const std::string& name) {
  return name.find("saturate::") != std::string::npos &&
         name.find("saturate::testing") == std::string::npos;
}

}  // namespace

std::string callers(size_t most, bool program) {
  void* frames[kDepth];
  const int depth = backtrace(frames, kDepth);
  std::string text;
  for (int i = 0; i < depth && most > 0; ++i) {
    const std::string& name = name_of(frames[i]);
    if (name.empty() || (program && !is_program(name))) continue;
    text += (text.empty() ? "" : " < ") + name;
    --most;
  }
  return text;
}

}  // namespace saturate::fake_cuda
