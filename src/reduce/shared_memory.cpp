#include "reduce/shared_memory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <filesystem>
#include <sstream>
#include <utility>

namespace saturate {
namespace {

constexpr mode_t kOwnerAlone = 0600;

std::string link_of(const std::string& path) {
  std::error_code none;
  return std::filesystem::read_symlink(path, none);
}

std::string network() {
  return link_of("/proc/self/ns/net");
}

// The system's name of an open memfd.
std::string shown(const std::string& name) {
  return "/memfd:" + name + " (deleted)";
}

// 128 random bits, so that a process that reuses the PID is not mistaken for another.
std::string make_name() {
  std::array<uint64_t, 2> random{};
  if (getrandom(random.data(), sizeof random, 0) != ssize_t(sizeof random)) return {};
  return fmt::format("saturate-{:016x}{:016x}", random[0], random[1]);
}

// Growing a file beyond the limit would raise a signal.
bool may_have_files_of(size_t bytes) {
  rlimit limit{};
  return getrlimit(RLIMIT_FSIZE, &limit) == 0 &&
         (limit.rlim_cur == RLIM_INFINITY || limit.rlim_cur >= bytes);
}

struct flock byte_of(int rank, short type = F_WRLCK) {
  return {.l_type = type, .l_whence = SEEK_SET, .l_start = rank, .l_len = 1, .l_pid = 0};
}

}  // namespace

std::shared_ptr<SharedMemory> SharedMemory::create(size_t bytes, int rank) {
  const std::string name = make_name();
  if (name.empty() || !may_have_files_of(bytes)) return nullptr;
  const int descriptor = memfd_create(name.c_str(), MFD_CLOEXEC);
  if (descriptor < 0) return nullptr;
  std::shared_ptr<SharedMemory> made(new SharedMemory(descriptor, name));
  if (fchmod(descriptor, kOwnerAlone) != 0 || ftruncate(descriptor, off_t(bytes)) != 0 ||
      !made->enter(rank))
    return nullptr;
  return made;
}

std::shared_ptr<SharedMemory> SharedMemory::join(const std::string& address, int rank) {
  std::istringstream words(address);
  std::string path, name, space;
  if (!(words >> path >> name >> space) || space != network() || link_of(path) != shown(name))
    return nullptr;
  // A separate open file description, which holds this rank's lock.
  const int descriptor = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (descriptor < 0) return nullptr;
  std::shared_ptr<SharedMemory> joined(new SharedMemory(descriptor, name));
  const bool right = link_of(fmt::format("/proc/self/fd/{}", descriptor)) == shown(name);
  return right && joined->enter(rank) ? joined : nullptr;
}

SharedMemory::~SharedMemory() {
  leave();
  if (data_) munmap(data_, size_);
}

bool SharedMemory::enter(int rank) {
  struct stat about {};
  if (fstat(descriptor_, &about) != 0) return false;
  void* const mapped = mmap(nullptr, size_t(about.st_size), PROT_READ | PROT_WRITE,
                            MAP_SHARED | MAP_NORESERVE, descriptor_, 0);
  if (mapped == MAP_FAILED) return false;
  data_ = static_cast<std::byte*>(mapped);
  size_ = size_t(about.st_size);
  rank_ = rank;
  struct flock own = byte_of(rank);
  return fcntl(descriptor_, F_OFD_SETLK, &own) == 0;
}

std::string SharedMemory::address() const {
  return fmt::format("/proc/{}/fd/{} {} {}", getpid(), descriptor_, name_, network());
}

bool SharedMemory::has(int rank) const {
  struct flock held = byte_of(rank);
  return fcntl(descriptor_, F_OFD_GETLK, &held) == 0 && held.l_type != F_UNLCK;
}

void SharedMemory::leave() {
  if (descriptor_ < 0) return;
  struct flock own = byte_of(rank_, F_UNLCK);
  fcntl(descriptor_, F_OFD_SETLK, &own);  // the mapping would keep it locked otherwise
  close(std::exchange(descriptor_, -1));
}

}  // namespace saturate
