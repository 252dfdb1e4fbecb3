// Asking a service of the cloud for credentials.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "saturate/data/env.h"
#include "store/credentials.h"
#include "store/http_calls.h"

namespace saturate {

// Fails with kRun if the service refuses, and with NoAnswer if it does not answer. Its replies and
// the tokens appear in no message. Empty if a machine has no role, or its service may be away and
// gives no token.
std::optional<Credentials> ask_service(Env& env, HttpCalls& calls,
                                       const CredentialService& service);

// Runs the command of kProcess. Fails with NoAnswer if it takes more than a minute or is killed,
// and with kRun if it ends with another code than 0 or prints no keys; its output appears in no
// message.
Credentials run_credential_process(const CredentialService& service);

// AccessKeyId, SecretAccessKey, `token` and Expiration of a JSON value. Fails with kRun if there
// are no keys.
Credentials credentials_of(const nlohmann::json& json, const char* token, const std::string& origin,
                           const std::string& remedy);

// "2026-11-25T13:44:45Z" or "...45.123+00:00" in nanoseconds since 1970, without the fraction of a
// second; 0 if it is not one.
int64_t parse_utc(const std::string& text);

}  // namespace saturate
