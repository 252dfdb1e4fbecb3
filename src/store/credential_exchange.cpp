#include "store/credential_exchange.h"

#include <time.h>

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/cancel.h"
#include "base/files.h"
#include "base/printable.h"
#include "saturate/data/error.h"
#include "store/range_reply.h"
#include "store/xml.h"

namespace saturate {
namespace {

constexpr size_t kMostServiceReply = 64 << 10, kMostToken = 64 << 10;  // bytes
constexpr const char* kCheckAddress = "Check the service's address";
constexpr double kServiceSeconds = 60, kMetadataSeconds = 5;

// Whether text holds only characters that keys and tokens may have.
bool is_visible(std::string_view text) {
  return std::ranges::all_of(text, [](char c) { return uint8_t(c) > ' ' && uint8_t(c) < 0x7f; });
}

std::string token_of(Env& env, const std::string& path) {
  std::string token = text_of_file(env, path);
  token.erase(token.find_last_not_of(" \r\n") + 1);
  if (!is_visible(token))
    fail(ErrorKind::kRun, "the token holds a character that no token has", path,
         "Check the file: it must hold one token");
  if (token.empty() || token.size() > kMostToken)
    fail(ErrorKind::kRun, "the file holds no token", path, "Check the program that writes it");
  return token;
}

HttpCall call_of(const CredentialService& service, double seconds) {
  HttpCall call;
  call.request.url = service.url;
  call.request.most = kMostServiceReply;
  call.request.timeout_s = seconds;
  call.name = service.origin;
  return call;
}

[[noreturn]] void fail_refused(const HttpCall& call, const HttpReply& reply) {
  fail(ErrorKind::kRun, "the service gave no credentials: it answered " + status_text(reply),
       call.name, "Check the role and its permissions, and the token's age");
}

std::string good_reply(HttpCalls& calls, const HttpCall& call) {
  const HttpReply reply = calls.call(call);
  if (reply.status != 200) fail_refused(call, reply);
  return text_of(reply);
}

Credentials checked(Credentials found, const std::string& remedy) {
  if (found.key.empty() || found.secret.empty() ||
      !is_visible(found.key + found.secret + found.token))
    fail(ErrorKind::kRun, "the reply holds no credentials", found.origin, remedy);
  return found;
}

Credentials ask_web_identity(Env& env, HttpCalls& calls, const CredentialService& service) {
  HttpCall call = call_of(service, kServiceSeconds);
  const std::string form =
      "Action=AssumeRoleWithWebIdentity&Version=2011-06-15&RoleArn=" + encode_query(service.role) +
      "&RoleSessionName=" + encode_query(service.session) +
      "&WebIdentityToken=" + encode_query(token_of(env, service.token_file));
  const auto bytes = std::as_bytes(std::span(form));
  call.request.method = "POST";
  call.request.authorities = service.authorities;
  call.request.body = std::make_shared<std::vector<std::byte>>(bytes.begin(), bytes.end());
  const std::string path =
      "AssumeRoleWithWebIdentityResponse/AssumeRoleWithWebIdentityResult/Credentials/";
  Credentials found;
  found.origin = service.origin;
  read_xml(good_reply(calls, call), call.name, [&](std::string_view at, std::string& value) {
    if (at == path + "AccessKeyId") found.key = value;
    if (at == path + "SecretAccessKey") found.secret = value;
    if (at == path + "SessionToken") found.token = value;
    if (at == path + "Expiration") found.expires_ns = parse_utc(value);
  });
  return checked(std::move(found), kCheckAddress);
}

Credentials ask_metadata(HttpCalls& calls, const CredentialService& service, const HttpCall& call) {
  const auto json = nlohmann::json::parse(good_reply(calls, call), nullptr, false);
  return credentials_of(json, "Token", service.origin, kCheckAddress);
}

Credentials ask_container(Env& env, HttpCalls& calls, const CredentialService& service) {
  HttpCall call = call_of(service, kMetadataSeconds);
  call.request.direct = true;
  const std::string token =
      service.token_file.empty() ? service.token : token_of(env, service.token_file);
  if (!token.empty()) call.request.headers.push_back("Authorization: " + token);
  return ask_metadata(calls, service, call);
}

// In a container, no answer comes unless the instance permits a hop more. Empty if there may be
// none.
std::optional<std::string> metadata_token(HttpCalls& calls, const HttpCall& call,
                                          bool may_be_away) {
  try {
    return good_reply(calls, call);
  } catch (const Error& error) {
    if (is_cancelled()) throw;
    const std::string remedy =
        "Set AWS_EC2_METADATA_DISABLED=true if requests need no keys, or in a container the "
        "instance's hop limit to 2";
    if (!may_be_away && dynamic_cast<const NoAnswer*>(&error))
      throw NoAnswer(error.kind(), error.reason(), error.where(), remedy, error.thrown_at());
    if (!may_be_away) fail(error.kind(), error.reason(), error.where(), remedy);
    print_warning(error.where() + ": " + error.reason() + "; requests are not signed. " + remedy);
    return std::nullopt;
  }
}

// IMDSv2: a token, the name of the role, its credentials.
std::optional<Credentials> ask_machine(HttpCalls& calls, const CredentialService& service) {
  HttpCall call = call_of(service, kMetadataSeconds);
  call.request.direct = true;
  call.request.method = "PUT";
  call.request.url = service.url + "/latest/api/token";
  call.request.headers = {"X-aws-ec2-metadata-token-ttl-seconds: 300"};
  const auto token = metadata_token(calls, call, service.may_be_away);
  if (!token) return std::nullopt;
  if (!is_visible(*token))
    fail(ErrorKind::kRun, "the machine's metadata hold no token", call.name,
         "Set AWS_EC2_METADATA_DISABLED=true if this machine has none");
  call.request.method = "GET";
  call.request.headers = {"X-aws-ec2-metadata-token: " + *token};
  call.request.url = service.url + "/latest/meta-data/iam/security-credentials/";
  const HttpReply roles = calls.call(call);
  if (roles.status == 404) return std::nullopt;
  if (roles.status != 200) fail_refused(call, roles);
  const std::string names = text_of(roles);
  call.request.url += encode_query(names.substr(0, names.find_first_of("\r\n")));
  return ask_metadata(calls, service, call);
}

}  // namespace

std::optional<Credentials> ask_service(Env& env, HttpCalls& calls,
                                       const CredentialService& service) {
  using Kind = CredentialService::Kind;
  if (service.kind == Kind::kWebIdentity) return ask_web_identity(env, calls, service);
  if (service.kind == Kind::kProcess) return run_credential_process(service);
  if (service.kind == Kind::kContainer) return ask_container(env, calls, service);
  return ask_machine(calls, service);
}

Credentials credentials_of(const nlohmann::json& json, const char* token, const std::string& origin,
                           const std::string& remedy) {
  const auto text = [&](const char* key) {
    const auto found = json.find(key);  // end() unless it is an object
    return found != json.end() && found->is_string() ? found->get<std::string>() : std::string();
  };
  return checked({text("AccessKeyId"), text("SecretAccessKey"), text(token), origin,
                  parse_utc(text("Expiration"))},
                 remedy);
}

int64_t parse_utc(const std::string& text) {
  constexpr int64_t kSecond = 1'000'000'000;  // ns
  tm time{};
  int end = 0;
  if (text.size() > 40 ||
      std::sscanf(text.c_str(), "%4d-%2d-%2dT%2d:%2d:%2d%n", &time.tm_year, &time.tm_mon,
                  &time.tm_mday, &time.tm_hour, &time.tm_min, &time.tm_sec, &end) != 6)
    return 0;
  std::string zone = text.substr(size_t(end));
  if (zone.starts_with('.')) zone.erase(0, zone.find_first_not_of("0123456789", 1));
  char sign = '+';
  int hours = 0, minutes = 0;
  end = 0;
  if (zone != "Z" &&
      (std::sscanf(zone.c_str(), "%c%2d:%2d%n", &sign, &hours, &minutes, &end) != 3 ||
       size_t(end) != zone.size() || (sign != '+' && sign != '-')))
    return 0;
  time.tm_year -= 1900;
  time.tm_mon -= 1;
  const int64_t ahead = (sign == '-' ? -60 : 60) * (60 * hours + minutes);
  return std::clamp(int64_t(timegm(&time)) - ahead, int64_t{0}, INT64_MAX / kSecond) * kSecond;
}

}  // namespace saturate
