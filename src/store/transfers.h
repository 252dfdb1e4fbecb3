// HTTP transfers of one process: many at a time on one thread, over connections that are kept, by
// libcurl's multi interface.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "saturate/data/env.h"
#include "store/credentials.h"

namespace saturate {

struct HttpRequest {
  std::string url;
  std::string method = "GET";
  std::shared_ptr<const std::vector<std::byte>> body;  // null: none; unchanged during the transfer
  std::string body_hash;  // SHA-256 in hexadecimal digits, for the signature; "": computed
  std::vector<std::string> headers;   // "Name: value"
  std::optional<Credentials> signer;  // signs with AWS Signature Version 4
  std::string region;                 // for the signature
  std::string authorities;            // file of certificate authorities; "": the transfers' own
  size_t most = 0;                    // bytes of the body; the transfer of a longer one is ended
  double timeout_s = 0;               // of the whole transfer; 0: none
  int stall_s = 0;                    // instead of the transfers' own; 0: that
  bool direct = false;                // never by a proxy
};

struct HttpReply {
  int status = 0;                              // 0: none came
  std::string error;                           // empty if the reply is complete
  bool too_long = false;                       // the body was longer than asked for
  bool stalled = false;                        // stall_s has passed
  std::string remedy;                          // of an error that comes again; else ""
  std::map<std::string, std::string> headers;  // by name in lower case
  std::vector<std::byte> body;
  double seconds = 0, first_byte_s = 0;  // from the start until the end and the first byte
  std::string redirect;                  // where to, as a whole URL; "" if nowhere
  std::string signed_by;  // Credentials::origin of the request's signer, if the caller notes it
  std::string region;     // the request's

  std::string header(const std::string& name) const {
    const auto found = headers.find(name);
    return found == headers.end() ? "" : found->second;
  }
  // Whether it has a range of an object. Some stores, such as `rclone serve s3`, answer 200 then.
  bool is_range() const {
    return status == 206 || (status == 200 && !header("content-range").empty());
  }
};

// HttpRequest::stall_s after so many attempts that have stalled: a server may take long until its
// first byte.
inline int stall_after(int first_s, int stalls) {
  return first_s << std::min(stalls, 4);
}

class Transfers {
 public:
  using Done = std::function<void(HttpReply&&)>;

  // A transfer that moves less than 1 KB/s for `stall_s` seconds fails. Fails with kUsage if there
  // is no libcurl, or saturate was built without.
  Transfers(Env& env, int stall_s);
  // Ends all transfers; nothing is called any more.
  ~Transfers();
  Transfers(const Transfers&) = delete;
  Transfers& operator=(const Transfers&) = delete;

  // Runs a function on the transfers' thread; from any thread. It must not throw.
  void post(std::function<void()> function);

  // On the transfers' thread only:
  // Begins a transfer. `done` is called later, unless it is cancelled. Returns its number.
  uint64_t start(const HttpRequest& request, Done done);
  void cancel(uint64_t number);
  void after(double seconds, std::function<void()> function);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace saturate
