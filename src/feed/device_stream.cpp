#include "feed/device_stream.h"

#include <ATen/Parallel.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <optional>

#include "base/thread_pool.h"

namespace saturate {
namespace {

class DeviceEvent : public Event {
 public:
  explicit DeviceEvent(const c10::Stream& stream) : event_(stream.device_type()) {
    event_.record(stream);
  }
  bool done() const override { return event_.query(); }
  void hold_back(const c10::Stream& stream) const { event_.block(stream); }

 protected:
  void block() const override { event_.synchronize(); }

 private:
  c10::Event event_;
};

class DeviceStream : public Stream {
 public:
  // Without a stream: the current one at each use.
  DeviceStream(const std::string& name, StreamChecker* checker, const c10::Device& device,
               std::optional<c10::Stream> stream)
      : Stream(name, checker), device_(device), stream_(stream) {}

  void submit(std::function<void()> work) override {
    const c10::StreamGuard current(stream());
    work();
  }

 protected:
  std::shared_ptr<Event> do_record() override { return std::make_shared<DeviceEvent>(stream()); }
  void do_wait(const std::shared_ptr<Event>& event) override {
    static_cast<const DeviceEvent&>(*event).hold_back(stream());
  }

 private:
  c10::Stream stream() const {
    return stream_ ? *stream_ : c10::impl::VirtualGuardImpl(device_.type()).getStream(device_);
  }

  const c10::Device device_;
  const std::optional<c10::Stream> stream_;
};

void require_compute_threads(int threads) {
  if (threads > 1) const ThreadPool trial(threads, "train.threads");
}

}  // namespace

std::unique_ptr<Stream> make_device_stream(const std::string& name, const c10::Device& device,
                                           StreamChecker* checker) {
  const c10::impl::VirtualGuardImpl guard(device.type());
  return std::make_unique<DeviceStream>(name, checker, device,
                                        guard.getStreamFromGlobalPool(device));
}

std::unique_ptr<Stream> make_current_stream(const std::string& name, const c10::Device& device,
                                            StreamChecker* checker) {
  if (device.is_cpu()) return make_host_stream(name, checker);
  return std::make_unique<DeviceStream>(name, checker, device, std::nullopt);
}

void set_compute_threads(int threads) {
  require_compute_threads(2 * (threads - 1));  // LibTorch's pool and OpenMP
  at::set_num_threads(threads);
  start_compute_threads();
}

void start_compute_threads() {
  const int threads = at::get_num_threads();
  require_compute_threads(threads);
  at::parallel_for(0, threads, 1, [](int64_t, int64_t) {});
}

}  // namespace saturate
