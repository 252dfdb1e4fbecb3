// Asking a service of the cloud for credentials.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "saturate/data/env.h"
#include "store/credentials.h"
#include "store/http_calls.h"

namespace saturate {

// Fails with kRun if the service does not answer, or refuses. Its replies and the tokens appear in
// no message. Empty if a machine has no role.
std::optional<Credentials> ask_service(Env& env, HttpCalls& calls,
                                       const CredentialService& service);

// "2026-11-25T13:44:45Z" in nanoseconds since 1970; 0 if it is not one.
int64_t parse_utc(const std::string& text);

}  // namespace saturate
