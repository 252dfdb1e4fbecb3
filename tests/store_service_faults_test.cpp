// Requests that wait for credentials while their service fails or does not answer; and the signals
// of a service that is a command.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "store/credential_exchange.h"
#include "store/object_store.h"
#include "tests/bucket_testing.h"

namespace saturate {
namespace {

using testing::env;
using testing::error_of;
using testing::HttpAnswer;
using testing::HttpAsk;
using testing::noise_text;
using testing::quick_tuning;
using testing::ScopedVariable;
using testing::StoreServer;
using testing::TempDir;
using testing::wait_for;

constexpr const char* kExpired = "<Error><Code>ExpiredToken</Code></Error>";

class StoreServiceFaults : public ::testing::Test {
 protected:
  StoreServiceFaults() {
    objects.put("/bucket/a", text);
    service.tamper([this](const HttpAsk&, HttpAnswer& answer) {
      wait_for([&] { return !hangs; });
      answer = {fails ? refusal.load() : 200,
                {},
                R"({"AccessKeyId": "KEY", "SecretAccessKey": "SECRETSECRET", "Token": "TOKEN)" +
                    std::to_string(++exchanges) + "\"}"};
    });
  }
  ~StoreServiceFaults() override { hangs = false; }

  std::string read(ObjectStore& store, const ObjectStore::ObjectPtr& object, uint64_t at) {
    std::vector<std::byte> out(100);
    store.read(object, at, out);
    return testing::to_text(out);
  }

  TempDir home;
  const std::string text = noise_text(100'000);
  std::atomic<bool> hangs{false}, fails{false};
  std::atomic<int> refusal{403};
  std::atomic<int> exchanges{0};
  StoreServer service, objects;  // their threads use the above
  const testing::BucketVariables variables{home.path(), objects.url("")};
  const ScopedVariable others[6] = {
      {"AWS_ACCESS_KEY_ID", nullptr},
      {"AWS_SECRET_ACCESS_KEY", nullptr},
      {"AWS_WEB_IDENTITY_TOKEN_FILE", nullptr},
      {"AWS_CONTAINER_CREDENTIALS_FULL_URI", service.url("/keys").c_str()},
      {"AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", nullptr},
      {"AWS_EC2_METADATA_DISABLED", "true"}};
};

// One of a range's two requests is refused, and waits for new credentials when the other succeeds.
TEST_F(StoreServiceFaults, ARangeThatHasComeIsNotAskedForAgain) {
  ObjectStore store(env(), {}, quick_tuning());
  const auto object = store.open("s3://bucket/a");
  for (uint64_t at = 1'000; at < 5'000; at += 100) read(store, object, at);  // how long they take
  std::atomic<int> asks{0};
  objects.tamper([&](const HttpAsk& ask, HttpAnswer& answer) {
    if (ask.first != 50'000) return;
    if (++asks == 1) {
      wait_for([&] { return asks == 2; });
      hangs = true;
      answer = {400, {}, kExpired};
    } else if (asks == 2) {
      wait_for([&] { return hangs && service.asks().size() == 2; });
      std::this_thread::sleep_for(std::chrono::milliseconds(50));  // the refusal has come
    }
  });
  EXPECT_EQ(read(store, object, 50'000), text.substr(50'000, 100));
  hangs = false;
  ASSERT_TRUE(wait_for([&] { return exchanges == 2; }));
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  EXPECT_EQ(read(store, object, 60'000), text.substr(60'000, 100));
  EXPECT_EQ(asks, 2);
}

// Each would otherwise begin an exchange of its own, one after the other.
TEST_F(StoreServiceFaults, AllThatWaitFailWithOneExchange) {
  fails = hangs = true;
  ObjectStore store(env(), {}, quick_tuning());
  constexpr int kWaiting = 6;
  std::atomic<int> failed{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < kWaiting; ++i)
    threads.emplace_back([&] {
      const Error error = error_of([&] { store.open("s3://bucket/a"); });
      EXPECT_NE(error.reason().find("gave no credentials"), std::string::npos) << error.what();
      ++failed;
    });
  EXPECT_TRUE(wait_for([&] { return service.asks().size() == 1; }));
  std::this_thread::sleep_for(std::chrono::milliseconds(100));  // all wait
  hangs = false;
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failed, kWaiting);
  EXPECT_EQ(service.asks().size(), 1u);
  fails = false;
  EXPECT_TRUE(wait_for([&] {  // the failure is not kept for long
    try {
      return store.open("s3://bucket/a")->is_open;
    } catch (const Error&) {
      return false;
    }
  }));
}

// For longer than one exchange may take.
TEST_F(StoreServiceFaults, AServiceThatIsAwayIsWaitedFor) {
  fails = true;
  refusal = 503;
  std::thread returning([&] {
    std::this_thread::sleep_for(std::chrono::seconds(6));
    fails = false;
  });
  EXPECT_NO_THROW({
    ObjectStore store(env(), {}, quick_tuning());
    EXPECT_EQ(store.open("s3://bucket/a")->size, text.size());
  });
  returning.join();
}

// During a run a refusal may pass too: a token was renewed late.
TEST_F(StoreServiceFaults, AServiceThatHasGivenKeysIsAskedAgainAfterARefusal) {
  StoreOptions options;
  options.timeout_s = 1;
  ObjectStore impatient(env(), options, quick_tuning()), store(env(), {}, quick_tuning());
  const auto object = impatient.open("s3://bucket/a"), same = store.open("s3://bucket/a");
  HttpCall call;
  call.name = "the list";
  call.is_signed = true;
  call.request.url = objects.url("/bucket/");
  objects.tamper([](const HttpAsk& ask, HttpAnswer& answer) {
    if (std::stoi(ask.head.substr(ask.head.find(": TOKEN") + 7)) <= 2) answer = {400, {}, kExpired};
  });
  fails = true;
  const std::string refused =
      "; the container's role: the service gave no credentials: it answered 403";
  const Error error = error_of([&] { read(impatient, object, 50'000); });
  EXPECT_NE(error.reason().find("within data.timeout_s = 1 s" + refused), std::string::npos)
      << error.what();
  EXPECT_NE(error.remedy().find("Check the role"), std::string::npos) << error.what();
  const Error other = error_of([&] { impatient.calls().call(call); });
  EXPECT_NE(other.reason().find("in time" + refused), std::string::npos) << other.what();
  const size_t before = service.asks().size();
  std::thread returning([&] {
    wait_for([&] { return service.asks().size() >= before + 3; });
    fails = false;
  });
  EXPECT_NO_THROW(EXPECT_EQ(read(store, same, 50'000), text.substr(50'000, 100)));
  returning.join();
}

// Only if the store does not know the keys: other denials would come again.
TEST_F(StoreServiceFaults, KeysThatTheStoreDoesNotKnowAreExchanged) {
  ObjectStore store(env(), {}, quick_tuning());
  const auto object = store.open("s3://bucket/a");
  const auto deny = [&](const std::string& code) {
    objects.tamper([code](const HttpAsk& ask, HttpAnswer& answer) {
      if (ask.head.find("TOKEN1") != std::string::npos)
        answer = {403, {}, "<Error><Code>" + code + "</Code></Error>"};
    });
  };
  deny("AccessDenied");
  EXPECT_NE(error_of([&] { read(store, object, 50'000); }).reason().find("access is denied"),
            std::string::npos);
  EXPECT_EQ(service.asks().size(), 1u);
  deny("InvalidTokenId");
  EXPECT_EQ(read(store, object, 50'000), text.substr(50'000, 100));
  EXPECT_EQ(service.asks().size(), 2u);
}

TEST_F(StoreServiceFaults, AServiceThatDoesNotAnswerIsWaitedForUntilTheTimeLimit) {
  hangs = true;
  StoreOptions options;
  options.timeout_s = 0.2;
  ObjectStore store(env(), options, quick_tuning());
  const Error error = error_of([&] { store.open("s3://bucket/a"); });
  EXPECT_NE(error.reason().find("no credentials came within data.timeout_s"), std::string::npos)
      << error.what();
  EXPECT_EQ(error.remedy(), kNoCredentialsRemedy);
}

TEST_F(StoreServiceFaults, AListWaitsForKeysUntilItsTimeLimit) {
  hangs = true;
  StoreOptions options;
  options.timeout_s = 0.2;
  ObjectStore store(env(), options, quick_tuning());
  HttpCall call;
  call.name = "the list";
  call.is_signed = true;
  call.request.url = objects.url("/bucket/");
  const Error error = error_of([&] { store.calls().call(call); });
  EXPECT_NE(error.reason().find("no credentials came in time"), std::string::npos) << error.what();
  EXPECT_EQ(error.where(), "the list");
}

// A container on EC2 may not reach the service of its machine.
TEST_F(StoreServiceFaults, AMachineWhoseServiceMayBeAwayHasNoKeysIfItIs) {
  fails = true;
  HttpCalls calls(env(), {}, quick_tuning(), nullptr);
  CredentialService machine;
  machine.kind = CredentialService::Kind::kMachine;
  machine.url = service.url("");
  machine.origin = "the machine's role";
  EXPECT_NE(error_of([&] { ask_service(env(), calls, machine); }).remedy().find("hop limit"),
            std::string::npos)
      << "a setting names it";
  machine.may_be_away = true;
  ::testing::internal::CaptureStderr();
  EXPECT_FALSE(ask_service(env(), calls, machine));
  const std::string printed = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(printed.find("hop limit"), std::string::npos) << printed;
}

class StoreCommandFaults : public StoreServiceFaults {
 protected:
  // The profile's command. `script` begins it, with the number of its run as N.
  void write_command(const std::string& script) {
    testing::write_file(home / "own.sh",
                        "echo >> '" + runs + "'; N=$(wc -l < '" + runs + "')\n" + script + R"(
echo '{"Version": 1, "AccessKeyId": "OWN", "SecretAccessKey": "SECRETSECRET"}')");
    testing::write_file(home / ".aws/config",
                        "[default]\ncredential_process = sh '" + (home / "own.sh") + "'\n");
  }

  const std::string runs = home / "runs";
};

TEST_F(StoreCommandFaults, ACommandThatIsKilledIsRunAgain) {
  write_command("if [ $N -lt 3 ]; then kill -9 $$; fi");
  ObjectStore store(env(), {}, quick_tuning());
  EXPECT_NO_THROW(EXPECT_EQ(store.open("s3://bucket/a")->size, text.size()));
  EXPECT_EQ(testing::read_text(runs), "\n\n\n");
}

TEST_F(StoreCommandFaults, ACommandThatIsKilledUntilTheTimeLimitIsInTheError) {
  write_command("echo OTHERSECRET >&2; kill -9 $$");
  StoreOptions options;
  options.timeout_s = 1;
  ObjectStore store(env(), options, quick_tuning());
  const Error error = error_of([&] { store.open("s3://bucket/a"); });
  EXPECT_NE(error.reason().find("within data.timeout_s = 1 s; credential_process of profile"),
            std::string::npos)
      << error.what();
  EXPECT_NE(error.reason().find("is ended by signal 9"), std::string::npos) << error.what();
  EXPECT_EQ(std::string(error.what()).find("SECRET"), std::string::npos) << error.what();
}

TEST_F(StoreCommandFaults, ACommandThatDoesNotExistIsAnErrorAtOnce) {
  testing::write_file(home / ".aws/config", "[default]\ncredential_process = /nowhere/keys\n");
  ObjectStore store(env(), {}, quick_tuning());
  const Error error = error_of([&] { store.open("s3://bucket/a"); });
  EXPECT_EQ(error.reason(), "ends with code 127");
  EXPECT_TRUE(error.where().starts_with("credential_process of profile")) << error.what();
}

TEST(StoreMachine, IsAskedByIPv6IfASettingSaysSo) {
  const ScopedVariable variables[] = {{"AWS_CONTAINER_CREDENTIALS_FULL_URI", nullptr},
                                      {"AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", nullptr},
                                      {"AWS_EC2_METADATA_DISABLED", nullptr},
                                      {"AWS_EC2_METADATA_SERVICE_ENDPOINT", nullptr},
                                      {"AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE", nullptr}};
  EXPECT_EQ(find_metadata_service(true).value().url, "http://169.254.169.254");
  const ScopedVariable mode("AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE", "IPv6");
  EXPECT_EQ(find_metadata_service(true).value().url, "http://[fd00:ec2::254]");
  EXPECT_FALSE(find_metadata_service(false));
}

TEST(StoreMachine, IsNotAskedIfASettingSaysSo) {
  const ScopedVariable variables[] = {{"AWS_CONTAINER_CREDENTIALS_FULL_URI", nullptr},
                                      {"AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", nullptr},
                                      {"AWS_EC2_METADATA_SERVICE_ENDPOINT", "http://127.0.0.1:1"}};
  for (const char* value : {"true", "True", "TRUE"}) {
    const ScopedVariable disabled("AWS_EC2_METADATA_DISABLED", value);
    EXPECT_FALSE(find_metadata_service()) << value;
  }
  const ScopedVariable enabled("AWS_EC2_METADATA_DISABLED", "false");
  EXPECT_TRUE(find_metadata_service());
}

// The thread of a store's transfers, and those that it starts, block all.
TEST(StoreProcess, ACommandBlocksNoSignals) {
  CredentialService service;
  service.kind = CredentialService::Kind::kProcess;
  service.command =
      "grep -Eq '^SigBlk:[[:space:]]*0+$' /proc/self/status && echo "
      R"('{"Version": 1, "AccessKeyId": "OWN", "SecretAccessKey": "SECRETSECRET"}')";
  std::thread([&] {
    sigset_t all;
    sigfillset(&all);
    EXPECT_EQ(pthread_sigmask(SIG_BLOCK, &all, nullptr), 0);
    EXPECT_NO_THROW(EXPECT_EQ(run_credential_process(service).key, "OWN"));
  }).join();
}

TEST(StoreMachine, IsOneOfEc2ByItsMakerOrFirmware) {
  TempDir dmi;
  EXPECT_FALSE(is_machine_of_ec2(dmi.path()));
  testing::write_file(dmi / "sys_vendor", "Xen\n");
  testing::write_file(dmi / "bios_version", "4.11\n");
  EXPECT_FALSE(is_machine_of_ec2(dmi.path()));
  testing::write_file(dmi / "bios_version", "4.11.amazon\n");
  EXPECT_TRUE(is_machine_of_ec2(dmi.path()));
  // As in /sys, the size of this file is not that of its contents.
  std::filesystem::remove(dmi / "bios_version");
  std::filesystem::remove(dmi / "sys_vendor");
  std::filesystem::create_symlink("/proc/thread-self/comm", dmi / "sys_vendor");
  char before[16] = {};
  ASSERT_EQ(::prctl(PR_GET_NAME, before), 0);
  ASSERT_EQ(::prctl(PR_SET_NAME, "Amazon EC2"), 0);
  EXPECT_TRUE(is_machine_of_ec2(dmi.path()));
  ASSERT_EQ(::prctl(PR_SET_NAME, before), 0);
}

}  // namespace
}  // namespace saturate
