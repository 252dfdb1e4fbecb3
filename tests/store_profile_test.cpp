// Profiles of the AWS command line: settings in both files, sign-ins, and endpoints.
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "saturate/data/error.h"
#include "store/credential_exchange.h"
#include "store/credentials.h"
#include "store/store_url.h"
#include "tests/bucket_testing.h"

namespace saturate {
namespace {

using testing::env;
using testing::error_of;
using testing::ScopedVariable;
using testing::TempDir;

class StoreProfile : public ::testing::Test {
 protected:
  TempDir home;
  const std::string credentials_file = home / ".aws/credentials";
  const std::string config_file = home / ".aws/config";
  const testing::BucketVariables variables{home.path(), ""};
  const ScopedVariable none[2] = {{"AWS_ACCESS_KEY_ID", nullptr},
                                  {"AWS_SECRET_ACCESS_KEY", nullptr}};
};

TEST_F(StoreProfile, SettingsComeFromBothFilesAndTheirNestedKeys) {
  testing::write_file(credentials_file,
                      "[work]\naws_access_key_id = W\naws_secret_access_key = w\n"
                      "aws_security_token = t\nregion = eu-west-1\n"
                      "endpoint_url = http://minio:9000\ncredential_process = run me\n");
  testing::write_file(home / "settings",
                      "[profile work]\nregion = eu-north-1\ns3 =\n  max_queue_size = 9\n"
                      "  addressing_style = virtual\nservices = local\n\n"
                      "[services local]\ns3 =\n  endpoint_url = http://ceph:80\n"
                      "sts =\n  endpoint_url = http://sts:80\n");
  const ScopedVariable profile("AWS_DEFAULT_PROFILE", "work");
  {
    const ScopedVariable file("AWS_CONFIG_FILE", "~/settings");
    const S3Settings settings = find_s3_settings(env());
    EXPECT_EQ(settings.region, "eu-west-1");
    EXPECT_EQ(settings.endpoint, "http://ceph:80");
    EXPECT_FALSE(settings.path_style);
  }
  const ScopedVariable file("AWS_CONFIG_FILE", "/dev/null");
  EXPECT_EQ(find_s3_settings(env()).endpoint, "http://minio:9000");
  EXPECT_TRUE(find_s3_settings(env()).path_style);
  EXPECT_EQ(find_credentials(env())->token, "t");
  EXPECT_EQ(find_credential_process(env()).value().command, "run me");
}

TEST_F(StoreProfile, FilesThatCannotBeReadDoNotMatterIfTheEnvironmentHasAll) {
  std::filesystem::create_directories(config_file);  // nor can root read it
  const ScopedVariable endpoint("AWS_ENDPOINT_URL", "http://minio:9000");
  EXPECT_NE(error_of([] { find_s3_settings(env()); }).where().find(config_file), std::string::npos)
      << "it may name the region";
  const ScopedVariable region("AWS_REGION", "eu-west-1");
  const S3Settings settings = find_s3_settings(env());
  EXPECT_EQ(settings.region, "eu-west-1");
  EXPECT_TRUE(settings.path_style);
}

TEST_F(StoreProfile, NamesTheCertificateAuthoritiesOfS3) {
  const ScopedVariable not_given("AWS_CA_BUNDLE", nullptr);
  const std::string bundle = home / "bundle.pem";
  testing::write_file(config_file, "[default]\nca_bundle = " + bundle + "\n");
  const auto authorities = [](const std::string& url) {
    return locate_object(env(), url).authorities;
  };
  const Error error = error_of([&] { authorities("s3://bucket/a"); });
  EXPECT_EQ(error.kind(), ErrorKind::kUsage);
  EXPECT_EQ(error.where(), "ca_bundle of profile default");
  EXPECT_NE(error.reason().find(bundle), std::string::npos) << error.what();
  {
    const ScopedVariable endpoint("AWS_ENDPOINT_URL", "http://minio:9000");
    EXPECT_EQ(authorities("s3://bucket/a"), bundle) << "without TLS it is not read";
  }
  testing::write_file(bundle, "");
  EXPECT_EQ(authorities("s3://bucket/a"), bundle);
  EXPECT_EQ(authorities("gs://bucket/a"), "");
  EXPECT_EQ(authorities("https://host/a"), "");
  {
    const ScopedVariable given("AWS_CA_BUNDLE", "/other.pem");
    EXPECT_EQ(authorities("s3://bucket/a"), "");
  }
  testing::write_file(home / "first.pem", "");
  testing::write_file(credentials_file, "[default]\nca_bundle = " + (home / "first.pem") + "\n");
  EXPECT_EQ(authorities("s3://bucket/a"), home / "first.pem");
}

TEST_F(StoreProfile, TheAwsCommandLineSignsIn) {
  testing::write_file(home / "aws", "#!/bin/sh\nprintf '%s\\n' \"$@\" > '" + (home / "asked") +
                                        "'\necho '{\"Version\": 1, \"AccessKeyId\": \"ROLE\", "
                                        "\"SecretAccessKey\": \"SECRETSECRET\"}'\n");
  std::filesystem::permissions(home / "aws", std::filesystem::perms::owner_all);
  const ScopedVariable path("PATH", (home.path() + ":/usr/bin:/bin").c_str());
  const ScopedVariable profile("AWS_DEFAULT_PROFILE", "a 'b\" $HOME");
  const std::string name = "a 'b\" $HOME";
  testing::write_file(credentials_file,
                      "[" + name + "]\naws_access_key_id = D\naws_secret_access_key = d\n");
  testing::write_file(config_file, "[profile " + name + "]\nrole_arn = x\n");
  EXPECT_FALSE(find_credentials(env())) << "these keys may assume the role, and no more";
  const CredentialService service = find_credential_process(env()).value();
  EXPECT_EQ(service.origin, "aws configure export-credentials for role_arn of profile " + name +
                                " in " + config_file);
  EXPECT_EQ(run_credential_process(service).key, "ROLE");
  EXPECT_EQ(testing::read_text(home / "asked"),
            "configure\nexport-credentials\n--format\nprocess\n--profile=" + name + "\n");
  testing::write_file(config_file, "[profile " + name + "]\nregion = eu-north-1\n");
  EXPECT_FALSE(find_credential_process(env()));
}

TEST_F(StoreProfile, AProfileThatSignsInWithoutTheAwsCommandLineIsAnError) {
  const ScopedVariable path("PATH", home.path().c_str());
  for (const std::string way : {"sso_session", "sso_start_url", "login_session", "role_arn"}) {
    testing::write_file(config_file, "[default]\n" + way + " = x\n");
    const Error error = error_of([] { find_credentials(env()); });
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    EXPECT_NE(error.reason().find("signs in by " + way), std::string::npos) << error.what();
    EXPECT_NE(error.remedy().find("AWS command line"), std::string::npos);
  }
  const std::string keys = "[default]\naws_access_key_id = D\naws_secret_access_key = d\n";
  testing::write_file(credentials_file, keys);
  EXPECT_EQ(error_of([] { find_credentials(env()); }).kind(), ErrorKind::kUsage)
      << "they may assume the role, and no more";
  testing::write_file(credentials_file, keys + "aws_session_token = t\n");
  EXPECT_EQ(find_credentials(env())->key, "D");
  std::filesystem::remove(credentials_file);
  testing::write_file(config_file, "[default]\nsso_session = x\ncredential_process = run me\n");
  EXPECT_FALSE(find_credentials(env()));
}

TEST_F(StoreProfile, AnEndpointMayHaveAPathButNoUser) {
  {
    const ScopedVariable endpoint("AWS_ENDPOINT_URL", "https://x.supabase.co/storage/v1/s3/");
    EXPECT_EQ(locate_object(env(), "s3://bucket/a").url,
              "https://x.supabase.co/storage/v1/s3/bucket/a");
  }
  for (const char* bad : {"https://user:hidden0@minio", "user:hidden0@minio:9000",
                          "https://minio/?hidden0", "https://minio#hidden0", "https://"}) {
    const ScopedVariable endpoint("AWS_ENDPOINT_URL", bad);
    const Error error = error_of([] { locate_object(env(), "s3://bucket/a"); });
    EXPECT_EQ(error.kind(), ErrorKind::kUsage) << bad;
    EXPECT_EQ(error.where(), "AWS_ENDPOINT_URL") << bad;
    EXPECT_EQ(std::string(error.what()).find("hidden0"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace saturate
