// A server whose replies a test holds back, for tests of what is fetched in which order.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <vector>

#include "store/object_store.h"
#include "tests/store_testing.h"

namespace saturate::testing {

class AheadTest : public ::testing::Test {
 protected:
  AheadTest() { server.put("/a", text); }
  ~AheadTest() override { release = true; }

  // Replies to requests for the range at `offset` wait for `release`.
  void hold(uint64_t offset) {
    server.tamper([this, offset](const HttpAsk& ask, HttpAnswer&) {
      if (ask.first == offset) wait_for([this] { return release.load(); });
    });
  }
  std::string read_range(ObjectStore& store, const ObjectStore::ObjectPtr& object, uint64_t offset,
                         size_t length) {
    std::vector<std::byte> out(length);
    store.read(object, offset, out);
    return to_text(out);
  }
  // The requests after those that opened objects, by their first bytes.
  std::vector<uint64_t> order() const {
    std::vector<uint64_t> firsts;
    for (const HttpAsk& ask : server.asks())
      if (ask.first > 0) firsts.push_back(ask.first);
    return firsts;
  }
  bool asked(size_t count) {
    return wait_for([&] { return order().size() >= count; });
  }

  const std::string text = noise_text(200'000);
  std::atomic<bool> release{false};
  StoreServer server;
};

}  // namespace saturate::testing
