// Credentials of services: web identities, containers and machines.
#include <gtest/gtest.h>
#include <signal.h>

#include <atomic>
#include <chrono>
#include <ctime>
#include <filesystem>
#include <memory>
#include <thread>

#include "base/cancel.h"
#include "base/wall_clock.h"
#include "store/credential_exchange.h"
#include "store/object_store.h"
#include "tests/bucket_testing.h"
#include "tests/fault_env.h"

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

constexpr int64_t kSecond = 1'000'000'000;  // ns

// The time of day stands still, until a test sets it.
class SetTime : public FaultEnv, public WallClock {
 public:
  SetTime() : FaultEnv(env()) {}
  int64_t unix_ns() override {
    looks += std::this_thread::get_id() != own_;
    return now_s * kSecond;
  }
  std::atomic<int64_t> now_s{time(nullptr)};
  std::atomic<int> looks{0};  // of other threads

 private:
  const std::thread::id own_ = std::this_thread::get_id();
};

std::string utc_text(time_t when) {
  tm parts{};
  gmtime_r(&when, &parts);
  char text[40];
  strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

class StoreRoles : public ::testing::Test {
 protected:
  StoreRoles() {
    objects.put("/bucket/a", text);
    testing::write_file(token_file, "web-token/+=\n");
    services.tamper([this](const HttpAsk& ask, HttpAnswer& answer) { serve(ask, answer); });
  }

  // All services hand out ROLE1, ROLE2 and so on.
  void serve(const HttpAsk& ask, HttpAnswer& answer) {
    answer = {200, {}, ""};
    if (fails) {
      answer = {400,
                {},
                "<ErrorResponse><Error><Code>InvalidIdentityToken</Code></Error></ErrorResponse>"};
      return;
    }
    if (ask.path.ends_with("/token")) {
      answer.body = "imds-token";
      return;
    }
    if (ask.path.ends_with("/security-credentials/")) {
      answer.body = "the-role";
      return;
    }
    const std::string name = "ROLE" + std::to_string(++count),
                      until = utc_text(clock.now_s + (count == 1 ? first_lasts_s : lasts_s));
    if (!ask.body.empty())
      answer.body =
          "<AssumeRoleWithWebIdentityResponse><AssumeRoleWithWebIdentityResult><Credentials>"
          "<AccessKeyId>" +
          name +
          "</AccessKeyId><SecretAccessKey>SECRETSECRET</SecretAccessKey>"
          "<SessionToken>TOKEN-" +
          name + "</SessionToken><Expiration>" + until +
          "</Expiration></Credentials></AssumeRoleWithWebIdentityResult>"
          "</AssumeRoleWithWebIdentityResponse>";
    else
      answer.body = "{\"Code\": \"Success\", \"AccessKeyId\": \"" + name +
                    "\", \"SecretAccessKey\": \"SECRETSECRET\", \"Token\": \"TOKEN-" + name +
                    "\", \"Expiration\": \"" + until + "\"}";
  }
  // Reads a range, and returns the key that its request was signed with; "" if it was not.
  std::string key_of_read(ObjectStore& store, const ObjectStore::ObjectPtr& object, uint64_t at) {
    std::vector<std::byte> out(100);
    store.read(object, at, out);
    EXPECT_EQ(testing::to_text(out), text.substr(at, 100));
    const std::string head = objects.asks().back().head;
    const size_t begin = head.find("Credential=");
    return begin == std::string::npos ? ""
                                      : head.substr(begin + 11, head.find('/', begin) - begin - 11);
  }
  std::string key_of_first_read() {
    ObjectStore store(clock, {}, quick_tuning());
    return key_of_read(store, store.open("s3://bucket/a"), 50'000);
  }

  TempDir home;
  const std::string token_file = home / "token";
  const std::string text = noise_text(100'000);
  SetTime clock;
  std::atomic<int> count{0}, first_lasts_s{3'600}, lasts_s{3'600};
  std::atomic<bool> fails{false};
  StoreServer services, objects;  // their threads use the above
  const testing::BucketVariables variables{home.path(), objects.url("")};
  const ScopedVariable others[7] = {{"AWS_ACCESS_KEY_ID", nullptr},
                                    {"AWS_SECRET_ACCESS_KEY", nullptr},
                                    {"AWS_ENDPOINT_URL_STS", services.url("/sts").c_str()},
                                    {"AWS_ROLE_ARN", nullptr},
                                    {"AWS_CONTAINER_CREDENTIALS_FULL_URI", nullptr},
                                    {"AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", nullptr},
                                    {"AWS_EC2_METADATA_DISABLED", "true"}};
};

class StoreWebIdentity : public StoreRoles {
 protected:
  const ScopedVariable token{"AWS_WEB_IDENTITY_TOKEN_FILE", token_file.c_str()};
  const ScopedVariable role{"AWS_ROLE_ARN", "arn:aws:iam::1:role/r"};
};

TEST_F(StoreWebIdentity, AssumesTheRoleOnce) {
  ObjectStore store(clock, {}, quick_tuning());
  const auto object = store.open("s3://bucket/a");
  for (uint64_t at = 10'000; at < 15'000; at += 1'000)
    EXPECT_EQ(key_of_read(store, object, at), "ROLE1");
  ASSERT_EQ(services.asks().size(), 1u);
  EXPECT_EQ(services.asks()[0].body,
            "Action=AssumeRoleWithWebIdentity&Version=2011-06-15&RoleArn=arn%3Aaws%3Aiam%3A%3A1%3A"
            "role%2Fr&RoleSessionName=saturate&WebIdentityToken=web-token%2F%2B%3D");
  EXPECT_EQ(services.asks()[0].head.find("Authorization"), std::string::npos);
  EXPECT_NE(objects.asks()[0].head.find("TOKEN-ROLE1"), std::string::npos);
}

TEST_F(StoreWebIdentity, KeysOfTheEnvironmentComeFirst) {
  const ScopedVariable key("AWS_ACCESS_KEY_ID", "OWN"), secret("AWS_SECRET_ACCESS_KEY", "s");
  EXPECT_EQ(key_of_first_read(), "OWN");
  EXPECT_EQ(services.asks().size(), 0u);
}

// Five minutes before they expire; until the others are there the old ones are used.
TEST_F(StoreWebIdentity, AreRenewedBeforeTheyExpire) {
  ObjectStore store(clock, {}, quick_tuning());
  const auto object = store.open("s3://bucket/a");
  EXPECT_EQ(key_of_read(store, object, 10'000), "ROLE1");
  EXPECT_EQ(services.asks().size(), 1u);
  clock.now_s += 3'600 - 200;
  std::string key;
  EXPECT_TRUE(testing::wait_for([&] {
    key = key_of_read(store, object, 20'000);
    return key != "ROLE1";
  }));
  EXPECT_EQ(key, "ROLE2");
  EXPECT_EQ(key_of_read(store, object, 30'000), "ROLE2");
  EXPECT_EQ(services.asks().size(), 2u);
}

// As the metadata of a machine do until shortly before they expire.
TEST_F(StoreWebIdentity, TheOldOnesAgainAreNotAskedForWithEachRequest) {
  first_lasts_s = lasts_s = 200;
  ObjectStore store(clock, {}, quick_tuning());
  const auto object = store.open("s3://bucket/a");
  for (uint64_t at = 10'000; at < 40'000; at += 1'000) key_of_read(store, object, at);
  EXPECT_EQ(services.asks().size(), 1u);
  clock.now_s += 31;
  EXPECT_TRUE(testing::wait_for([&] { return key_of_read(store, object, 50'000) == "ROLE2"; }));
  EXPECT_EQ(services.asks().size(), 2u);
}

TEST_F(StoreWebIdentity, AFailedRenewalIsTriedAgainAfterTheyHaveExpired) {
  CredentialSource source(clock, {}, quick_tuning());
  EXPECT_EQ(source.get("test")->key, "ROLE1");
  const int looks = clock.looks;
  fails = true;
  clock.now_s += 3'600 - 200;
  EXPECT_EQ(source.look().credentials->key, "ROLE1");
  ASSERT_TRUE(testing::wait_for([&] { return clock.looks > looks; })) << "when it has failed";
  fails = false;
  clock.now_s += 600;
  EXPECT_EQ(source.get("test")->key, "ROLE2");
}

TEST_F(StoreWebIdentity, AreReplacedWhenTheStoreSaysThatTheyHaveExpired) {
  ObjectStore store(clock, {}, quick_tuning());
  const auto object = store.open("s3://bucket/a");
  objects.tamper([](const HttpAsk& ask, HttpAnswer& answer) {
    if (ask.head.find("TOKEN-ROLE1") != std::string::npos)
      answer = {400, {}, "<Error><Code>ExpiredToken</Code></Error>"};
  });
  EXPECT_EQ(key_of_read(store, object, 20'000), "ROLE2");
  // All of them have: an error, and no endless exchange.
  objects.tamper([](const HttpAsk&, HttpAnswer& answer) {
    answer = {400, {}, "<Error><Code>ExpiredToken</Code></Error>"};
  });
  const Error error = error_of([&] { key_of_read(store, object, 30'000); });
  EXPECT_NE(error.reason().find("expired"), std::string::npos) << error.what();
  EXPECT_LE(services.asks().size(), 5u);
}

TEST_F(StoreWebIdentity, ARefusalIsAnErrorWithoutSecrets) {
  fails = true;
  const Error error = error_of([&] { key_of_first_read(); });
  EXPECT_NE(error.reason().find("InvalidIdentityToken"), std::string::npos) << error.what();
  EXPECT_NE(error.where().find(token_file), std::string::npos);
  EXPECT_EQ(std::string(error.what()).find("web-token"), std::string::npos);
  EXPECT_EQ(objects.asks().size(), 0u) << "nothing is asked for without a signature";
  fails = false;
  EXPECT_EQ(key_of_first_read(), "ROLE1");
}

TEST_F(StoreWebIdentity, RepliesWithoutCredentialsAreErrors) {
  for (const std::string body :
       {"", "<x/>", "{}", "<AssumeRoleWithWebIdentityResponse/>",
        "<AssumeRoleWithWebIdentityResponse><AssumeRoleWithWebIdentityResult><Credentials>"
        "<AccessKeyId>a&#10;X-Evil: "
        "1</AccessKeyId><SecretAccessKey>s</SecretAccessKey></Credentials>"
        "</AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>"}) {
    services.tamper([body](const HttpAsk&, HttpAnswer& answer) { answer = {200, {}, body}; });
    EXPECT_EQ(error_of([&] { key_of_first_read(); }).kind(), ErrorKind::kRun) << body;
  }
  first_lasts_s = -10;
  services.tamper([this](const HttpAsk& ask, HttpAnswer& answer) { serve(ask, answer); });
  EXPECT_NE(error_of([&] { key_of_first_read(); }).remedy().find("clock"), std::string::npos);
}

TEST_F(StoreWebIdentity, AnEmptyOrMissingTokenIsAnError) {
  testing::write_file(token_file, "\n");
  EXPECT_EQ(error_of([&] { key_of_first_read(); }).where(), token_file);
  std::filesystem::remove(token_file);
  error_of([&] { key_of_first_read(); });
  const ScopedVariable none("AWS_ROLE_ARN", nullptr);
  EXPECT_EQ(error_of([&] { key_of_first_read(); }).kind(), ErrorKind::kUsage);
}

TEST_F(StoreRoles, OfAContainer) {
  const ScopedVariable url("AWS_CONTAINER_CREDENTIALS_FULL_URI", services.url("/creds").c_str());
  const ScopedVariable token("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", token_file.c_str());
  EXPECT_EQ(key_of_first_read(), "ROLE1");
  EXPECT_NE(services.asks()[0].head.find("Authorization: web-token/+="), std::string::npos);
  for (const char* other : {"http://example.com/x", "ftp://127.0.0.1/x", "http://127.0.0.1.evil/",
                            "http://127.0.0.1:80@example.com/x"}) {
    const ScopedVariable bad("AWS_CONTAINER_CREDENTIALS_FULL_URI", other);
    EXPECT_EQ(error_of([&] { key_of_first_read(); }).kind(), ErrorKind::kUsage) << other;
  }
}

TEST_F(StoreRoles, OfAMachine) {
  const ScopedVariable on("AWS_EC2_METADATA_DISABLED", nullptr);
  const ScopedVariable url("AWS_EC2_METADATA_SERVICE_ENDPOINT", services.url("").c_str());
  EXPECT_EQ(key_of_first_read(), "ROLE1");
  const auto asks = services.asks();
  ASSERT_EQ(asks.size(), 3u);
  EXPECT_EQ(testing::method_of(asks[0]), "PUT");
  EXPECT_NE(asks[2].head.find("X-aws-ec2-metadata-token: imds-token"), std::string::npos);
  EXPECT_TRUE(asks[2].path.ends_with("/the-role"));
  // In a container nothing may answer.
  services.tamper([](const HttpAsk&, HttpAnswer& answer) { answer = {403, {}, ""}; });
  EXPECT_NE(error_of([&] { key_of_first_read(); }).remedy().find("AWS_EC2_METADATA_DISABLED"),
            std::string::npos);
  // A machine without a role: requests are not signed.
  services.tamper([](const HttpAsk& ask, HttpAnswer& answer) {
    answer = {ask.path.ends_with("/token") ? 200 : 404, {}, "t"};
  });
  EXPECT_EQ(key_of_first_read(), "");
}

class StoreCommand : public StoreRoles {
 protected:
  // The profile's command counts its runs in a file, and prints `json` with their number for N.
  void write_command(const std::string& json, const std::string& more = "") {
    testing::write_file(home / "own keys.sh", "echo >> '" + runs + "'; N=$(wc -l < '" + runs +
                                                  "'); echo OTHERSECRET >&2\n" + more +
                                                  "\ncat <<END\n" + json + "\nEND\n");
    testing::write_file(home / ".aws/config", "[profile p]\ncredential_process = exec sh '" +
                                                  (home / "own keys.sh") + "' x\n");
  }
  std::string keys(const std::string& more = "") const {
    return R"({"Version": 1, "AccessKeyId": "CMD$N", "SecretAccessKey": "SECRETSECRET")" + more +
           "}";
  }

  const std::string runs = home / "runs";
  const ScopedVariable profile{"AWS_PROFILE", "p"};
};

TEST_F(StoreCommand, IsRunAgainBeforeItsKeysExpire) {
  write_command(
      keys(R"(, "SessionToken": "TOKEN", "Expiration": ")" + utc_text(clock.now_s + 3'600) + "\""));
  ObjectStore store(clock, {}, quick_tuning());
  const auto object = store.open("s3://bucket/a");
  EXPECT_EQ(key_of_read(store, object, 10'000), "CMD1");
  EXPECT_EQ(key_of_read(store, object, 20'000), "CMD1");
  EXPECT_NE(objects.asks().back().head.find("TOKEN"), std::string::npos);
  clock.now_s += 3'400;
  EXPECT_TRUE(testing::wait_for([&] { return key_of_read(store, object, 30'000) == "CMD2"; }));
}

TEST_F(StoreCommand, KeysWithoutAnEndAreReplacedWhenTheStoreRefusesThem) {
  write_command(keys());
  ObjectStore store(clock, {}, quick_tuning());
  const auto object = store.open("s3://bucket/a");
  EXPECT_EQ(key_of_read(store, object, 10'000), "CMD1");
  clock.now_s += 100'000;
  EXPECT_EQ(key_of_read(store, object, 20'000), "CMD1");
  objects.tamper([](const HttpAsk& ask, HttpAnswer& answer) {
    if (ask.head.find("CMD1") != std::string::npos)
      answer = {400, {}, "<Error><Code>ExpiredToken</Code></Error>"};
  });
  EXPECT_EQ(key_of_read(store, object, 30'000), "CMD2");
}

TEST_F(StoreCommand, ComesAfterAWebIdentityAndKeysOfTheProfile) {
  write_command(keys());
  {
    const ScopedVariable token("AWS_WEB_IDENTITY_TOKEN_FILE", token_file.c_str());
    const ScopedVariable role("AWS_ROLE_ARN", "arn:aws:iam::1:role/r");
    EXPECT_EQ(key_of_first_read(), "ROLE1");
  }
  testing::write_file(home / ".aws/credentials",
                      "[p]\naws_access_key_id = OWN\naws_secret_access_key = SECRETSECRET\n");
  EXPECT_EQ(key_of_first_read(), "OWN");
  EXPECT_FALSE(std::filesystem::exists(runs));
}

TEST_F(StoreCommand, FailuresAreOneLineThatNamesTheProfileAndShowsNoKeys) {
  const std::vector<std::pair<std::string, std::string>> cases{
      {keys(), "exit 3"},
      {keys(), "kill -9 $$"},
      {keys(), "kill -s PIPE $$"},
      {keys(), "exec >&-; sleep 1000"},
      {"no SECRETSECRET", ""},
      {"[1]", ""},
      {R"({"Version": 2, "AccessKeyId": "CMD", "SecretAccessKey": "SECRETSECRET"})", ""},
      {R"({"Version": 1, "AccessKeyId": "CMD"})", ""},
      {R"({"Version": 1, "AccessKeyId": "C D", "SecretAccessKey": "SECRETSECRET"})", ""},
      {std::string(100'000, ' ') + keys(), ""}};
  const auto run = [&] { run_credential_process(find_credential_process(clock).value()); };
  const auto before = ::signal(SIGPIPE, SIG_IGN);  // only here, not in the command
  for (const auto& [json, more] : cases) {
    write_command(json, more);
    const Error error = error_of(run);
    EXPECT_EQ(error.kind(), ErrorKind::kRun);
    const std::string text = error.what();
    EXPECT_NE(text.find("credential_process of profile p"), std::string::npos) << text;
    EXPECT_EQ(text.find('\n'), std::string::npos) << text;
    EXPECT_EQ(text.find("SECRET"), std::string::npos) << text;
  }
  ::signal(SIGPIPE, before);
  write_command(keys(), "exit 3");
  EXPECT_NE(error_of(run).reason().find("code 3"), std::string::npos);
}

TEST_F(StoreCommand, ThatHangsEndsIfItsThreadIsCancelled) {
  const std::string process = home / "process";
  for (const std::string hang : {":", "exec >&-"}) {
    const std::string begun = process + hang;
    write_command(keys(),
                  "echo $$ > '" + process + "'; " + hang + "; touch '" + begun + "'; sleep 1000");
    const CancelScope scope([&] { return std::filesystem::exists(begun); });
    const auto service = find_credential_process(clock);
    const Error error = error_of([&] { run_credential_process(service.value()); });
    EXPECT_EQ(error.reason(), error_of([] { fail_cancelled(""); }).reason()) << hang;
    const std::string status = "/proc/" + std::to_string(std::stoi(testing::read_text(process)));
    EXPECT_TRUE(testing::wait_for([&] {
      const std::string text = testing::read_text(status + "/stat");
      return text.empty() || text.find(") Z") != std::string::npos;  // nobody has waited for it
    })) << hang;
  }
}

TEST_F(StoreCommand, ThatHangsEndsWithTheSource) {
  write_command(keys(), "sleep 1000");
  auto source = std::make_unique<CredentialSource>(clock, StoreOptions{}, quick_tuning());
  EXPECT_FALSE(source->look().is_there);
  EXPECT_TRUE(testing::wait_for([&] { return std::filesystem::exists(runs); }));
  const auto start = std::chrono::steady_clock::now();
  source.reset();
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(45))
      << "the command has 60 s";
}

}  // namespace
}  // namespace saturate
