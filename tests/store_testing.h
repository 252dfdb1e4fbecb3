// An HTTP server for tests of stores: it serves texts by ranges, notes every request, and answers
// as badly as a test asks.
#pragma once

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "saturate/data/loader.h"
#include "store/cache_names.h"
#include "store/store_tuning.h"
#include "tests/data_testing.h"
#include "tests/port_testing.h"

namespace saturate::testing {

// The server is reached directly, whatever proxy the machine has.
inline const int kNoProxy = setenv("no_proxy", "127.0.0.1", 1);

struct HttpAsk {
  std::string path;              // without the query
  std::string head;              // the whole request
  uint64_t first = 0, last = 0;  // of the range
  size_t number = 0;             // of the request, from 0
  std::string body = {};
  uint64_t length() const { return last + 1 - first; }
};

struct HttpAnswer {
  int status = 206;
  std::map<std::string, std::string> headers;
  std::string body;
  std::optional<size_t> claimed = {};  // Content-Length, if not the body's
  bool reset = false;                  // the connection is reset instead
  bool endless = false;                // the body is repeated until the client leaves
  std::chrono::milliseconds pause{0};  // between the headers and the body
};

class StoreServer {
 public:
  // Changes an answer, on a thread of the server.
  using Tamper = std::function<void(const HttpAsk&, HttpAnswer&)>;

  explicit StoreServer(int port = 0) {
    sockaddr_in address = address_of(loopback(), port);
    socklen_t length = sizeof address;
    const int yes = 1;
    setsockopt(socket_, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    EXPECT_EQ(bind(socket_, reinterpret_cast<sockaddr*>(&address), length), 0);
    EXPECT_EQ(listen(socket_, 256), 0);
    getsockname(socket_, reinterpret_cast<sockaddr*>(&address), &length);
    port_ = ntohs(address.sin_port);
    acceptor_ = std::thread([this] { accept_all(); });
  }
  ~StoreServer() {
    {
      const std::lock_guard lock(mutex_);
      ending_ = true;
      for (const int connection : open_) ::shutdown(connection, SHUT_RDWR);
    }
    ::shutdown(socket_, SHUT_RDWR);
    acceptor_.join();
    for (std::thread& thread : threads_) thread.join();
    ::close(socket_);
  }

  std::string host() const { return "127.0.0.1:" + std::to_string(port_); }
  std::string url(const std::string& path) const { return "http://" + host() + path; }

  void put(const std::string& path, std::string text, const std::string& etag = "\"1\"") {
    const std::lock_guard lock(mutex_);
    objects_[path] = {std::move(text), etag};
  }
  void tamper(Tamper how) {
    const std::lock_guard lock(mutex_);
    tamper_ = std::move(how);
  }
  std::vector<HttpAsk> asks() const {
    const std::lock_guard lock(mutex_);
    return asks_;
  }
  // Bytes that requests for this path asked for.
  std::set<uint64_t> bytes_asked(const std::string& path) const {
    std::set<uint64_t> bytes;
    for (const HttpAsk& ask : asks())
      for (uint64_t i = ask.first; ask.path == path && i <= ask.last; ++i) bytes.insert(i);
    return bytes;
  }

 private:
  struct Stored {
    std::string text, etag;
  };

  void accept_all() {
    while (true) {
      const int connection = ::accept(socket_, nullptr, nullptr);
      const std::lock_guard lock(mutex_);
      if (connection < 0 || ending_) {
        if (connection >= 0) ::close(connection);
        return;
      }
      open_.insert(connection);
      threads_.emplace_back([this, connection] { serve(connection); });
    }
  }

  void serve(int connection) {
    std::string received;
    while (serve_one(connection, received)) {
    }
    const std::lock_guard lock(mutex_);
    open_.erase(connection);
    ::close(connection);
  }

  bool serve_one(int connection, std::string& received) {
    size_t end;
    while ((end = received.find("\r\n\r\n")) == std::string::npos) {
      char buffer[4096];
      const ssize_t got = ::recv(connection, buffer, sizeof buffer, 0);
      if (got <= 0) return false;
      received.append(buffer, size_t(got));
    }
    const std::string head = received.substr(0, end);
    received.erase(0, end + 4);
    size_t length = 0;
    if (const size_t at = head.find("Content-Length: "); at != std::string::npos)
      length = std::stoul(head.substr(at + 16));
    while (received.size() < length) {
      char buffer[65536];
      const ssize_t got = ::recv(connection, buffer, sizeof buffer, 0);
      if (got <= 0) return false;
      received.append(buffer, size_t(got));
    }
    HttpAsk ask = note(head, received.substr(0, length));
    received.erase(0, length);
    HttpAnswer answer = good_answer(ask);
    Tamper how;
    {
      const std::lock_guard lock(mutex_);
      how = tamper_;
    }
    if (how) how(ask, answer);
    if (answer.reset) {
      const linger hard{1, 0};
      setsockopt(connection, SOL_SOCKET, SO_LINGER, &hard, sizeof hard);
      return false;
    }
    std::string text = "HTTP/1.1 " + std::to_string(answer.status) + " X\r\n";
    for (const auto& [name, value] : answer.headers) text += name + ": " + value + "\r\n";
    if (!answer.endless)
      text +=
          "Content-Length: " + std::to_string(answer.claimed.value_or(answer.body.size())) + "\r\n";
    text += "\r\n";
    if (answer.pause.count() > 0) {
      if (!send_all(connection, std::exchange(text, ""))) return false;
      std::this_thread::sleep_for(answer.pause);
    }
    text += answer.body;
    if (!send_all(connection, text)) return false;
    while (answer.endless && send_all(connection, answer.body)) {
    }
    return !answer.claimed && !answer.endless;
  }

  static bool send_all(int connection, const std::string& text) {
    for (size_t sent = 0; sent < text.size();) {
      const ssize_t now = ::send(connection, text.data() + sent, text.size() - sent, MSG_NOSIGNAL);
      if (now <= 0) return false;
      sent += size_t(now);
    }
    return true;
  }

  HttpAsk note(const std::string& head, std::string body) {
    HttpAsk ask;
    ask.head = head;
    ask.body = std::move(body);
    const size_t begin = head.find(' ') + 1;
    ask.path = head.substr(begin, head.find_first_of(" ?", begin) - begin);
    if (const size_t range = head.find("Range: bytes="); range != std::string::npos)
      std::sscanf(head.c_str() + range, "Range: bytes=%lu-%lu", &ask.first, &ask.last);
    const std::lock_guard lock(mutex_);
    ask.number = asks_.size();
    asks_.push_back(ask);
    return ask;
  }

  HttpAnswer good_answer(const HttpAsk& ask) {
    const std::lock_guard lock(mutex_);
    const auto found = objects_.find(ask.path);
    if (found == objects_.end()) return {404, {}, "<Error><Code>NoSuchKey</Code></Error>"};
    const auto& [text, etag] = found->second;
    if (ask.first >= text.size())
      return {416, {{"Content-Range", "bytes */" + std::to_string(text.size())}}, ""};
    const uint64_t last = std::min<uint64_t>(ask.last, text.size() - 1);
    return {206,
            {{"ETag", etag}, {"Content-Range", content_range(ask.first, last, text.size())}},
            text.substr(ask.first, last + 1 - ask.first)};
  }

 public:
  static std::string content_range(uint64_t first, uint64_t last, uint64_t total) {
    return "bytes " + std::to_string(first) + "-" + std::to_string(last) + "/" +
           std::to_string(total);
  }

 private:
  const int socket_ = ::socket(AF_INET, SOCK_STREAM, 0);
  int port_ = 0;
  mutable std::mutex mutex_;
  bool ending_ = false;
  std::map<std::string, Stored> objects_;
  std::vector<HttpAsk> asks_;
  std::set<int> open_;
  Tamper tamper_;
  std::vector<std::thread> threads_;
  std::thread acceptor_;
};

// `size` bytes that differ from their neighbours.
inline std::string noise_text(size_t size, uint64_t seed = 1) {
  RandomStream random(seed, 0, 0, RandomUse::kSynthetic);
  std::string text(size, '\0');
  for (char& c : text) c = char(random.next_u32());
  return text;
}

inline StoreTuning quick_tuning() {
  StoreTuning tuning;
  tuning.first_backoff_s = 0.001;
  tuning.most_backoff_s = 0.02;
  tuning.adapts = false;
  return tuning;
}

// The budget of a cache in which so many ranges of this length fit, of so many objects; GB.
inline double cache_gb(size_t ranges, uint64_t length, size_t objects = 1) {
  const uint64_t bytes = ranges * room_of_entry(length) + (objects + 1) * kCacheBlock;
  return double(bytes + bytes / 63 + 2) * 1e-9;  // a 64th is not used for ranges
}

// Waits until a condition holds, which another thread will make true; a test that waits a minute
// fails.
inline bool wait_for(const std::function<bool()>& holds) {
  for (int i = 0; i < 60'000 && !holds(); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return holds();
}

// The samples and pixels of two epochs, of uint8.
inline std::string epochs_of(const Dataset& data, const LoaderOptions& options,
                             const AugmentOptions& augment) {
  Loader loader(data, options, augment);
  const size_t bytes = size_t(augment.size.height) * size_t(augment.size.width) * 3;
  std::string all;
  for (uint32_t epoch = 0; epoch < 2; ++epoch) {
    loader.start_epoch(epoch);
    for (Batch batch; loader.next(batch);) {
      for (const BatchSample& sample : batch.samples)
        all += std::to_string(sample.index) + ":" + std::to_string(sample.label) + " ";
      all += to_text({batch.pixels.get(), batch.count() * bytes});
    }
  }
  return all;
}

// Abandons `count` epochs; then expects that sample `index`, of the object `path`, is still fetched
// ahead, as it would not be if what was announced for them had kept the budget.
inline void expect_withdrawn(const Dataset& data, const LoaderOptions& options,
                             const AugmentOptions& augment, int count, const StoreServer& server,
                             const std::string& path, size_t index) {
  for (int i = 0; i < count; ++i) {
    Loader loader(data, options, augment);
    loader.start_epoch(uint32_t(i));
    Batch batch;
    if (i % 2) loader.next(batch);
    loader.start_epoch(uint32_t(i) + 50, 3);
    if (i % 3) loader.next(batch);
  }
  const size_t before = server.asks().size();
  data.advise(ReadAdvice::kSoon, index, 1);
  EXPECT_TRUE(wait_for([&] {
    const auto asks = server.asks();
    return std::any_of(asks.begin() + ptrdiff_t(before), asks.end(), [&](const HttpAsk& ask) {
      return ask.path == path && ask.length() == data.bytes(index);
    });
  }));
}

// Sets an environment variable while it exists; null removes it.
class ScopedVariable {
 public:
  ScopedVariable(const char* name, const char* value) : name_(name) {
    if (const char* before = std::getenv(name)) before_ = before;
    set(value);
  }
  ~ScopedVariable() { set(before_ ? before_->c_str() : nullptr); }
  ScopedVariable(const ScopedVariable&) = delete;
  ScopedVariable& operator=(const ScopedVariable&) = delete;

 private:
  void set(const char* value) const { value ? setenv(name_, value, 1) : unsetenv(name_); }
  const char* const name_;
  std::optional<std::string> before_;
};

}  // namespace saturate::testing
