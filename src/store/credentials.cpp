#include "store/credentials.h"

#include <cstdlib>
#include <map>
#include <sstream>

#include "base/files.h"
#include "base/text.h"
#include "saturate/data/error.h"

namespace saturate {
namespace {

using Section = std::map<std::string, std::string>;

std::string aws_file(const char* name, const std::string& usual) {
  const std::string given = environment_value(name);
  return given.empty() ? environment_value("HOME") + "/.aws/" + usual : given;
}

std::string profile_name() {
  const std::string given = environment_value("AWS_PROFILE");
  return given.empty() ? "default" : given;
}

// The keys, in lower case, of one section, [NAME] or [profile NAME]; empty if there is none.
// Indented keys belong to a nested setting, such as "s3 =".
std::optional<Section> read_section(Env& env, const std::string& path, const std::string& name) {
  if (!env.exists(path)) return std::nullopt;
  std::istringstream text(text_of_file(env, path));
  std::optional<Section> found;
  bool inside = false;
  for (std::string line; std::getline(text, line);) {
    const bool nested = line.starts_with(' ') || line.starts_with('\t');
    line = std::string(trimmed(line));
    if (line.empty() || line.front() == '#' || line.front() == ';') continue;
    if (line.front() == '[') {
      const std::string title(trimmed(line.substr(1, line.find(']') - 1)));
      inside = title == name || title == "profile " + name;
      if (inside && !found) found.emplace();
      continue;
    }
    const size_t equals = line.find('=');
    if (inside && !nested && equals != std::string::npos)
      (*found)[lower_case(trimmed(line.substr(0, equals)))] = trimmed(line.substr(equals + 1));
  }
  return found;
}

std::string value_of(const std::optional<Section>& section, const std::string& key) {
  if (!section) return "";
  const auto found = section->find(key);
  return found == section->end() ? "" : found->second;
}

std::string config_value(Env& env, const std::string& key) {
  return value_of(read_section(env, aws_file("AWS_CONFIG_FILE", "config"), profile_name()), key);
}

}  // namespace

std::string environment_value(const char* name) {
  const char* const value = std::getenv(name);
  return value ? value : "";
}

std::optional<Credentials> find_credentials(Env& env) {
  Credentials found{
      environment_value("AWS_ACCESS_KEY_ID"), environment_value("AWS_SECRET_ACCESS_KEY"),
      environment_value("AWS_SESSION_TOKEN"), "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY", 0};
  if (found.key.empty() != found.secret.empty())
    fail(ErrorKind::kUsage, "only one of the two is set", found.origin, "Set both, or none");
  if (!found.key.empty()) return found;
  if (find_web_identity(env)) return std::nullopt;
  const std::string profile = profile_name();
  bool known = false;
  for (const auto& [name, usual] : {std::pair("AWS_SHARED_CREDENTIALS_FILE", "credentials"),
                                    std::pair("AWS_CONFIG_FILE", "config")}) {
    const std::string path = aws_file(name, usual);
    const auto section = read_section(env, path, profile);
    known = known || section;
    found = {value_of(section, "aws_access_key_id"), value_of(section, "aws_secret_access_key"),
             value_of(section, "aws_session_token"), "profile " + profile + " in " + path, 0};
    if (found.key.empty() != found.secret.empty())
      fail(ErrorKind::kUsage, "aws_access_key_id or aws_secret_access_key is missing", found.origin,
           "Write both, or none");
    if (!found.key.empty()) return found;
  }
  if (!known && profile != "default")
    fail(ErrorKind::kUsage, "there is no such profile", "AWS_PROFILE=" + profile,
         "Check ~/.aws/credentials and ~/.aws/config");
  return std::nullopt;
}

std::optional<CredentialService> find_credential_process(Env& env) {
  CredentialService service;
  service.kind = CredentialService::Kind::kProcess;
  service.command = config_value(env, "credential_process");
  if (service.command.empty()) return std::nullopt;
  service.origin = "credential_process of profile " + profile_name() + " in " +
                   aws_file("AWS_CONFIG_FILE", "config");
  return service;
}

std::string amazon_url(const std::string& service, const std::string& region) {
  return "https://" + service + "." + region + ".amazonaws.com" +
         (region.starts_with("cn-") ? ".cn" : "");
}

S3Settings find_s3_settings(Env& env) {
  const auto first_of = [&](const char* a, const char* b, const char* key) {
    if (std::string value = environment_value(a); !value.empty()) return value;
    if (std::string value = environment_value(b); !value.empty()) return value;
    return config_value(env, key);
  };
  S3Settings settings;
  settings.endpoint = first_of("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "endpoint_url");
  settings.region = first_of("AWS_REGION", "AWS_DEFAULT_REGION", "region");
  if (settings.region.empty()) settings.region = "us-east-1";
  while (settings.endpoint.ends_with('/')) settings.endpoint.pop_back();
  if (!settings.endpoint.empty() && !settings.endpoint.starts_with("http://") &&
      !settings.endpoint.starts_with("https://"))
    fail(ErrorKind::kUsage, "the endpoint is not a URL", settings.endpoint,
         "Write AWS_ENDPOINT_URL=https://HOST[:PORT]");
  const std::string style = environment_value("AWS_S3_ADDRESSING_STYLE");
  if (!style.empty() && style != "path" && style != "virtual" && style != "auto")
    fail(ErrorKind::kUsage, "is neither path, virtual nor auto", "AWS_S3_ADDRESSING_STYLE=" + style,
         "Write path, virtual or auto");
  settings.path_style = style == "path" || (style != "virtual" && !settings.endpoint.empty());
  return settings;
}

std::string find_google_endpoint() {
  constexpr std::string_view kJsonPath = "/storage/v1";  // of another interface than S3's
  const char* name = "STORAGE_EMULATOR_HOST";
  std::string url = environment_value(name);
  if (!url.empty() && url.find("://") == std::string::npos) url = "http://" + url;
  if (url.empty()) url = environment_value(name = "CLOUDSDK_API_ENDPOINT_OVERRIDES_STORAGE");
  if (url.empty()) return "https://storage.googleapis.com";
  while (url.ends_with('/')) url.pop_back();
  if (url.ends_with(kJsonPath)) url.resize(url.size() - kJsonPath.size());
  const size_t host = url.find("://") + 3;
  const bool is_http = url.starts_with("http://") || url.starts_with("https://");
  if (!is_http || host >= url.size() || url.find_first_of("/?#@", host) != std::string::npos)
    fail(ErrorKind::kUsage, "the endpoint is not the URL of a host", name,
         "Write https://HOST[:PORT]");
  return url;
}

}  // namespace saturate
