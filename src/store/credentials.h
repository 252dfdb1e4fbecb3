// Keys and settings of S3, from the environment and the files of the AWS command line.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "saturate/data/env.h"

namespace saturate {

// "" if the variable is not set.
std::string environment_value(const char* name);

struct Credentials {
  std::string key, secret, token;  // the token may be empty
  std::string origin;              // where they were found, for messages
  int64_t expires_ns = 0;          // since 1970; 0: unknown or never
  bool operator==(const Credentials&) const = default;
};

// AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN, else the profile (AWS_PROFILE,
// AWS_DEFAULT_PROFILE or "default") in AWS_SHARED_CREDENTIALS_FILE (~/.aws/credentials) or
// AWS_CONFIG_FILE (~/.aws/config). Empty if there are none, a web identity comes first, or the
// profile signs in by a role or single sign-on. Fails with kUsage if a named profile is missing,
// half a key is given, or there is no AWS command line to sign in.
std::optional<Credentials> find_credentials(Env& env);

// For gs://: GS_ACCESS_KEY_ID and GS_SECRET_ACCESS_KEY, else the same keys of the environment or a
// profile if they may be Google's. Fails with kUsage if a named profile is missing, or half a key
// is given.
std::optional<Credentials> find_google_credentials(Env& env);

// A service of the cloud that hands out credentials that expire.
struct CredentialService {
  enum class Kind {
    kProcess,      // a command of the profile
    kWebIdentity,  // STS, for a token in a file, as in Kubernetes
    kContainer,    // of ECS or EKS
    kMachine,      // the metadata of an EC2 instance
  };
  Kind kind = Kind::kWebIdentity;
  std::string url;
  std::string token_file;     // kWebIdentity, kContainer; may be empty for the latter
  std::string token;          // kContainer; may be empty
  std::string role, session;  // kWebIdentity
  std::string command;        // kProcess
  bool may_be_away = false;   // kMachine, which no setting names: then requests are not signed
  std::string authorities;    // kWebIdentity; as of S3Settings
  std::string origin;         // for messages
};

// By the names of the maker (Nitro) and of the firmware (Xen).
bool is_machine_of_ec2(const std::string& dmi = "/sys/devices/virtual/dmi/id");

// The service that the environment names, in the order of the AWS command line: AWS_ROLE_ARN with
// AWS_WEB_IDENTITY_TOKEN_FILE; AWS_CONTAINER_CREDENTIALS_FULL_URI or _RELATIVE_URI; the metadata of
// this machine if it is one of EC2. A web identity comes before a profile, the others after it.
// Fails with kUsage if half of a setting is missing or a URL is not permitted.
std::optional<CredentialService> find_web_identity(Env& env);
// credential_process of the profile, after its keys; or the AWS command line, if the profile signs
// in by a role or single sign-on.
std::optional<CredentialService> find_credential_process(Env& env);
std::optional<CredentialService> find_metadata_service(bool is_ec2 = is_machine_of_ec2());

// "https://SERVICE.REGION.amazonaws.com", which in China ends in ".cn".
std::string amazon_url(const std::string& service, const std::string& region);

struct S3Settings {
  std::string endpoint;  // https://HOST[:PORT]; "": Amazon's
  std::string region;
  bool path_style = false;  // HOST/BUCKET/KEY instead of BUCKET.HOST/KEY
  std::string authorities;  // file of certificate authorities; "": as for other servers
};

// AWS_ENDPOINT_URL_S3 or AWS_ENDPOINT_URL, AWS_REGION or AWS_DEFAULT_REGION, else endpoint_url and
// region of the profile. AWS_S3_ADDRESSING_STYLE, or addressing_style of the profile, is path,
// virtual or auto: path if there is an endpoint. ca_bundle of the profile names the authorities if
// AWS_CA_BUNDLE does not. Fails with kUsage, without the URL, if the endpoint is none or carries a
// user name, or if an endpoint with TLS has a ca_bundle that does not exist.
S3Settings find_s3_settings(Env& env);

// Where gs:// is, without a slash at the end: Google's own, or STORAGE_EMULATOR_HOST, as Google's
// client libraries have it (HOST:PORT or a URL), or CLOUDSDK_API_ENDPOINT_OVERRIDES_STORAGE, as
// gcloud has it (a URL).
std::string find_google_endpoint();

}  // namespace saturate
