#include "store/credentials.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <map>
#include <sstream>

#include "base/files.h"
#include "base/text.h"
#include "saturate/data/error.h"

namespace saturate {
namespace {

using Section = std::map<std::string, std::string>;

constexpr const char* kGoogleUrl = "https://storage.googleapis.com";
// With profile_name() as the shell reads it.
constexpr const char* kExportCommand =
    "aws configure export-credentials --format process "
    "--profile=\"${AWS_PROFILE:-${AWS_DEFAULT_PROFILE:-default}}\"";

std::string aws_file(const char* name, const std::string& usual) {
  const std::string home = environment_value("HOME");
  std::string given = environment_value(name);
  if (given.starts_with("~/")) given.replace(0, 1, home);
  return given.empty() ? home + "/.aws/" + usual : given;
}

std::string profile_name() {
  for (const char* name : {"AWS_PROFILE", "AWS_DEFAULT_PROFILE"})
    if (std::string given = environment_value(name); !given.empty()) return given;
  return "default";
}

// The keys, in lower case, of one section, [NAME] or [profile NAME]; empty if there is none.
// Indented keys belong to a nested setting, such as "s3 =": "s3.addressing_style".
std::optional<Section> read_section(Env& env, const std::string& path, const std::string& name) {
  if (path == "/dev/null" || !env.exists(path)) return std::nullopt;
  std::istringstream text(text_of_file(env, path));
  std::optional<Section> found;
  bool inside = false;
  std::string parent;
  for (std::string line; std::getline(text, line);) {
    const bool nested = line.starts_with(' ') || line.starts_with('\t');
    line = std::string(trimmed(line));
    if (line.empty() || line.front() == '#' || line.front() == ';') continue;
    if (line.front() == '[') {
      const std::string title(trimmed(line.substr(1, line.find(']') - 1)));
      inside = title == name || title == "profile " + name;
      if (inside && !found) found.emplace();
      parent.clear();
      continue;
    }
    const size_t equals = line.find('=');
    if (!inside || equals == std::string::npos) continue;
    std::string key = lower_case(trimmed(line.substr(0, equals)));
    const std::string value(trimmed(line.substr(equals + 1)));
    if (nested)
      key.insert(0, parent + ".");
    else
      parent = value.empty() ? key : "";
    (*found)[key] = value;
  }
  return found;
}

std::string value_of(const std::optional<Section>& section, const std::string& key) {
  if (!section) return "";
  const auto found = section->find(key);
  return found == section->end() ? "" : found->second;
}

// A profile in both files.
struct Profile {
  struct File {
    std::string path;
    std::optional<Section> section;
  };
  std::string name;
  std::array<File, 2> files;  // of credentials, whose values come first, and of settings

  // The file that sets a key; null if none does.
  const File* file_with(const std::string& key) const {
    for (const File& file : files)
      if (!value_of(file.section, key).empty()) return &file;
    return nullptr;
  }
  std::string value(const std::string& key) const {
    const File* const file = file_with(key);
    return file ? value_of(file->section, key) : "";
  }
};

Profile read_profile(Env& env, const std::string& name) {
  const auto read = [&](const char* variable, const char* usual) -> Profile::File {
    const std::string path = aws_file(variable, usual);
    return {path, read_section(env, path, name)};
  };
  return {
      name,
      {{read("AWS_SHARED_CREDENTIALS_FILE", "credentials"), read("AWS_CONFIG_FILE", "config")}}};
}

// BEFORE_ACCESS_KEY_ID and so on; empty if they are not set.
std::optional<Credentials> keys_of_environment(const std::string& before) {
  const std::string id = before + "_ACCESS_KEY_ID", secret = before + "_SECRET_ACCESS_KEY",
                    token = before + "_SESSION_TOKEN";
  Credentials found{environment_value(id.c_str()), environment_value(secret.c_str()),
                    environment_value(token.c_str()), id + " and " + secret, 0};
  if (found.key.empty() != found.secret.empty())
    fail(ErrorKind::kUsage, "only one of the two is set", found.origin, "Set both, or none");
  if (found.key.empty()) return std::nullopt;
  if (!found.token.empty()) found.origin = id + ", " + secret + " and " + token;
  return found;
}

std::optional<Credentials> keys_of_profile(const Profile& profile) {
  bool known = false;
  for (const auto& [path, section] : profile.files) {
    known = known || section;
    Credentials found{
        value_of(section, "aws_access_key_id"), value_of(section, "aws_secret_access_key"),
        value_of(section, "aws_session_token"), "profile " + profile.name + " in " + path, 0};
    if (found.token.empty()) found.token = value_of(section, "aws_security_token");
    if (found.key.empty() != found.secret.empty())
      fail(ErrorKind::kUsage, "aws_access_key_id or aws_secret_access_key is missing", found.origin,
           "Write both, or none");
    if (!found.key.empty()) return found;
  }
  if (!known && profile.name != "default")
    fail(ErrorKind::kUsage, "there is no such profile", "profile " + profile.name,
         "Check ~/.aws/credentials and ~/.aws/config");
  return std::nullopt;
}

// The setting by which a profile signs in if only the AWS command line can find its keys; else "".
// Keys beside role_arn are those that may assume the role, unless they have a token: then a program
// has written them.
std::string way_to_sign_in(const Profile& profile, const std::optional<Credentials>& keys) {
  if (keys && (!keys->token.empty() || !profile.file_with("role_arn"))) return "";
  if (profile.file_with("credential_process")) return "";
  for (const char* way : {"role_arn", "sso_session", "sso_start_url", "login_session"})
    if (profile.file_with(way)) return way;
  return "";
}

bool has_aws_command() {
  return std::ranges::any_of(
      split_text(environment_value("PATH"), ':'), [](const std::string& folder) {
        std::error_code error;
        const std::string file = folder + "/aws";
        return std::filesystem::is_regular_file(file, error) && ::access(file.c_str(), X_OK) == 0;
      });
}

// Google refuses requests with other keys, also for public objects.
bool may_be_googles(const Credentials& keys) {
  if (find_google_endpoint() == kGoogleUrl) return keys.key.starts_with("GOOG");
  return keys.token.empty() && !keys.key.starts_with("AKIA");
}

// "": Amazon's.
std::string find_s3_endpoint(Env& env, const std::function<const Profile&()>& profile) {
  const char* name = "AWS_ENDPOINT_URL_S3";
  std::string url = environment_value(name);
  if (url.empty()) url = environment_value(name = "AWS_ENDPOINT_URL");
  std::string where = name;
  if (url.empty()) {
    where = "endpoint_url of profile " + profile().name;
    if (const std::string services = profile().value("services"); !services.empty())
      url = read_profile(env, "services " + services).value("s3.endpoint_url");
    if (url.empty()) url = profile().value("endpoint_url");
  }
  if (url.empty()) return "";
  while (url.ends_with('/')) url.pop_back();
  const size_t host = url.find("://") + 3;
  const bool is_http = url.starts_with("http://") || url.starts_with("https://");
  if (!is_http || url.find_first_of("?#@", host) != std::string::npos)
    fail(ErrorKind::kUsage, "the endpoint must be an http(s):// URL without a user name or a query",
         where,
         "Write a URL such as https://minio.example:9000, and keys into AWS_ACCESS_KEY_ID and "
         "AWS_SECRET_ACCESS_KEY");
  return url;
}

}  // namespace

std::string environment_value(const char* name) {
  const char* const value = std::getenv(name);
  return value ? value : "";
}

std::optional<Credentials> find_credentials(Env& env) {
  if (auto found = keys_of_environment("AWS")) return found;
  if (find_web_identity(env)) return std::nullopt;
  const Profile profile = read_profile(env, profile_name());
  auto found = keys_of_profile(profile);
  const std::string way = way_to_sign_in(profile, found);
  if (way.empty()) return found;
  if (!has_aws_command())
    fail(ErrorKind::kUsage,
         "it signs in by " + way + ", which needs the command aws, and there is none in PATH",
         "profile " + profile.name,
         "Install the AWS command line, or set AWS_PROFILE to a profile with keys");
  return std::nullopt;
}

std::optional<Credentials> find_google_credentials(Env& env) {
  if (auto found = keys_of_environment("GS")) return found;
  auto found = keys_of_environment("AWS");
  if (!found) found = keys_of_profile(read_profile(env, profile_name()));
  if (found && !may_be_googles(*found)) found.reset();
  return found;
}

std::optional<CredentialService> find_credential_process(Env& env) {
  const Profile profile = read_profile(env, profile_name());
  CredentialService service;
  service.kind = CredentialService::Kind::kProcess;
  std::string setting = "credential_process";
  service.command = profile.value(setting);
  if (service.command.empty()) {
    setting = way_to_sign_in(profile, keys_of_profile(profile));
    service.command = kExportCommand;
    service.origin = "aws configure export-credentials for ";
  }
  const Profile::File* const file = setting.empty() ? nullptr : profile.file_with(setting);
  if (!file) return std::nullopt;
  service.origin += setting + " of profile " + profile.name + " in " + file->path;
  return service;
}

std::string amazon_url(const std::string& service, const std::string& region) {
  return "https://" + service + "." + region + ".amazonaws.com" +
         (region.starts_with("cn-") ? ".cn" : "");
}

S3Settings find_s3_settings(Env& env) {
  std::optional<Profile> known;
  const auto profile = [&]() -> const Profile& {
    if (!known) known = read_profile(env, profile_name());
    return *known;
  };
  S3Settings settings;
  settings.endpoint = find_s3_endpoint(env, profile);
  settings.region = environment_value("AWS_REGION");
  if (settings.region.empty()) settings.region = environment_value("AWS_DEFAULT_REGION");
  if (settings.region.empty()) settings.region = profile().value("region");
  if (settings.region.empty()) settings.region = "us-east-1";
  std::string style = environment_value("AWS_S3_ADDRESSING_STYLE");
  try {
    if (style.empty()) style = profile().value("s3.addressing_style");
    if (environment_value("AWS_CA_BUNDLE").empty())
      settings.authorities = profile().value("ca_bundle");
  } catch (const Error&) {
    // Perhaps another user's files: the environment has the endpoint and the region.
  }
  if (!style.empty() && style != "path" && style != "virtual" && style != "auto")
    fail(ErrorKind::kUsage, "the addressing style is neither path, virtual nor auto", style,
         "Write path, virtual or auto into AWS_S3_ADDRESSING_STYLE or the profile");
  if (const std::string& file = settings.authorities;
      !file.empty() && !settings.endpoint.starts_with("http://") && !env.exists(file))
    fail(ErrorKind::kUsage, "there is no such file of certificate authorities: " + file,
         "ca_bundle of profile " + profile().name,
         "Correct the path, or set AWS_CA_BUNDLE, which comes first");
  settings.path_style = style == "path" || (style != "virtual" && !settings.endpoint.empty());
  return settings;
}

std::string find_google_endpoint() {
  constexpr std::string_view kJsonPath = "/storage/v1";  // of another interface than S3's
  const char* name = "STORAGE_EMULATOR_HOST";
  std::string url = environment_value(name);
  if (!url.empty() && url.find("://") == std::string::npos) url = "http://" + url;
  if (url.empty()) url = environment_value(name = "CLOUDSDK_API_ENDPOINT_OVERRIDES_STORAGE");
  if (url.empty()) return kGoogleUrl;
  while (url.ends_with('/')) url.pop_back();
  if (url.ends_with(kJsonPath)) url.resize(url.size() - kJsonPath.size());
  const size_t host = url.find("://") + 3;
  const bool is_http = url.starts_with("http://") || url.starts_with("https://");
  if (!is_http || host >= url.size() || url.find_first_of("/?#@", host) != std::string::npos)
    fail(ErrorKind::kUsage, "the endpoint is not the URL of a host", name,
         "Write a URL such as https://storage.example:9000");
  return url;
}

}  // namespace saturate
