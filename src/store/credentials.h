// Keys and settings of S3, from the environment and the files of the AWS command line.
#pragma once

#include <optional>
#include <string>

#include "saturate/data/env.h"

namespace saturate {

struct Credentials {
  std::string key, secret, token;  // the token may be empty
  std::string origin;              // where they were found, for messages
  bool operator==(const Credentials&) const = default;
};

// AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN, else the profile (AWS_PROFILE, or
// "default") in AWS_SHARED_CREDENTIALS_FILE (~/.aws/credentials) or AWS_CONFIG_FILE
// (~/.aws/config). Empty if there are none. Fails with kUsage if a named profile is missing, or
// half a key is given.
std::optional<Credentials> find_credentials(Env& env);

struct S3Settings {
  std::string endpoint;  // https://HOST[:PORT]; "": Amazon's
  std::string region;
  bool path_style = false;  // HOST/BUCKET/KEY instead of BUCKET.HOST/KEY
};

// AWS_ENDPOINT_URL_S3 or AWS_ENDPOINT_URL, AWS_REGION or AWS_DEFAULT_REGION, else endpoint_url and
// region of the profile. AWS_S3_ADDRESSING_STYLE is path, virtual or auto: path if there is an
// endpoint.
S3Settings find_s3_settings(Env& env);

}  // namespace saturate
