// Which service of the cloud hands out credentials.
#include <algorithm>

#include "base/system_file.h"
#include "base/text.h"
#include "saturate/data/error.h"
#include "store/credentials.h"
#include "store/store_url.h"

namespace saturate {
namespace {

constexpr const char* kContainerHost = "http://169.254.170.2";
constexpr const char* kMachineUrl = "http://169.254.169.254";
constexpr const char* kMachineIpv6Url = "http://[fd00:ec2::254]";

// A container's token goes only to TLS, this machine, or the addresses of ECS and EKS.
void check_container_url(const std::string& url) {
  std::string host = is_web_url(url) ? host_of(url) : "";
  const bool names_user = host.find('@') != std::string::npos;
  if (const size_t port = host.rfind(':'); port != std::string::npos && host.back() != ']')
    host.resize(port);
  constexpr const char* kHosts[] = {"localhost",     "127.0.0.1",      "[::1]",
                                    "169.254.170.2", "169.254.170.23", "[fd00:ec2::23]"};
  if (names_user)
    fail(ErrorKind::kUsage, "has a user name before its host", "AWS_CONTAINER_CREDENTIALS_FULL_URI",
         "Remove it");
  if (url.starts_with("https://") || std::ranges::count(kHosts, host) > 0) return;
  fail(ErrorKind::kUsage, "is neither https:// nor an address of this machine or its container",
       "AWS_CONTAINER_CREDENTIALS_FULL_URI", "Use https://");
}

}  // namespace

bool is_machine_of_ec2(const std::string& dmi) {
  return system_line(dmi + "/sys_vendor").starts_with("Amazon EC2") ||
         system_line(dmi + "/bios_version").find("amazon") != std::string::npos;
}

std::optional<CredentialService> find_web_identity(Env& env) {
  CredentialService service;
  service.token_file = environment_value("AWS_WEB_IDENTITY_TOKEN_FILE");
  if (service.token_file.empty()) return std::nullopt;
  service.role = environment_value("AWS_ROLE_ARN");
  if (service.role.empty())
    fail(ErrorKind::kUsage, "AWS_WEB_IDENTITY_TOKEN_FILE is set, and AWS_ROLE_ARN is not",
         "AWS_ROLE_ARN", "Set both, or none");
  service.session = environment_value("AWS_ROLE_SESSION_NAME");
  if (service.session.empty()) service.session = "saturate";
  service.origin = "the web identity in " + service.token_file;
  service.url = environment_value("AWS_ENDPOINT_URL_STS");
  if (service.url.empty()) service.url = environment_value("AWS_ENDPOINT_URL");
  const S3Settings s3 = find_s3_settings(env);
  service.authorities = s3.authorities;
  if (service.url.empty()) service.url = amazon_url("sts", s3.region);
  if (!is_web_url(service.url))
    fail(ErrorKind::kUsage, "the endpoint is not a URL", "AWS_ENDPOINT_URL_STS",
         "Write a URL such as https://sts.example:9000 into AWS_ENDPOINT_URL_STS");
  return service;
}

std::optional<CredentialService> find_metadata_service(bool is_ec2) {
  CredentialService service;
  service.kind = CredentialService::Kind::kContainer;
  service.origin = "the container's role";
  service.url = environment_value("AWS_CONTAINER_CREDENTIALS_FULL_URI");
  if (!service.url.empty()) check_container_url(service.url);
  if (const std::string path = environment_value("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI");
      !path.empty()) {
    if (!path.starts_with('/'))
      fail(ErrorKind::kUsage, "does not start with /", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
           "Unset it outside a container");
    service.url = kContainerHost + path;
  }
  if (!service.url.empty()) {
    service.token_file = environment_value("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE");
    service.token = environment_value("AWS_CONTAINER_AUTHORIZATION_TOKEN");
    return service;
  }
  service.kind = CredentialService::Kind::kMachine;
  service.origin = "the machine's role";
  service.url = environment_value("AWS_EC2_METADATA_SERVICE_ENDPOINT");
  if (lower_case(environment_value("AWS_EC2_METADATA_DISABLED")) == "true") return std::nullopt;
  service.may_be_away = service.url.empty();
  if (service.may_be_away && !is_ec2) return std::nullopt;
  const std::string mode = lower_case(environment_value("AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE"));
  if (service.may_be_away) service.url = mode == "ipv6" ? kMachineIpv6Url : kMachineUrl;
  while (service.url.ends_with('/')) service.url.pop_back();
  return service;
}

}  // namespace saturate
